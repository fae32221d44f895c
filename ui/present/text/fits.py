"""A prediction that does not fit in memory, in sentences."""

from simulator.engine.memory.words import batch_words, holders_words, shortfall_words
from traces.documents.comparison import Prediction


def fit_words(prediction: Prediction) -> list[str]:
    """By how much the prediction does not fit, what holds the memory, and the largest batch that fits; no sentence if it fits."""
    if prediction.fits:
        return []
    shortfall = f": {shortfall_words(prediction.memories)}" if prediction.memories else ""
    held = [f"Memory: {holders_words(prediction.at_peak)}."] if prediction.at_peak else []
    batch = batch_words(prediction.largest_batch)
    return [f"{prediction.strategy} does not fit{shortfall}.", *held, f"{batch[:1].upper()}{batch[1:]}."]
