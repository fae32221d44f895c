"""The rule host: a faster or slower host."""

from simulator.replay.nodes import GRAPH_PAUSE, is_host
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import with_durations
from simulator.replay.whatif.matching import factor, speed, speed_words
from traces import units

NAME = "host"
FORM = "host 2x faster"
ABOUT = "everything on the host (Python, dispatch, launches, data loading) is faster; also slower, or free"
BUILT = {"host {speed}": "Python and launches are faster or slower"}
TRIED = {"host 2x faster": "Python and launches twice as fast"}
BOUNDS = {"host free": "no launches: the host is infinitely fast"}


def parse(rest: str) -> float:
    """Return what durations are multiplied by. `*=F` is the factor itself."""
    return factor(rest[2:]) if rest.startswith("*=") else speed(rest)


def apply(replay: Replay, request: float) -> tuple[Replay, list[str]]:
    """Scale the time on host threads. What follows from the device is not scaled: waiting in a synchronization, pauses of CUDA graphs."""
    hosts = [task for task in replay.plan.tasks if is_host(task) and GRAPH_PAUSE not in task.name]
    seconds = sum(task.body.duration_s for task in hosts)
    changed = with_durations(replay, {task.name: task.body.duration_s * request for task in hosts})
    return changed, [
        f"all {units.duration(seconds)} on host threads, gaps between recorded calls included: {speed_words(request)};"
        " waiting for the device does not scale"
    ]
