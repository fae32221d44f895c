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
from collections.abc import Mapping, Sequence

import numpy as np

from simulator.plan.task import Task
from simulator.replay.nodes import HOST, is_host
from simulator.replay.replay import Replay

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
    names = replay.position
    if len(replay.steps) < 2:
        return None
    first, last = names[replay.steps[0].last_task] + 1, names[replay.steps[-1].last_task] + 1
    body = replay.plan.tasks[first:last]
    if all(is_host(task) for task in body):
        return None
    from_end = _places_from_end(replay.plan.tasks[:first])
    count = Counter(task.lane for task in body)
    borders: dict[tuple[Lane, int], int] = {}  # what the next repetition can see: the n-th last task of a lane
    for lane in count:
        borders[lane, 1] = len(borders)
    for task in body:
        for name in task.after:
            if names[name] < first and from_end[name][0] in count:
                lane, place = from_end[name]
                borders.setdefault((lane, min(place, count[lane])), len(borders))
    if len(borders) > MOST_BORDERS:
        return None
    weights, on_device = _weights(replay, body, borders, from_end, count)
    return _largest_circuit_mean(weights, on_device) / (len(replay.steps) - 1)


def _places_from_end(tasks: Sequence[Task]) -> dict[str, tuple[Lane, int]]:
    """Return by task its lane, and its position in that lane from the end."""
    seen: Counter[Lane] = Counter()
    places = {}
    for task in reversed(tasks):
        seen[task.lane] += 1
        places[task.name] = (task.lane, seen[task.lane])
    return places


def _weights(
    replay: Replay, body: Sequence[Task], borders: Mapping[tuple[Lane, int], int], from_end: Mapping[str, tuple[Lane, int]], count: Counter
) -> tuple[np.ndarray, list[int]]:
    """Return the matrix of one repetition, and the borders that are of devices' lanes.

    `count`: tasks by lane. `from_end`: as `_places_from_end` gives, of what is before the repetition.
    """
    uses = Counter(name for task in body for name in task.after)
    gaps = {device.name: device.task_overhead_s for device in replay.machine.devices}
    unit = np.full((len(borders), len(borders)), NEVER)
    np.fill_diagonal(unit, 0.0)
    never = np.full(len(borders), NEVER)
    free = {lane: unit[borders[lane, 1]] for lane in count}
    ended: dict[str, np.ndarray] = {}
    left = dict(count)
    after_one = unit.copy()
    for task in body:
        start = free[task.lane]
        for name in task.after:
            other = ended.get(name)
            if other is None:
                other = never
                if name in from_end and (lane := from_end[name][0]) in count:
                    other = unit[borders[lane, min(from_end[name][1], count[lane])]]
            start = np.maximum(start, other)
            uses[name] -= 1
            if not uses[name]:
                ended.pop(name, None)
        end = free[task.lane] = start + (task.body.duration_s + gaps[task.device])
        if uses[task.name]:
            ended[task.name] = end
        row = borders.get((task.lane, left[task.lane]))
        left[task.lane] -= 1
        if row is not None:
            after_one[row] = end
    return after_one, [number for (lane, _), number in borders.items() if lane[0] != HOST]


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
    walks = [np.zeros(size)]
    for _ in range(size):
        walks.append((weights + walks[-1]).max(axis=1))
    best = 0.0
    for node in range(size):
        if np.isfinite(walks[size][node]):
            means = [(walks[size][node] - walks[k][node]) / (size - k) for k in range(size) if np.isfinite(walks[k][node])]
            best = max(best, min(means))
    return best
