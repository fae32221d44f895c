"""Lower bounds of a candidate's time and memory, known before it is planned: candidates that cannot fit or win are not planned.

A strategy says which ops of a microbatch a device has, and which share of their parameters (`Strategy.portion`). Its stages run their ops
in order on one stream, with what devices that divide layers exchange in between, and a stage begins when the one before it has made what it
waits for. While a stage's ops run, their activations are allocated, and those of the microbatches in flight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.engine.clock import Clock
from simulator.engine.links import Links
from simulator.engine.memory.over_time import held_along, workspace_bytes
from simulator.engine.scenario import Scenario
from simulator.model.division.divide import Division
from simulator.model.division.local import COLLECTIVES
from simulator.model.graph import TrainingGraph
from simulator.model.job import GraphArguments
from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD as BACKWARD_PHASE
from simulator.plan.task import Resource
from simulator.predict.search.bound import least_compute_s
from simulator.predict.search.setup import Setup
from simulator.strategies.baseline import Options
from simulator.strategies.data_parallel import replica_builders
from simulator.strategies.layout import Layout
from simulator.strategies.options import Portion
from simulator.strategies.pipeline import planning
from simulator.strategies.pipeline.cut import Cut
from simulator.strategies.pipeline.schedule import BACKWARD, FORWARD
from simulator.strategies.registry import parse
from simulator.strategies.zero.units import Units
from traces.errors import SchedcastError


class Least(NamedTuple):
    """Lower bounds of any plan of a candidate: seconds of a step, and bytes in a device's memory."""

    step_s: float
    held_bytes: int


class Microbatch(NamedTuple):
    """Which microbatches are equivalent on one device: equally large, divided the same way, with the same checkpointing."""

    graph: GraphArguments
    checkpoint: str
    division: Division


