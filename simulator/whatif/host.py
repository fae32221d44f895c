"""The rule host: a faster or slower host."""

from simulator.replay.replay import Replay
from simulator.whatif.edit import is_host, with_durations
from simulator.whatif.parsing import scaling
from traces import units

NAME = "host"
FORM = "host*=FACTOR"
ABOUT = "everything on the host (Python, dispatch, launches, data loading) takes FACTOR times as long"


def parse(rest: str) -> float:
    """Return the factor."""
    return scaling(rest)


def apply(replay: Replay, request: float) -> tuple[Replay, list[str]]:
    """Scale the time on host threads. The waiting time of a synchronization is not scaled: it follows from the device."""
    hosts = [task for task in replay.plan.tasks if is_host(task)]
    seconds = sum(task.body.duration_s for task in hosts)
    changed = with_durations(replay, {task.name: task.body.duration_s * request for task in hosts})
    return changed, [
        f"all {units.duration(seconds)} on host threads, gaps between recorded calls included, take {request:g} times as long;"
        " waiting for the device does not scale"
    ]
