"""A sample training for the tests of pages, pictures and the app."""

from traces.curves import Curve, largest_difference
from traces.training import TrainingRun


def training(iterations: int, *names: str, worst: float | None = 0.5, **changes) -> TrainingRun:
    """A training with one curve per name. Losses fall from 2 to the last loss, `worst`; each curve is slower than the one before."""
    fall = [2.0 / (1 + 0.1 * i) for i in range(iterations - 1)]
    curves = [
        Curve(name=name, losses=(*fall, worst), seconds=tuple((1 + 0.2 * number) * 0.01 * (i + 1) for i in range(iterations)))
        for number, name in enumerate(names)
    ]
    document = TrainingRun(
        job={"model": "lenet5", "image_size": None, "batch": 64, "optimizer": "momentum", "lr": 0.01, "precision": "fp32"},
        strategy="baseline", options={}, mode="eager", steps=iterations, step_s=0.01, step_runs_s=(0.01,), losses=(*fall, worst),
        peak_bytes={}, semantics={"staleness": 0}, data="digits <8x8>", curves=tuple(curves),
        max_loss_difference=largest_difference(curves[0], curves[1:]) if curves else None,
    )  # fmt: skip
    return document.model_copy(update=changes)