def microbatch_of(setup: Setup, candidate: str) -> tuple[Microbatch, Portion] | None:
    """The microbatch of a candidate, and its device's portion of it; None if that is not known without a plan."""
    text, setup = setup.of(candidate)
    job, (strategy, options) = setup.job, parse(text, setup.shared)
    try:
        portion = strategy.portion(job, setup.target.machine, options)
    except SchedcastError:
        return None  # its plan is refused, which says why
    if portion is None or job.batch % (portion.replicas * portion.microbatches):
        return None
    parts = portion.replicas * portion.microbatches
    return Microbatch((job.batch // parts, parts, False), job.checkpoint, portion.division), portion


def least_of(setup: Setup, candidate: str) -> Least | None:
    """The lower bounds of a candidate; None if they are not known without a plan."""
    try:
        known = microbatch_of(setup, candidate)
        if known is None:
            return None
        microbatch, portion = known
        if microbatch not in setup.microbatches:
            setup.microbatches[microbatch] = _OneDevice.of(setup.of(candidate)[1], portion)
        return setup.microbatches[microbatch].least(portion)
    except SchedcastError:
        return None  # its plan is refused, which says why


class _Chunk(NamedTuple):
    """What a stage does with a microbatch in forward or in backward, in seconds.

    `whole`: its stream is busy, or waits for what devices exchange. `passing`: from when the stage has what it waits for until it has made
    what the next one waits for. `early`, `late`: what its stream may do before and after that.
    """

    whole: float
    passing: float
    early: float
    late: float


class _Stages(NamedTuple):
    """The stages of a cut graph, and what each does in forward and in backward."""

    cut: Cut
    forwards: list[_Chunk]
    backwards: list[_Chunk]


@dataclass(frozen=True)
class _OneDevice:
    """A microbatch on one device that has all stages: its tasks, one for each of `ops` of the graph, and the least time of each.

    `carried_bytes`: by parameter, with its optimizer state. `stages`: those of portions so far, by their cuts and number.
    """

    setup: Setup
    graph: TrainingGraph
    plan: Plan
    ops: tuple[int, ...]
    seconds: Mapping[str, float]
    carried_bytes: Mapping[str, int]
    stages: dict[tuple[tuple[int, ...], int, bool], _Stages] = field(default_factory=dict)

    @classmethod
    def of(cls, setup: Setup, portion: Portion) -> "_OneDevice":
        """The microbatch of a portion."""
        machine, model = setup.target.machine, setup.target.costs
        names = tuple(device.name for device in machine.devices)
        job = setup.job.varied(accumulate=portion.microbatches)
        layout = Layout(machine, names[: portion.replicas * portion.division.devices], portion.division, folded=True)
        (builder,) = replica_builders(job, layout)
        graph = builder.graph
        ops, tasks = [], []
        for index, op in enumerate(graph.ops):
            if index in graph.casts:
                continue  # casts of parameters may run concurrently with the rest, on shards
            own = builder.ops([index], builder.microbatches[0])
            if op.body.target in COLLECTIVES:
                if not machine.library:
                    continue
                ((group, _),) = layout.dividing(op.body.target.rpartition(".")[2], stream=1)
                own = group.together(builder.tensors, own)
            ops += [index] * len(own)
            tasks += own
        plan = builder.plan("microbatch", tasks, Options())
        costs, links = model.resolve(plan), Links(Clock(), machine)
        compute_s = least_compute_s(Scenario(plan, machine, costs, pair_multipliers=model.pair_multipliers))
        seconds: dict[str, float] = {}
        for index, task, cost, own_s in zip(ops, tasks, costs, compute_s, strict=True):
            if task.body.resource is Resource.COLLECTIVE:
                own_s = cost.overhead_s + links.alone_s(*links.collective(task.body, task.body.payload_bytes(task)))
            name = graph.ops[index].name
            seconds[name] = seconds.get(name, 0.0) + own_s
        states = builder.update(graph.parameters, "update").mutates
        each = len(states) // max(1, len(graph.parameters))
        carried = {name: sum(o.bytes for o in states[at * each : (at + 1) * each]) for at, name in enumerate(graph.parameters)}
        return cls(setup, graph, plan, tuple(ops), seconds, carried)

    @cached_property
    def _unit_seconds(self) -> list[float]:
        return planning.unit_seconds(self.setup.job, self.setup.target.machine, self.setup.target.costs, self.graph)

    @cached_property
    def _gathered_bytes(self) -> dict[str, int]:
        """By parameter that both forward and backward read, the bytes of what they read: itself, or what it is cast to."""
        graph, readers = self.graph, dict[str, set[bool]]()
        for index, op in enumerate(graph.ops):
            if index not in graph.casts:
                for operand in op.inputs:
                    readers.setdefault(operand.value, set()).add(op.phase == BACKWARD_PHASE)
        return {
            weight.parameter: graph.values[weight.names[0]].operand().bytes
            for weights in Units("a search", graph).weights.values()
            for weight in weights
            if {True, False} <= set().union(*(readers.get(name, ()) for name in weight.names))
        }

    def least(self, portion: Portion) -> Least:
        """The lower bounds of a candidate with this portion."""
        known = portion.cuts, portion.stages, portion.even
        if known not in self.stages:
            self.stages[known] = self._staged(planning.cut_graph_of(self.graph, *known, lambda: self._unit_seconds))
        return Least(self._step_s(self.stages[known], portion.microbatches), self._held(self.stages[known].cut, portion))

    def _staged(self, cut: Cut) -> _Stages:
        before: dict[int, list[int]] = {}
        for producer, consumer in cut.graph.edges:
            before.setdefault(consumer, []).append(producer)
        forwards, backwards = ([cut.chunks[stage, kind] for stage in range(cut.stages)] for kind in (FORWARD, BACKWARD))
        return _Stages(cut, self._chunks(cut, before, forwards), self._chunks(cut, before, backwards[::-1])[::-1])

    @staticmethod
    def _step_s(stages: _Stages, microbatches: int) -> float:
        """Seconds of a step: of the stage for which they are most, what passes the stages before it, forth and back, and all of its work.

        It may do some of that early, while it waits for the first microbatch, and some late, once it has sent the last one back.
        """
        longest = passed = 0.0
        for forward, backward in zip(stages.forwards, stages.backwards, strict=True):
            longest = max(longest, passed + microbatches * (forward.whole + backward.whole) - forward.early - backward.late)
            passed += forward.passing + backward.passing
        return longest

    def _chunks(self, cut: Cut, before: Mapping[int, Sequence[int]], stages: Sequence[Sequence[int]]) -> list[_Chunk]:
        """The forwards, or the backwards, of the stages in the order in which they wait for each other."""
        #: By stage, the position of its first op that waits for the stage before, and the ops there that this one waits for.
        waits: list[tuple[int, set[int]]] = [(0, set())]
        for earlier, indices in pairwise(stages):
            made = set(earlier)
            first_waits = ((at, made.intersection(before.get(op, ()))) for at, op in enumerate(indices))
            waits.append(next((each for each in first_waits if each[1]), (len(indices), set())))
        chunks = []
        for indices, (first, _), (_, awaited) in zip(stages, waits, [*waits[1:], (0, set())], strict=True):
            whole, passing = self._ends(cut, before, indices), self._ends(cut, before, indices[first:])
            last = max((at for at, op in enumerate(indices) if op in awaited), default=len(indices) - 1)
            chunks.append(
                _Chunk(
                    max((whole[op] for op in indices if not _exchanges(cut, op)), default=0.0),
                    max((passing.get(op, 0.0) for op in awaited or passing), default=0.0),
                    sum(self._alone_s(cut, op) for op in indices[:first]),
                    sum(self._alone_s(cut, op) for op in indices[last + 1 :]),
                )
            )
        return chunks

    def _alone_s(self, cut: Cut, op: int) -> float:
        return self.seconds.get(cut.graph.ops[op].name, 0.0)

    def _ends(self, cut: Cut, before: Mapping[int, Sequence[int]], indices: Sequence[int]) -> dict[int, float]:
        """When each of some ops ends, if they begin at 0 and run in order on one stream, and what devices exchange on others."""
        ends: dict[int, float] = {}
        streams: dict[str, float] = {}
        for index in indices:
            stream = cut.graph.ops[index].body.target.rpartition(".")[2] if _exchanges(cut, index) else ""
            ready_s = max((ends[each] for each in before.get(index, ()) if each in ends), default=0.0)
            ends[index] = streams[stream] = max(ready_s, streams.get(stream, 0.0)) + self._alone_s(cut, index)
        return ends

    def _held(self, cut: Cut, portion: Portion) -> int:
        """Bytes allocated on a device of the fullest stage at some moment."""
        own = dict(zip((op.name for op in cut.graph.ops), cut.stage_of, strict=True))
        ops = [self.graph.ops[index] for index in self.ops]
        stage_of = np.array([own.get(op.name, -1) for op in ops])
        backward = np.array([op.phase == BACKWARD_PHASE for op in ops], bool)
        most = 0
        for stage, parameters in enumerate(cut.parameters):
            held = int(portion.held * sum(self.carried_bytes[name] for name in parameters))
            if portion.keeps:
                mine = stage_of == stage
                along = held_along(self.plan, self.plan.devices[0], mine, own=cut.stages > 1)
                ends, begins = np.flatnonzero(mine & ~backward), np.flatnonzero(mine & backward)
                between = along[ends.max(initial=-1) + 1 : begins.min(initial=len(ops))]  # while stages behind it have the microbatch
                in_flight = min(portion.microbatches, cut.stages - stage)
                peak = int(along.max(initial=0))
                if portion.microbatches > 1:  # whole parameters and summed gradients are allocated during the second
                    held += sum(self._gathered_bytes.get(name, 0) for name in parameters) if portion.gathers else 0
                    summed = sum(self.graph.gradients[name].bytes for name in parameters) if portion.sums else 0
                    peak = max(peak, int(along[ends].max(initial=0)) + summed)
                held += peak + (in_flight - 1) * (int(between.min()) if len(between) else 0)
            most = max(most, held)
        return most + workspace_bytes(self.plan, self.setup.target.machine).get(self.plan.devices[0], 0)


def _exchanges(cut: Cut, index: int) -> bool:
    """Whether an op is what devices that divide a microbatch do together."""
    return cut.graph.ops[index].body.target in COLLECTIVES
