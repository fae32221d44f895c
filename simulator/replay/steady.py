"""The step time of a replay in the long run, if its recorded steps are repeated forever.

The mean length of the recorded steps is measured from the end of the first to the end of the last. A change may move these two ends by
different times although the pace stays the same, for example if the device is behind the host at the first end and not at the last. The
long run has no ends.

Everything in a replay starts when the last thing that it waits for has ended, in an order that is fixed. Each time is therefore the largest
of some earlier times plus a sum of durations, and what one repetition does to the times at its border is a matrix in the algebra of max and
plus: entry (i, j) is by how much the end of i follows the end of j one repetition before. The pace is the largest mean weight of a circuit
of that matrix (Karp 1978). It never grows if durations shrink.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.replay.nodes import HOST
from simulator.replay.replay import Replay, Rows

#: A lane of a task: device and stream.
Lane = tuple[str, int]
#: The largest matrix: recordings of real jobs have up to some 40 rows.
MOST_BORDERS = 400
NEVER = float("-inf")


def pace_s(replay: Replay) -> float | None:
    """Return the seconds per step in the long run. The first step is the one before the repetition.

    None for fewer than two steps, and for a recording whose steps wait for too many different tasks of the steps before.

    A task that waits for one of before the repetition waits, in each later one, for the task at the same distance from the end of the same
    lane.
    """
    if len(replay.steps) < 2:
        return None
    first, last = replay.position[replay.steps[0].last_task] + 1, replay.position[replay.steps[-1].last_task] + 1
    derived, key = replay.rows.derived, ("repetition", first, last)
    if key not in derived:
        derived[key] = _repetition(replay.rows, first, last)
    repetition: _Repetition | None = derived[key]
    if repetition is None:
        return None
    on_device = [number for number, lane in enumerate(repetition.lanes) if lane[0] != HOST]
    return _largest_circuit_mean(_weights(replay, repetition), on_device) / (len(replay.steps) - 1)


@dataclass(frozen=True, slots=True)
class _Repetition:
    """The tasks that are repeated, whatever their durations are; they are counted from the `first`.

    `lanes`: those of the borders, which are what the next repetition can see: the n-th last task of a lane. `begins`: by lane, the border
    that is its last task. `ends`: by border, the task that it is after a repetition.

    `runs`: a lane; tasks that follow one another in it, of which only the first waits for other lanes; the tasks that it waits for, and the
    borders.
    """

    first: int
    lanes: tuple[Lane, ...]
    begins: dict[Lane, int]
    ends: dict[int, int]
    runs: list[tuple[Lane, list[int], list[int], list[int]]]


def _repetition(rows: Rows, first: int, last: int) -> _Repetition | None:
    """Return what is repeated; None if no device works in it, or if there are too many borders."""
    if all(rows.on_host[first:last]):
        return None
    lanes, count = rows.lanes, Counter(rows.lanes[first:last])
    seen: Counter[Lane] = Counter()
    from_end = [0] * first  # of a task before the repetition, its place in its lane
    for position in reversed(range(first)):
        seen[lanes[position]] += 1
        from_end[position] = seen[lanes[position]]
    borders = {(lane, 1): number for number, lane in enumerate(count)}
    members: dict[Lane, list[int]] = {lane: [] for lane in count}
    open_runs: dict[Lane, list[int]] = {}
    runs = []
    for position, lane, after in zip(range(first, last), lanes[first:last], rows.after[first:last], strict=True):
        members[lane].append(position - first)
        if not after and lane in open_runs:
            open_runs[lane].append(position - first)
            continue
        inside, before = [], []
        for other in after:
            if other >= first:
                inside.append(other - first)
            elif lanes[other] in count:
                place = lanes[other], min(from_end[other], count[lanes[other]])
                before.append(borders.setdefault(place, len(borders)))
        if inside or before or lane not in open_runs:
            open_runs[lane] = []
            runs.append((lane, open_runs[lane], inside, before))
        open_runs[lane].append(position - first)
    ends = {number: members[lane][-place] for (lane, place), number in borders.items()}
    if len(borders) > MOST_BORDERS:
        return None
    return _Repetition(first, tuple(lane for lane, _ in borders), {lane: borders[lane, 1] for lane in count}, ends, runs)


def _weights(replay: Replay, repetition: _Repetition) -> np.ndarray:
    """Return the matrix of one repetition."""
    gap_of = {device.name: device.task_overhead_s for device in replay.machine.devices}
    first, size = repetition.first, len(repetition.lanes)
    seconds = np.array(replay.durations_s[first:]) + [gap_of[device] for device, _ in replay.rows.lanes[first:]]
    unit = np.full((size, size), NEVER)
    np.fill_diagonal(unit, 0.0)
    ended = np.full((len(seconds), size), NEVER)
    free = {lane: unit[number] for lane, number in repetition.begins.items()}
    for lane, members, inside, before in repetition.runs:
        start, end = free[lane], ended[members[0]]
        for other in inside:
            start = np.maximum(start, ended[other], out=end)
        for number in before:
            start = np.maximum(start, unit[number], out=end)
        np.add(start, seconds[members[0]], out=end)
        if len(members) > 1:
            ends = np.repeat(seconds[members, None], size, axis=1)
            ends[0] = end
            ended[members] = np.add.accumulate(ends, axis=0, out=ends)
        free[lane] = ended[members[-1]]
    return ended[[repetition.ends[number] for number in range(size)]]


def _largest_circuit_mean(weights: np.ndarray, ends: Sequence[int]) -> float:
    """Return the largest mean weight of the circuits from which an end can be reached (Karp's algorithm); 0 if there is none."""
    reaching = np.zeros(len(weights), bool)
    reaching[list(ends)] = True
    while True:
        more = reaching | (np.isfinite(weights[reaching]).any(axis=0))
        if (more == reaching).all():
            break
        reaching = more
    weights = weights[np.ix_(reaching, reaching)]
    size = len(weights)
    walks = np.zeros((size + 1, size))
    for length in range(size):
        walks[length + 1] = (weights + walks[length]).max(axis=1)
    walks = walks[:, np.isfinite(walks[size])]  # of the nodes at which a walk of all lengths ends
    means = (walks[size] - walks[:size]) / np.arange(size, 0, -1)[:, None]  # infinite where no walk of this length ends
    return float(means.min(axis=0, initial=np.inf).max(initial=0.0))
