"""Cut a chain of units into contiguous stages: balanced by time, under a memory limit where there is one.

A placement vector p_1..p_K says that a cut lies after unit p_i, counted from 1, so that S = K + 1 stages hold units
p_(i-1) + 1 .. p_i. Every stage holds at least one unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traces import units
from traces.errors import StepcastError

#: Costs that differ by no more than this, relative to each other, are equal: rounding of sums.
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class Load:
    """What one unit adds to the stage that holds it."""

    seconds: float
    """Seconds of its forward, backward and update for one micro-batch."""
    state_bytes: int = 0
    """Bytes held all the time: parameters, their gradients, optimizer state and buffers."""
    activation_bytes: int = 0
    """Bytes kept for the backward of each micro-batch in flight."""
    parameter_bytes: int = 0
    """Bytes of the parameters alone: what each further version of the weights costs."""
    output_bytes: int = 0
    """Bytes that cross a cut after this unit; the stage behind the cut keeps them for each micro-batch in flight."""


def stages_of(placement: Sequence[int], count: int) -> tuple[range, ...]:
    """Return the units of each stage, numbered from 0, of a chain of `count` units. Raises StepcastError for any other vector."""
    bounds = (0, *placement, count)
    text = ",".join(map(str, placement))
    if any(not 1 <= cut < count for cut in placement):
        raise StepcastError(f"placement {text} is out of range: a cut lies after one of the units 1 to {count - 1} of {count}")
    if any(second <= first for first, second in pairwise(bounds)):
        raise StepcastError(f"placement {text} is out of order: each cut must lie after the one before it")
    return tuple(range(first, last) for first, last in pairwise(bounds))


def balanced(seconds: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the placement vector whose longest stage is shortest; among those, the most even one, then one with early cuts.

    The most even one has the smallest sum of squared stage times. `seconds`: by unit. Raises StepcastError for more stages than units.
    """
    _check(len(seconds), stages)
    return _placement([_sums(seconds)] * stages)


def balanced_unfolded(forward_s: Sequence[float], backward_s: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the placement vector with the shortest cycle if forward and backward of a stage have an accelerator each.

    Only the last stage has both on one accelerator: 2K + 1 accelerators. `forward_s`, `backward_s`: seconds by unit.
    """
    _check(len(forward_s), stages)
    forward, backward = _sums(forward_s), _sums(backward_s)
    return _placement([np.maximum(forward, backward)] * (stages - 1) + [forward + backward])


def fitting(
    loads: Sequence[Load], stages: int, memory_bytes: int, in_flight: Sequence[int], versions: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the balanced placement vector among those whose stages need at most `memory_bytes` each.

    `in_flight`: micro-batches whose activations a stage keeps at once, by stage; see `in_flight_1f1b` and `in_flight_gpipe`.
    `versions`: copies of the weights by stage, 1 each by default. Raises StepcastError if no placement fits, with the smallest limit
    under which one does.
    """
    _check(len(loads), stages)
    needs = _stage_bytes(loads, in_flight, versions or [1] * stages)
    times = _sums([load.seconds for load in loads])
    limited = [np.where(need <= memory_bytes, times, np.inf) for need in needs]
    if not np.isfinite(_shortest(limited)):
        smallest = int(_shortest(needs))
        raise StepcastError(
            f"no cut into {stages} stages fits {units.memory(memory_bytes)} a device: the smallest limit that fits is"
            f" {units.memory(smallest)} ({smallest:,} bytes); take more stages, a smaller micro-batch, or recompute activations"
        )
    return _placement(limited)


def in_flight_1f1b(stages: int, microbatches: int) -> tuple[int, ...]:
    """Return the micro-batches in flight by stage if each stage runs one forward, one backward: S for the first, 1 for the last."""
    return tuple(min(stages - stage, microbatches) for stage in range(stages))


def in_flight_gpipe(stages: int, microbatches: int) -> tuple[int, ...]:
    """Return the micro-batches in flight by stage if all forwards come first: every micro-batch of a step."""
    return (microbatches,) * stages


def stage_bytes(
    loads: Sequence[Load], placement: Sequence[int], in_flight: Sequence[int], versions: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the bytes that each stage of a placement needs; the arguments are those of `fitting`."""
    needs = _stage_bytes(loads, in_flight, versions or [1] * len(in_flight))
    held = stages_of(placement, len(loads))
    return tuple(int(need[span.start, span.stop]) for need, span in zip(needs, held, strict=True))


def _check(count: int, stages: int) -> None:
    if stages < 1:
        raise StepcastError(f"{stages} stages: a pipeline has at least 1")
    if stages > count:
        raise StepcastError(f"cannot cut {count} units into {stages} stages: take at most {count}")


def _sums(values: Sequence[float]) -> np.ndarray:
    """Return [n + 1, n + 1]: the sum of units first..last - 1 at [first, last], infinite where that holds no unit."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=float))])
    sums = total[None, :] - total[:, None]
    sums[np.tril_indices(len(total))] = np.inf
    return sums


def _stage_bytes(loads: Sequence[Load], in_flight: Sequence[int], versions: Sequence[int]) -> list[np.ndarray]:
    """Return for each stage [n + 1, n + 1]: the bytes it needs if it holds units first..last - 1."""
    state, activations, parameters = (
        _sums([getattr(load, name) for load in loads]) for name in ("state_bytes", "activation_bytes", "parameter_bytes")
    )
    received = np.array([0, *(load.output_bytes for load in loads)], dtype=float)[:, None]
    return [
        state + kept * (activations + received) + (copies - 1) * np.where(np.isfinite(parameters), parameters, 0)
        for kept, copies in zip(in_flight, versions, strict=True)
    ]


def _shortest(costs: Sequence[np.ndarray]) -> float:
    """Return the smallest possible cost of the costliest stage. `costs`: by stage [n + 1, n + 1], by units held."""
    best = costs[0][0]
    for cost in costs[1:]:
        best = np.maximum(best[:, None], cost).min(axis=0)
    return float(best[-1])


def _placement(costs: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Return the cuts that minimize the costliest stage, then the sum of squared costs; of equal ones those that come early."""
    limit = _shortest(costs)
    square = _squares(costs[0], limit)
    best, cuts = square[0], []
    for before, cost in pairwise(costs):
        square = square if cost is before else _squares(cost, limit)
        sums = best[:, None] + square
        best = sums.min(axis=0)
        # The same squares added in another order are equal but for rounding: the earliest cut is taken.
        cuts.append((sums <= best * (1 + _EQUAL)).argmax(axis=0))
    end, placement = len(best) - 1, []
    for before in reversed(cuts):
        end = int(before[end])
        placement.append(end)
    return tuple(reversed(placement))


def _squares(cost: np.ndarray, limit: float) -> np.ndarray:
    """Return squared costs relative to `limit`; infinite for costs above it."""
    return np.where(cost <= limit * (1 + _EQUAL), (cost / (limit or 1.0)) ** 2, np.inf)
