"""The rule kernel: faster or slower kernels."""

from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import with_durations
from simulator.replay.whatif.matching import factor, is_speed, matching, pattern_and, pattern_and_speed, speed_words, total_words

NAME = "kernel"
FORM = "kernel:/REGEX/ 2x faster"
ABOUT = "kernels (also copies) whose name contains the expression, or of a class such as convolutions, are faster; also slower, or free"
BUILT = {"kernel:/{regex}/ {speed}": "kernels are faster or slower"}


def parse(rest: str) -> tuple[str, float]:
    """Return the regular expression, and what durations are multiplied by. `:REGEX*=F` states the factor itself."""
    if is_speed(rest) or "*=" not in rest:
        return pattern_and_speed(rest)
    regex, number = pattern_and(rest, "*=")
    return regex, factor(number)


def apply(replay: Replay, request: tuple[str, float]) -> tuple[Replay, list[str]]:
    """Scale the recorded durations of the matching kernels."""
    regex, scale = request
    chosen = matching(replay, regex)
    changed = with_durations(replay, {task.name: task.body.duration_s * scale for task in chosen})
    return changed, [f"{total_words(chosen)} matching {regex!r}: {speed_words(scale)}; all others keep their recorded durations"]
