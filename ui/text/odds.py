"""How sure a prediction is that a strategy is faster, and the line that sums a prediction up."""

from traces import units
from traces.comparison import PYTORCH, Prediction
from traces.speedup import SAME
from ui.text.tables import prediction_label

#: Probabilities from which a strategy is called faster, and likely faster; below 1 minus these it is slower and likely slower.
SURE, LIKELY = 0.95, 0.75


def odds_word(probability: float | None, factor: float | None = None) -> str:
    """A probability of being faster in a word. `factor`: the speed-up; one that is next to 1 and not sure is "about the same"."""
    if probability is None:
        return ""
    if factor is not None and abs(factor - 1) <= SAME and 1 - SURE < probability < SURE:
        return "about the same"
    for limit, words in ((SURE, ("faster", "slower")), (LIKELY, ("likely faster", "likely slower"))):
        if probability >= limit:
            return words[0]
        if probability <= 1 - limit:
            return words[1]
    return "cannot tell"


def verdict_word(prediction: Prediction) -> str:
    """Whether the strategy is faster than plain PyTorch, or than the baseline if PyTorch was not predicted; empty if that is unknown."""
    return odds_word(*reversed(_gain(prediction)[::2]))


def _gain(prediction: Prediction) -> tuple[float | None, tuple[float, float] | None, float | None]:
    """The speed-up, its interval and the probability of being faster, against plain PyTorch if that was predicted."""
    if prediction.against_pytorch is not None:
        return prediction.against_pytorch, prediction.against_pytorch_interval, prediction.faster_than_pytorch_probability
    return prediction.speedup, prediction.speedup_interval, prediction.faster_probability


def verdict_line(prediction: Prediction) -> str:
    """The prediction in one line: turbodl: 25.8 ms, 1.16x (1.08 to 1.22), likely faster, fits 3.00 GiB of 80 GiB."""
    if not prediction.fits:
        return f"{prediction_label(prediction)}: {memory_words(prediction)}"
    factor, interval, _ = _gain(prediction)
    gain = [units.speedup(factor, interval), verdict_word(prediction)] if prediction.strategy != PYTORCH and factor is not None else []
    return ", ".join(
        filter(None, [f"{prediction_label(prediction)}: {units.duration(prediction.step_s)}", *gain, memory_words(prediction)])
    )


def memory_words(prediction: Prediction) -> str:
    """Whether the prediction fits the memory that it fills most, and by how much."""
    if not prediction.memories:
        return "fits" if prediction.fits else "does not fit"
    fullest = max(prediction.memories, key=lambda need: need.needed_bytes / need.size_bytes if need.size_bytes else 0.0)
    needed, size = (units.memory(count) for count in (fullest.needed_bytes, fullest.size_bytes))
    return f"fits {needed} of {size}" if prediction.fits else f"needs {needed}, {size} there"


def gain_words(interval: tuple[float, float] | None, probability: float | None) -> str:
    """What is known of a speed-up besides its value: its 90 % interval and how likely the step is shorter."""
    parts = [f"90 %: {units.factors(interval)}"] if interval is not None else []
    if probability is not None:
        parts.append(f"faster with a probability of {units.percent(probability, signed=False)}")
    return "; ".join(parts)
