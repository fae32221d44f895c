"""The rule network: a faster or slower network."""

from simulator.replay.replay import Replay
from simulator.whatif.edit import device_work, with_durations
from simulator.whatif.matching import total_words
from simulator.whatif.parsing import scaling
from traces.errors import StepcastError

NAME = "network"
FORM = "network*=FACTOR"
ABOUT = "the network is FACTOR times as fast: collectives take 1/FACTOR of their time"


def parse(rest: str) -> float:
    """Return the factor."""
    return scaling(rest, least=1e-6)


def apply(replay: Replay, request: float) -> tuple[Replay, list[str]]:
    """Divide the durations of collectives by the factor."""
    chosen = [task for task in device_work(replay) if task.body.category == "collective"]
    if not chosen:
        raise StepcastError(f"network*={request:g} changes nothing: the recording has no collectives")
    changed = with_durations(replay, {task.name: task.body.duration_s / request for task in chosen})
    return changed, [
        f"{total_words(chosen)} are collectives and take 1/{request:g} of their time; a duration recorded on one rank includes waiting for"
        " the others, which a faster network does not shorten, so that the change is an upper bound unless all ranks are given;"
        " latency scales like bandwidth"
    ]
