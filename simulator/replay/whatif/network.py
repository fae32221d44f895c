"""The rule network: a faster or slower network."""

from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import device_work, with_durations
from simulator.replay.whatif.matching import factor, speed, speed_words, total_words
from traces.errors import SchedcastError

NAME = "network"
FORM = "network 2x faster"
ABOUT = "collectives are faster; also slower, or free"
BUILT = {"network {speed}": "collectives are faster or slower"}
TRIED = {"network 2x faster": "collectives twice as fast"}
BOUNDS = {"network free": "no communication"}


def parse(rest: str) -> float:
    """Return what durations are multiplied by. `*=F` is the factor of the speed: durations are divided by it."""
    return 1 / factor(rest[2:], least=1e-6) if rest.startswith("*=") else speed(rest)


def apply(replay: Replay, request: float) -> tuple[Replay, list[str]]:
    """Scale the durations of collectives."""
    chosen = [task for task in device_work(replay) if task.body.category == "collective"]
    if not chosen:
        raise SchedcastError(f"network {speed_words(request)} changes nothing: the recording has no collectives, as on one rank")
    changed = with_durations(replay, {task.name: task.body.duration_s * request for task in chosen})
    return changed, [
        f"{total_words(chosen)} are collectives: {speed_words(request)}; a duration recorded on one rank includes waiting for"
        " the others, which a faster network does not shorten, so that the change is an upper bound unless all ranks are given;"
        " latency scales like bandwidth"
    ]
