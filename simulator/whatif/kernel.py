"""The rule kernel: faster or slower kernels."""

from simulator.replay.replay import Replay
from simulator.whatif.edit import with_durations
from simulator.whatif.matching import matching, total_words
from simulator.whatif.parsing import factor, pattern_and

NAME = "kernel"
FORM = "kernel:REGEX*=FACTOR"
ABOUT = "kernels (also copies and collectives) whose name contains the regular expression take FACTOR times as long"


def parse(rest: str) -> tuple[str, float]:
    """Return the regular expression and the factor."""
    regex, number = pattern_and(rest, "*=")
    return regex, factor(number)


def apply(replay: Replay, request: tuple[str, float]) -> tuple[Replay, list[str]]:
    """Scale the recorded durations of the matching kernels."""
    regex, scale = request
    chosen = matching(replay, regex)
    changed = with_durations(replay, {task.name: task.body.duration_s * scale for task in chosen})
    return changed, [f"{total_words(chosen)} matching {regex!r} take {scale:g} times as long; all others keep their recorded durations"]
