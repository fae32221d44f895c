"""The rule priority: make streams more urgent.

Recorded durations include contention. The gain of a kernel is therefore computed from the times at which it overlaps other kernels in the
replay: the rule assumes that overlapping kernels shared the SMs in proportion to the demand of their grids, and that the urgent kernel now
gets its full demand first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from simulator.plan.task import Task
from simulator.replay.replay import Replay, simulated_times
from simulator.replay.whatif.edit import Lane, device_work, with_durations, with_tasks
from simulator.replay.whatif.matching import MalformedError, matching, pattern_and
from traces import units
from traces.errors import SchedcastError

NAME = "priority"
FORM = "priority:/REGEX/=-1"
ABOUT = "streams with a kernel whose name contains the regular expression get this priority (-5 to -1, smaller is more urgent)"
BUILT = {"priority:/{regex}/=-1": "kernels' streams come first"}

#: The most urgent level that NVIDIA drivers offer.
MOST_URGENT = -5
#: Blocks that fill a GPU: the SM count of an A100; a V100 has 80 and an H100 has 132.
FULL_GRID = 108
#: Copies run on a copy engine and need no SMs.
_WITHOUT_SMS = "memcpy"


def parse(rest: str) -> tuple[str, int]:
    """Return the regular expression and the priority."""
    regex, number = pattern_and(rest, "=")
    if number not in {str(level) for level in range(MOST_URGENT, 0)}:
        raise MalformedError(f"{number[:20]!r} is not a priority from {MOST_URGENT} to -1")
    return regex, int(number)


def apply(replay: Replay, request: tuple[str, int]) -> tuple[Replay, list[str]]:
    """Set the priority of the streams, and shorten urgent kernels by the time that they lost to less urgent kernels at the same time."""
    regex, priority = request
    urgent = {task.lane for task in matching(replay, regex)}
    others = {task.lane for task in device_work(replay)} - urgent
    if not others:
        raise SchedcastError(f"priority:/{regex}/={priority} changes nothing: every stream has a kernel that matches; match fewer")
    shorter_s = _shortened(replay, dict.fromkeys(urgent, priority))
    tasks = [replace(task, priority=priority) if task.lane in urgent else task for task in replay.tasks]
    urgent_devices = {device for device, _ in urgent}
    devices = tuple(
        replace(device, priority_levels=max(device.priority_levels, 1 - priority)) if device.name in urgent_devices else device
        for device in replay.machine.devices
    )
    gained_s = sum(task.body.duration_s - shorter_s[task.name] for task in device_work(replay) if task.name in shorter_s)
    rows = replay.rows
    edited = with_tasks(replay, tasks, position=rows.position, on_host=rows.on_host, lanes=rows.lanes, after=rows.after)
    changed = replace(with_durations(edited, shorter_s), machine=replace(replay.machine, devices=devices))
    return changed, [
        f"priorities belong to streams: {len(urgent)} of {len(urgent) + len(others)} get priority {priority}",
        "recorded durations include contention: assumes that overlapping kernels shared the SMs in proportion to their grids"
        f" ({FULL_GRID} blocks or an unknown grid fill the GPU); urgent kernels now get SMs first, which saves {units.duration(gained_s)};"
        " the others end no later, because they get back what they lose when the urgent ones have ended",
        "memory bandwidth and copies have no priorities",
    ]


def _shortened(replay: Replay, priorities: Mapping[Lane, int]) -> dict[str, float]:
    """Return the new durations of the kernels that get more SMs than before."""
    tasks = {task.name: task for task in device_work(replay) if task.body.category != _WITHOUT_SMS}
    before = {name: task.priority for name, task in tasks.items()}
    after = {name: priorities.get(task.lane, task.priority) for name, task in tasks.items()}
    saved: dict[str, float] = {}
    times_s = simulated_times(replay)
    for device in {device for device, _ in priorities}:
        for seconds, running in _segments({name: times_s[name] for name, task in tasks.items() if task.device == device}):
            concurrent = [tasks[name] for name in running]
            old, new = _speeds(concurrent, before), _speeds(concurrent, after)
            for name in running:
                if new[name] > old[name]:
                    saved[name] = saved.get(name, 0.0) + seconds * (1 - old[name] / new[name])
    return {name: max(0.0, tasks[name].body.duration_s - seconds) for name, seconds in saved.items()}


def _segments(times_s: Mapping[str, tuple[float, float]]) -> Iterator[tuple[float, list[str]]]:
    """Yield the intervals in which the same two or more kernels run concurrently: length in seconds, and their names.

    `times_s`: start and end by kernel.
    """
    changes = []
    for name, (start_s, end_s) in times_s.items():
        if end_s > start_s:
            changes += [(start_s, 1, name), (end_s, 0, name)]
    moments = [(time_s, list(group)) for time_s, group in groupby(sorted(changes), key=lambda change: change[0])]
    running: dict[str, None] = {}
    for (time_s, group), (next_s, _) in pairwise(moments):
        for _, begins, name in group:
            if begins:
                running[name] = None
            else:
                del running[name]
        if len(running) > 1:
            yield next_s - time_s, list(running)


def _speeds(concurrent: Sequence[Task], priority: Mapping[str, int]) -> dict[str, float]:
    """Return the relative speed of each kernel: SMs go to the most urgent first, among equals in proportion to their demand."""
    speeds: dict[str, float] = {}
    left = 1.0
    for _, level in groupby(sorted(concurrent, key=lambda task: priority[task.name]), key=lambda task: priority[task.name]):
        demand = {task.name: min(1.0, task.body.grid / FULL_GRID) if task.body.grid else 1.0 for task in level}
        speed = min(1.0, left / sum(demand.values()))
        speeds |= dict.fromkeys(demand, speed)
        left = max(0.0, left - speed * sum(demand.values()))
    return speeds
