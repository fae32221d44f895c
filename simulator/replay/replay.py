"""A replay, and its simulation.

A replay is a table: its rows are tasks in issue order, and what follows from the rows is a column, by position. A change of durations makes
a new column of durations and shares all others.

Recorded durations include contention, so that a replayed task takes its duration whatever else runs. A task therefore starts when the task
before it in its lane and everything that it waits for have ended, and the simulation is one walk over the tasks in issue order.
`simulator.engine` gives the same timeline, in a hundred times the time.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from simulator.engine.summary import summarize
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.plan.task import Resource, Task
from simulator.replay.nodes import ARRIVAL, GAP, HOST, is_host
from traces.documents.timeline import Cause, CriticalSpan, Span, Timeline

#: Ends that differ by less are simultaneous.
DIGITS = 9


#: Phases of the spans of host threads: time between recorded calls, and the calls.
PYTHON, LAUNCHING = "python", "launch"


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One recorded iteration: its first and last device task in issue order, and its recorded length."""

    name: str
    first_task: str
    last_task: str
    measured_s: float


class Rows:
    """Tasks in issue order, and columns that no change of durations touches."""

    def __init__(self, tasks: Iterable[Task], **columns: Any):
        """`columns`: those that are known already."""
        self.tasks = tuple(tasks)
        #: What others derive from the rows alone, by name.
        self.derived: dict[object, Any] = {}
        self.__dict__.update(columns)

    @cached_property
    def position(self) -> Mapping[str, int]:
        """The position of every task, by name."""
        return {task.name: index for index, task in enumerate(self.tasks)}

    @cached_property
    def on_host(self) -> list[bool]:
        """Whether a task is time on a host thread."""
        host = Resource.HOST
        return [task.body.resource is host for task in self.tasks]

    @cached_property
    def lanes(self) -> list[tuple[str, int]]:
        """The lane of every task; those of one lane are one object."""
        lanes = [(task.device, task.stream) for task in self.tasks]
        known = {lane: lane for lane in dict.fromkeys(lanes)}
        return [known[lane] for lane in lanes]

    @cached_property
    def after(self) -> list[tuple[int, ...]]:
        """The positions of the tasks that a task waits for, in addition to the one before it in its lane."""
        position = self.position
        return [tuple([position[name] for name in task.after]) if task.after else () for task in self.tasks]

    @cached_property
    def durations_s(self) -> list[float]:
        """The durations of the tasks."""
        return [task.body.duration_s for task in self.tasks]

    @cached_property
    def before(self) -> list[int]:
        """The position of the previous task in the lane of a task; -1 if there is none."""
        last: dict[tuple[str, int], int] = {}
        before = []
        for position, lane in enumerate(self.lanes):
            before.append(last.get(lane, -1))
            last[lane] = position
        return before

    @cached_property
    def launch_of(self) -> Mapping[str, str]:
        """By device task, the host task that launched it: the last host task that it waits for. Device tasks without one are omitted."""
        on_host, launch_of = self.on_host, {}
        for task, after, host in zip(self.tasks, self.after, on_host, strict=True):
            launch = None if host else next((other for other in reversed(after) if on_host[other]), None)
            if launch is not None:
                launch_of[task.name] = self.tasks[launch].name
        return launch_of

    @cached_property
    def waiting(self) -> Set[str]:
        """The host tasks that wait for a device: synchronizations."""
        rows = zip(self.tasks, self.after, self.on_host, strict=True)
        return {task.name for task, after, host in rows if host and not all(self.on_host[other] for other in after)}


def predecessor(rows: Rows, ends_s: Sequence[float | None], position: int) -> int:
    """Return the position of the task that ended last of all that a task waited for: its edges, and the previous task in its lane.

    `ends_s`: by position. Of several that ended at the same time, work of a device comes before the host. Tasks without an end count as
    absent. -1 if the task waited for nothing.
    """
    before = rows.before[position]
    others = rows.after[position] if before < 0 else (*rows.after[position], before)
    ended = [(end_s, other) for other in others if (end_s := ends_s[other]) is not None]
    if len(ended) < 2:
        return ended[0][1] if ended else -1
    return max(ended, key=lambda each: (round(each[0], DIGITS), not rows.on_host[each[1]]))[1]


