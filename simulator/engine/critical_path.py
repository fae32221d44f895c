"""The critical path of a window: from its last end back through what released each task, with the reason it could not start earlier.

The host appears as a span of its own, from the moment it last had to wait to the launch that a task waited for.
"""

from collections.abc import Sequence

from simulator.engine.unroll import Unrolled
from simulator.plan.dependencies import Dependencies
from traces.timeline import Cause, CriticalSpan

#: By the codes of `engine.lanes`.
CAUSES = tuple(Cause)


def critical_path(
    run: Unrolled, dependencies: Dependencies, last: int, begin_s: float, hosts: Sequence[str] | None = None
) -> tuple[CriticalSpan, ...]:
    """The path to execution `last`, in order of time, back to what was running at `begin_s`.

    `hosts`: by task index, the name of the host lane that issues it; None where no launches are modelled.
    """
    path: list[CriticalSpan] = []
    number, until = last, run.end_s[last]
    while number >= 0 and until > begin_s:
        task = run.tasks[number % run.size]
        start, by = run.start_s[number], run.released_by[number]
        cause = CAUSES[run.cause[number]]
        if cause is Cause.LANE and _depends(run, dependencies, number, by):
            cause = Cause.DEPENDENCY  # another lane would not have started it earlier
        path.append(CriticalSpan(task.name, start, min(until, run.end_s[number]), cause, task.phase, task.layer))
        if cause is Cause.LAUNCH and hosts is not None and start > begin_s:
            waited = run.end_s[by] if by >= 0 else 0.0
            path.append(CriticalSpan(hosts[number % run.size], waited, start, Cause.LANE if by >= 0 else Cause.START, "host"))
        number, until = by, start
    return tuple(reversed(path))


def _depends(run: Unrolled, dependencies: Dependencies, number: int, on: int) -> bool:
    period, index = divmod(number, run.size)
    edges = dependencies.edges(period, run.iterations)[index]
    return any((period - edge.delta) * run.size + edge.index == on for edge in edges)
