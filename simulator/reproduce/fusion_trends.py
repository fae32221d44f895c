"""The five trends that the optimizer-fusion paper reports, judged from predicted step times. Nothing here is fitted to them."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.reproduce.verdicts import EQUAL, judged, trend, undecided
from traces.reproduction import Check

#: The batch counts as bound by the GPU's work once the baseline takes this many times its step at the smallest batch.
GROWN = 2.0
#: Saved time is independent of the batch if it strays from its mean by no more than this share.
STEADY = 0.2
#: Gains have converged if, at the largest batch, their distance is at most this part of that at the small one.
CONVERGED = 0.5
#: The batch of the second trend's small end: the smallest of a sweep from here on. Below, control is what counts (third trend).
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
    """All five. `saving`: the model of the first; `models` and `optimizers`: as the last two take them."""
    return (
        saved_is_independent(sweeps.get(saving, [])),
        parallelism_helps_small_batches(sweeps),
        control_costs_at_tiny_batch(sweeps),
        larger_layers_gain_less(models),
        costly_optimizers_gain_more(optimizers),
    )


def saved_is_independent(points: Sequence[Point]) -> Check:
    """(1) In the roofline regime the time saved does not depend on the batch. `points`: one model's sweep."""
    name, claim = "saved-time", "once the GPU's work bounds the step, the time saved does not depend on the batch"
    if not points:
        return undecided(name, claim, "no batch could be predicted")
    points = sorted(points, key=lambda point: point.batch)
    large = [point for point in points if point.baseline_s >= GROWN * points[0].baseline_s]
    if len(large) < 2:
        return undecided(name, claim, f"{len(large)} batches of at least 2 have a step {GROWN:g} times that of the smallest batch")
    stray, said, figures = 0.0, [], {}
    for short, field in (("FF", "forward_fusion_s"), ("BF", "backward_fusion_s")):
        saved = [point.baseline_s - getattr(point, field) for point in large]
        mean = sum(saved) / len(saved)
        own = max(abs(value - mean) for value in saved) / abs(mean) if mean else float(len(saved))
        stray = max(stray, own)
        said.append(f"{short} saves {', '.join(f'{value * 1e3:.2f}' for value in saved)} ms")
        figures[f"{short} stray"] = own
    batches = ", ".join(str(point.batch) for point in large)
    why = "more of the updates' launches hide behind the GPU's work as the batch grows, or what the cache holds changes with the batch"
    return judged(name, claim, stray <= STEADY, f"at batch {batches}: {'; '.join(said)}: {stray:.0%} off the mean at most", figures, why)


def parallelism_helps_small_batches(sweeps: dict[str, Sequence[Point]]) -> Check:
    """(2) At small batch backward-fusion beats forward-fusion, at large they converge. `sweeps` by model; every model must show it."""
    name, claim = "converging", "at small batch BF beats FF; at large batch they converge"
    said, right, figures = [], 0, {}
    for model, points in sweeps.items():
        points = sorted((point for point in points if point.batch >= SMALL), key=lambda point: point.batch)
        if len(points) < 2:
            continue
        small, large = (gains[1] - gains[0] for gains in (points[0].gains, points[-1].gains))
        right += small > EQUAL and abs(large) <= CONVERGED * small
        figures |= {f"{model} BF-FF at {points[0].batch}": small, f"{model} BF-FF at {points[-1].batch}": large}
        said.append(f"{model} {small:+.3f} at {points[0].batch}, {large:+.3f} at {points[-1].batch}")
    if not said:
        return undecided(name, claim, "no model has two batches")
    why = (
        "on one stream BF has locality but no parallelism, a model of many short ops still waits for the host at the small batch, where no"
        " schedule can gain, and the largest batch that the paper runs is not large for every model"
    )
    return judged(name, claim, right == len(said), f"BF - FF by {right} of {len(said)} models as claimed: {'; '.join(said)}", figures, why)


def control_costs_at_tiny_batch(sweeps: dict[str, Sequence[Point]]) -> Check:
    """(3) At a tiny batch, control makes both slower than the baseline. `sweeps` by model; each one's smallest batch is looked at."""
    name, claim = "tiny-batch", "at a tiny batch both are slower than the baseline"
    if not sweeps:
        return undecided(name, claim, "no model was predicted")
    said, right, figures = [], 0, {}
    for model, points in sweeps.items():
        point = min(points, key=lambda each: each.batch)
        forward, backward = point.gains
        right += max(forward, backward) < 1 - EQUAL
        figures |= {f"{model} FF": forward, f"{model} BF": backward}
        said.append(f"{model} {forward:.3f}x, {backward:.3f}x at {point.batch}")
    why = (
        "what the paper's hooks cost in Python is not in the model: every schedule issues the same launches at the same price each"
        " (a second stream adds its events)"
    )
    return judged(name, claim, right == len(said), f"FF, BF by {right} of {len(said)} models as claimed: {'; '.join(said)}", figures, why)


def larger_layers_gain_less(models: Sequence[tuple[str, float, float]]) -> Check:
    """(4) More parameters per layer, less gain. `models`: name, average parameters per layer, speed-up."""
    why = "the depth of the model and how far the host lags behind the GPU decide more here than the size of its layers"
    claim = "the more parameters per layer, the less gain"
    return trend("layer-size", claim, why, "BF gains", [m[1] for m in models], [m[2] for m in models], -1)


def costly_optimizers_gain_more(optimizers: Sequence[tuple[str, float, float]]) -> Check:
    """(5) Speed-up rises with the optimizer's share of the step. `optimizers`: name, share, speed-up."""
    why = "a long update hidden behind the GPU's work saves no more than a short one"
    claim = "the speed-up rises with the optimizer's share of the step"
    return trend("optimizer-share", claim, why, "BF gains", [o[1] for o in optimizers], [o[2] for o in optimizers], 1)
