"""The lanes of a step in shards, beside those that compute and send: of sums of gradients, of sums of statistics, and of early updates."""

from collections.abc import Iterable

from simulator.collectives.sending import COMPUTE
from simulator.collectives.urgency import URGENCIES, priority_of, urgencies
from simulator.graph import TrainingGraph
from simulator.plan.task import FORWARD
from simulator.shards.options import StepOptions


class Lanes:
    """`first`: the first stream that neither computes nor sends. `levels`: priority levels that every device has."""

    def __init__(self, options: StepOptions, first: int, levels: int):
        self._first, self._levels, self._options = first, levels, options

    def sums(self, graph: TrainingGraph, layers: Iterable[str]) -> dict[str, tuple[int, int]]:
        """By layer, of those whose gradients are summed, the stream and the priority of its sums.

        Sums that nothing in their step waits for hold up nothing else. With `priorities`, the layers that come first in the forward do.
        """
        if not (self._options.overlap or self._options.lag):
            return dict.fromkeys(layers, (COMPUTE, 0))
        if not self._options.priorities:
            return dict.fromkeys(layers, (self._first, 1 - self._levels))
        first_use = {layer: index for layer, index in _first_uses(graph).items() if layer in set(layers)}
        urgency = dict(zip(first_use, urgencies(list(first_use.values()), self._levels), strict=True))
        return {layer: (self._first + own, priority_of(own, self._levels)) for layer, own in urgency.items()}

    @property
    def statistics(self) -> tuple[int, int]:
        """Stream and priority of sums of statistics, which the step waits for, though gradients may still be under way."""
        after_sums = URGENCIES if self._options.priorities else self._options.lag
        return (self._first + after_sums, 1 - self._levels) if self._options.overlap else (COMPUTE, 0)

    @property
    def updates(self) -> int:
        """The stream of updates during backward, which continues while they wait for their sums."""
        return self._first + URGENCIES + 1 if self._options.overlap else COMPUTE


def _first_uses(graph: TrainingGraph) -> dict[str, int]:
    """By layer, the first op of the forward that uses its parameters."""
    first: dict[str, int] = {}
    for index, op in enumerate(graph.ops):
        if op.phase == FORWARD:
            for operand in op.inputs:
                if operand.value in graph.layers:
                    first.setdefault(graph.layers[operand.value], index)
    return first
