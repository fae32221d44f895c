"""Busy shares, bubble and exposed transfers in a window of a timeline, predicted or measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.engine.world import World
from simulator.plan.dependencies import Dependencies
from simulator.plan.plan import Plan
from simulator.plan.task import COLLECTIVE, TRANSFER
from traces.documents.timeline import Cause, CriticalSpan, DeviceUse, Span, busy_seconds

_MOVING = (TRANSFER, COLLECTIVE)


@dataclass(frozen=True, slots=True)
class Summary:
    """`exposed_s`: by device that moves anything, seconds per step of transfers or collectives without computing at the same time."""

    devices: tuple[DeviceUse, ...]
    bubble_share: float
    exposed_s: dict[str, float]

    @property
    def exposed_transfer_s(self) -> float:
        """The exposed seconds of the worst device."""
        return max(self.exposed_s.values(), default=0.0)


def summarize(plan: Plan, spans: Sequence[Span], window_s: tuple[float, float], steps: float, peak_bytes: dict[str, int]) -> Summary:
    """Summarize the plan's devices in `window_s`, which holds `steps` steps.

    A device is busy while it computes. A transfer counts for both its ends. bubble = 1 − Σ busy seconds / (devices · window).
    """
    start, end = window_s
    length = end - start
    ends_of = {task.name: task.body.ends for task in plan.tasks if task.body.ends is not None}
    computing: dict[str, list[Span]] = {device: [] for device in plan.devices}
    moving: dict[str, list[Span]] = {device: [] for device in plan.devices}
    for span in spans:
        if span.end_s <= start or span.start_s >= end:
            continue
        if span.phase in _MOVING or span.task in ends_of:
            for device in dict.fromkeys(ends_of.get(span.task, (span.device,))):
                if device in moving:
                    moving[device].append(span)
        else:
            computing[span.device].append(span)
    busy = {device: busy_seconds(computing[device], start, end) for device in plan.devices}
    exposed = {d: (busy_seconds(computing[d] + moving[d], start, end) - busy[d]) / steps for d in plan.devices if moving[d]}
    uses = tuple(DeviceUse(d, busy[d] / length if length else 0.0, peak_bytes.get(d, 0)) for d in plan.devices)
    bubble = 1.0 - sum(busy.values()) / (len(busy) * length) if length else 0.0
    return Summary(uses, bubble, exposed)


# The critical path of a window: from its last end back through what each task waited for, with the reason it did not start earlier.
# The host has a separate span, from the moment it last had to wait to the launch that a task waited for.


#: By the codes of `engine.world`.
CAUSES = tuple(Cause)


def critical_path(
    world: World, dependencies: Dependencies, last: int, begin_s: float, hosts: Sequence[str] | None = None
) -> tuple[CriticalSpan, ...]:
    """The path to execution `last`, in order of time, back to what was running at `begin_s`.

    `hosts`: by task index, the name of the host lane that issues the task; None if launches are not modeled.
    """
    path: list[CriticalSpan] = []
    tasks, size = world.program.tasks, world.program.size
    number, until = last, world.end_s[last]
    while number >= 0 and until > begin_s:
        task = tasks[number % size]
        start, waited_for = world.start_s[number], world.waited_for[number]
        cause = CAUSES[world.cause[number]]
        if cause is Cause.LANE or cause is Cause.DEPENDENCY:
            kinds = _kinds(world, dependencies, number, waited_for)
            if "message" in kinds:
                cause = Cause.LINK  # it waited for its turn, not for data
            elif kinds:
                cause = Cause.DEPENDENCY  # it would not have started earlier on another lane
        path.append(CriticalSpan(task.name, start, min(until, world.end_s[number]), cause, task.phase, task.layer))
        if cause is Cause.LAUNCH and hosts is not None and start > begin_s:
            host_start, host_cause = (world.end_s[waited_for], Cause.LANE) if waited_for >= 0 else (0.0, Cause.START)
            path.append(CriticalSpan(hosts[number % size], host_start, start, host_cause, "host"))
        number, until = waited_for, start
    return tuple(reversed(path))


def _kinds(world: World, dependencies: Dependencies, number: int, on: int) -> list[str]:
    """The kinds of the dependencies of execution `number` on execution `on`; empty if it has none."""
    size = world.program.size
    period, index = divmod(number, size)
    edges = dependencies.edges(period, world.program.iterations)[index]
    return [edge.kind for edge in edges if (period - edge.delta) * size + edge.index == on]
