"""The five trends that the optimizer-fusion paper reports, judged from predicted step times. Nothing here is fitted to them."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.reproduce.verdicts import EQUAL, judged, trend, undecided
from traces.reproduction import Check

#: A batch counts as bound by the GPU's work if the baseline takes at least this many times its step at the smallest batch.
GROWN = 2.0
#: Saved time is independent of the batch if it differs from its mean by at most this share.
STEADY = 0.2
#: Gains have converged if their difference at the largest batch is at most this share of their difference at the small batch.
CONVERGED = 0.5
#: The small batch of the second trend is the smallest of a sweep that is not below this; below, control overhead counts (third trend).
SMALL = 8


@dataclass(frozen=True)
class Point:
    """One batch of a sweep: step times in seconds."""

    batch: int
    baseline_s: float
    forward_fusion_s: float
    backward_fusion_s: float

    @property
    def gains(self) -> tuple[float, float]:
        """Speed-ups of forward-fusion and backward-fusion."""
        return self.baseline_s / self.forward_fusion_s, self.baseline_s / self.backward_fusion_s


def trends(
    sweeps: dict[str, Sequence[Point]],
    saving: str,
    models: Sequence[tuple[str, float, float]],
    optimizers: Sequence[tuple[str, float, float]],
) -> tuple[Check, ...]:
    """Judge all five. `saving`: the model of the first trend; `models` and `optimizers`: the arguments of the last two."""
    return (
        saved_is_independent(sweeps.get(saving, [])),
        parallelism_helps_small_batches(sweeps),
        control_costs_at_tiny_batch(sweeps),
        larger_layers_gain_less(models),
        costly_optimizers_gain_more(optimizers),
    )


def saved_is_independent(points: Sequence[Point]) -> Check:
    """Judge (1): in the roofline regime the saved time does not depend on the batch. `points`: one model's sweep."""
    name, claim = "saved-time", "once the GPU's work bounds the step, the time saved does not depend on the batch"
    if not points:
        return undecided(name, claim, "no batch could be predicted")
    points = sorted(points, key=lambda point: point.batch)
    large = [point for point in points if point.baseline_s >= GROWN * points[0].baseline_s]
    if len(large) < 2:
        return undecided(name, claim, f"{len(large)} batches of at least 2 have a step {GROWN:g} times that of the smallest batch")
    deviation, phrases, figures = 0.0, [], {}
    for short, field in (("FF", "forward_fusion_s"), ("BF", "backward_fusion_s")):
        saved = [point.baseline_s - getattr(point, field) for point in large]
        mean = sum(saved) / len(saved)
        own = max(abs(value - mean) for value in saved) / abs(mean) if mean else float(len(saved))
        deviation = max(deviation, own)
        phrases.append(f"{short} saves {', '.join(f'{value * 1e3:.2f}' for value in saved)} ms")
        figures[f"{short} stray"] = own
    batches = ", ".join(str(point.batch) for point in large)
    why = "more of the updates' launches hide behind the GPU's work as the batch grows, or the content of the cache changes with the batch"
    result = f"at batch {batches}: {'; '.join(phrases)}: {deviation:.0%} off the mean at most"
    return judged(name, claim, deviation <= STEADY, result, figures, why)


def parallelism_helps_small_batches(sweeps: dict[str, Sequence[Point]]) -> Check:
    """Judge (2): at a small batch backward-fusion beats forward-fusion, at a large batch they converge.

    `sweeps`: by model; the claim must hold for every model.
    """
    name, claim = "converging", "at small batch BF beats FF; at large batch they converge"
    phrases, right, figures = [], 0, {}
    for model, points in sweeps.items():
        points = sorted((point for point in points if point.batch >= SMALL), key=lambda point: point.batch)
        if len(points) < 2:
            continue
        small, large = (gains[1] - gains[0] for gains in (points[0].gains, points[-1].gains))
        right += small > EQUAL and abs(large) <= CONVERGED * small
        figures |= {f"{model} BF-FF at {points[0].batch}": small, f"{model} BF-FF at {points[-1].batch}": large}
        phrases.append(f"{model} {small:+.3f} at {points[0].batch}, {large:+.3f} at {points[-1].batch}")
    if not phrases:
        return undecided(name, claim, "no model has two batches")
    why = (
        "on one stream BF has locality but no parallelism, a model of many short ops still waits for the host at the small batch, where no"
        " schedule can gain, and the largest batch that the paper runs is not large for every model"
    )
    result = f"BF - FF as claimed in {right} of {len(phrases)} models: {'; '.join(phrases)}"
    return judged(name, claim, right == len(phrases), result, figures, why)


def control_costs_at_tiny_batch(sweeps: dict[str, Sequence[Point]]) -> Check:
    """Judge (3): at a tiny batch, control overhead makes both slower than the baseline. `sweeps`: by model; the smallest batch counts."""
    name, claim = "tiny-batch", "at a tiny batch both are slower than the baseline"
    if not sweeps:
        return undecided(name, claim, "no model was predicted")
    phrases, right, figures = [], 0, {}
    for model, points in sweeps.items():
        point = min(points, key=lambda point: point.batch)
        forward, backward = point.gains
        right += max(forward, backward) < 1 - EQUAL
        figures |= {f"{model} FF": forward, f"{model} BF": backward}
        phrases.append(f"{model} {forward:.3f}x, {backward:.3f}x at {point.batch}")
    why = (
        "the Python time of the paper's hooks is not in the model: every schedule issues the same launches at the same cost"
        " (a second stream adds its events)"
    )
    result = f"FF, BF as claimed in {right} of {len(phrases)} models: {'; '.join(phrases)}"
    return judged(name, claim, right == len(phrases), result, figures, why)


def larger_layers_gain_less(models: Sequence[tuple[str, float, float]]) -> Check:
    """Judge (4): more parameters per layer, less gain. `models`: name, average parameters per layer, speed-up."""
    why = "the depth of the model and how far the host lags behind the GPU matter more here than the size of its layers"
    claim = "the more parameters per layer, the less gain"
    return trend("layer-size", claim, why, "BF gains", [m[1] for m in models], [m[2] for m in models], -1)


def costly_optimizers_gain_more(optimizers: Sequence[tuple[str, float, float]]) -> Check:
    """Judge (5): the speed-up rises with the optimizer's share of the step. `optimizers`: name, share, speed-up."""
    why = "a long update hidden behind the GPU's work saves no more than a short one"
    claim = "the speed-up rises with the optimizer's share of the step"
    return trend("optimizer-share", claim, why, "BF gains", [o[1] for o in optimizers], [o[2] for o in optimizers], 1)