@dataclass(frozen=True)
class Replay:
    """A recording that can be simulated.

    `notes` tell what was assumed because the recording does not contain it. `recorded` is the recorded timeline of the device work and the
    host threads under the tasks' names; the simulation does not use it. `doubt`: why the waits of ranks are uncertain; "" if they are
    certain. `changed_s`: durations other than those of the rows, by position.
    """

    rows: Rows
    machine: Machine
    steps: tuple[RecordedStep, ...]
    notes: tuple[str, ...]
    recorded: Timeline | None = None
    doubt: str = ""
    changed_s: Mapping[int, float] = field(default_factory=dict)

    @cached_property
    def durations_s(self) -> list[float]:
        """The duration of every task."""
        durations_s = self.rows.durations_s.copy()
        for position, seconds in self.changed_s.items():
            durations_s[position] = seconds
        return durations_s

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks in issue order."""
        tasks = list(self.rows.tasks)
        for position, seconds in self.changed_s.items():
            tasks[position] = replace(tasks[position], body=replace(tasks[position].body, duration_s=seconds))
        return tuple(tasks) if self.changed_s else self.rows.tasks

    @property
    def plan(self) -> Plan:
        """The tasks as a plan, which the engine can simulate."""
        return Plan("replay", self.tasks, {}, {})

    @property
    def recording(self) -> Timeline:
        """`recorded`. Raises ValueError for a replay without it, which was made without a recording."""
        if self.recorded is None:
            raise ValueError("this replay carries no recorded timeline; build it from traces")
        return self.recorded

    @property
    def position(self) -> Mapping[str, int]:
        """The position of every task in issue order, by name."""
        return self.rows.position

    @cached_property
    def arrivals(self) -> Mapping[str, str]:
        """The arrival task by joined collective: it is the task before the collective in its lane."""
        arrival_of: dict[str, str] = {}
        waiting: dict[tuple[str, int], str] = {}
        for task in self.rows.tasks:
            if ARRIVAL in task.name:
                waiting[task.lane] = task.name
            elif task.lane in waiting:
                arrival_of[task.name] = waiting.pop(task.lane)
        return arrival_of


def simulated_times(replay: Replay) -> dict[str, tuple[float, float]]:
    """Return start and end of every task, by name in issue order.

    A work is followed by the usual gap between two works of a stream (`Device.task_overhead_s`), for which those that wait for it wait too;
    its end is the one before the gap.

    >>> from simulator.machine.machine import Device, Memory
    >>> from simulator.plan.bodies.host import Host, Recorded
    >>> devices = Device("host", "cpu", 1, {}, "ram"), Device("cuda:0", "gpu", 132, {}, "hbm")
    >>> machine = Machine("recorded", devices, (Memory("ram", 0, 1.0, 0), Memory("hbm", 0, 1.0, 0)))
    >>> launch = Task("launch", Host(1.0, "cudaLaunchKernel"), "host")
    >>> kernel = Task("gemm", Recorded("gemm", "kernel", duration_s=3.0), "cuda:0", after=("launch",))
    >>> simulated_times(Replay(Rows((launch, kernel)), machine, steps=(), notes=()))
    {'launch': (0.0, 1.0), 'gemm': (1.0, 4.0)}
    """
    starts_s, ends_s = _start_and_end_s(replay)
    return dict(zip(replay.position, zip(starts_s, ends_s, strict=True), strict=True))


def _start_and_end_s(replay: Replay) -> tuple[list[float], list[float]]:
    gap_of = {device.name: device.task_overhead_s for device in replay.machine.devices}
    rows = replay.rows
    free_s = dict.fromkeys(rows.lanes, 0.0)
    starts_s: list[float] = []
    freed_s: list[float] = []
    ends_s: list[float] = []
    for lane, after, duration_s in zip(rows.lanes, rows.after, replay.durations_s, strict=True):
        gap_s, start_s = gap_of[lane[0]], free_s[lane]
        for other in after:
            if freed_s[other] > start_s:
                start_s = freed_s[other]
        free_s[lane] = end_s = start_s + (duration_s + gap_s)
        freed_s.append(end_s)
        starts_s.append(start_s)
        ends_s.append(max(start_s, end_s - gap_s))
    return starts_s, ends_s


def simulate_replay(replay: Replay) -> Timeline:
    """Simulate a replay from its durations and dependencies."""
    starts_s, ends_s = _start_and_end_s(replay)
    in_order = spans_of(replay.rows, list(zip(starts_s, ends_s, strict=True)))
    window_s = (0.0, max(ends_s, default=0.0))
    summary = summarize(replay.plan, in_order, window_s, 1, {})
    return Timeline(
        kind="predicted",
        spans=in_order,
        step_s=window_s[1],
        window_s=window_s,
        devices=summary.devices,
        critical_path=_critical_path(replay, starts_s, ends_s),
        bubble_share=summary.bubble_share,
        exposed_transfer_s=summary.exposed_transfer_s,
        period_lengths_s=(window_s[1],),
    )


def spans_of(rows: Rows, times_s: Sequence[tuple[float, float] | None]) -> tuple[Span, ...]:
    """Return the spans of the tasks that have times, in order of start. `times_s`: start and end by position."""
    name_of = {lane: lane_name(task) for lane, task in dict(zip(rows.lanes, rows.tasks, strict=True)).items()}
    spans = [
        Span(task.name, task.device, name_of[lane], *own_s, span_phase(task) if on_host else task.phase, task.layer)
        for task, lane, on_host, own_s in zip(rows.tasks, rows.lanes, rows.on_host, times_s, strict=True)
        if own_s is not None
    ]
    return tuple(sorted(spans, key=attrgetter("start_s")))


def lane_name(task: Task) -> str:
    """Return the name of a task's lane in timelines: a stream of a device, a thread of the host."""
    return f"{'thread' if task.device == HOST else 'stream'} {task.stream}"


def span_phase(task: Task) -> str:
    """Return the phase of a task's span. Time on a host thread is Python between calls, or a call such as a launch."""
    if not is_host(task):
        return task.phase
    return PYTHON if task.body.label == GAP else LAUNCHING


def _critical_path(replay: Replay, starts_s: Sequence[float], ends_s: Sequence[float]) -> tuple[CriticalSpan, ...]:
    """Return the path from the task that ends last back to one that waited for nothing, in order of time."""
    tasks, path = replay.rows.tasks, []
    position = max(reversed(range(len(tasks))), key=ends_s.__getitem__, default=-1)
    while position >= 0:
        task, before = tasks[position], predecessor(replay.rows, ends_s, position)
        cause = _cause(task, tasks[before] if before >= 0 else None)
        path.append(CriticalSpan(task.name, starts_s[position], ends_s[position], cause, span_phase(task), task.layer))
        position = before
    return tuple(reversed(path))


def _cause(task: Task, before: Task | None) -> Cause:
    if before is None:
        return Cause.START
    if before.device == HOST and task.device != HOST:
        return Cause.LAUNCH
    return Cause.DEPENDENCY if before.name in task.after else Cause.LANE
