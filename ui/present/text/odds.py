"""The line that sums a prediction up, and how sure it is that a strategy is faster."""

from traces import units
from traces.documents.comparison import Prediction
from ui.present.text.tables import prediction_label


def verdict_line(prediction: Prediction) -> str:
    """The prediction in one line: turbodl: 25.8 ms, 1.16x (1.08 to 1.22), faster, fits in memory (3.00 GiB of 80 GiB)."""
    if not prediction.fits:
        return f"{prediction_label(prediction)}: {memory_words(prediction)}"
    judged = [] if prediction.gain is None else [prediction.gain.judged]
    return ", ".join([f"{prediction_label(prediction)}: {units.duration(prediction.step_s)}", *judged, memory_words(prediction)])


def memory_words(prediction: Prediction) -> str:
    """Whether the prediction fits the memory that it fills most, and by how much."""
    if not prediction.memories:
        return "fits" if prediction.fits else "does not fit"
    fullest = max(prediction.memories, key=lambda need: need.needed_bytes / need.size_bytes if need.size_bytes else 0.0)
    needed, size = (units.memory(count) for count in (fullest.needed_bytes, fullest.size_bytes))
    return f"fits in memory ({needed} of {size})" if prediction.fits else f"needs {needed}, {size} there"


def gain_words(interval: tuple[float, float] | None, probability: float | None) -> str:
    """What is known of a speed-up besides its value: its 90 % interval and how likely the step is shorter."""
    parts = [f"90 %: {units.factors(interval)}"] if interval is not None else []
    if probability is not None:
        parts.append(f"faster with a probability of {units.percent(probability, signed=False)}")
    return "; ".join(parts)
