"""The rule host: a faster or slower host."""

from simulator.plan.task import Task
from simulator.replay.nodes import GRAPH_PAUSE
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import host_work, with_durations
from simulator.replay.whatif.loader import is_made
from simulator.replay.whatif.matching import factor, speed, speed_words
from traces import units
from traces.formats.recording import is_allocation

NAME = "host"
FORM = "host 2x faster"
ABOUT = "everything in the main process but allocation (Python, dispatch, launches, data loading) is faster; also slower, or free"
BUILT = {"host {speed}": "Python and launches are faster or slower"}
TRIED = {"host 2x faster": "Python and launches twice as fast"}
BOUNDS = {"host free": "no launches: the host is infinitely fast"}


def parse(rest: str) -> float:
    """Return what durations are multiplied by. `*=F` is the factor itself."""
    return factor(rest[2:]) if rest.startswith("*=") else speed(rest)


def apply(replay: Replay, request: float) -> tuple[Replay, list[str]]:
    """Scale the time on host threads. What follows from the device is not scaled: waiting in a synchronization, pauses of CUDA graphs.

    Neither are the driver's allocations, and the time in which worker processes make batches.
    """
    hosts = [task for task in host_work(replay) if not _has_its_own_pace(task)]
    seconds = sum(task.body.duration_s for task in hosts)
    changed = with_durations(replay, {task.name: task.body.duration_s * request for task in hosts})
    return changed, [
        f"all {units.duration(seconds)} on host threads, gaps between recorded calls included: {speed_words(request)};"
        " waiting for the device or for worker processes does not scale, nor does allocation"
    ]


def _has_its_own_pace(task: Task) -> bool:
    return GRAPH_PAUSE in task.name or is_made(task) or is_allocation(task.body.label)
