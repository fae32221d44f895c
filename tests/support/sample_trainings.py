"""A sample training for the tests of pages, pictures and the app."""

from traces.documents.training import Curve, Evaluation, TrainingRun, largest_difference, reached, wins


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


def evaluated(*names: str, seeds: int = 1, target: float = 0.9) -> TrainingRun:
    """A training of 20 iterations with several seeds and a target, predicted for another machine.

    A curve's last accuracy is 94 % for the first name and 97 % for the second, with the middle seed; a percent differs between two seeds.
    Each curve's steps take 0.01 s more than those of the curve before.
    """
    curves = []
    for seed in range(seeds):
        for number, curve in enumerate(training(20, *names).curves):
            percents = [10, 84 + 3 * number + seed - seeds // 2, 94 + 3 * number + seed - seeds // 2]
            points = [Evaluation(iteration=10 * i, train_accuracy=1.0, test_accuracy=p / 100) for i, p in enumerate(percents)]
            changes = {"seed": seed, "evaluations": tuple(points), "predicted_step_s": 0.01 * (number + 1)}
            curves.append(curve.model_copy(update=changes))
    changes = {"predicted_on": "2xgtx1060", "target": target, "reached": tuple(reached(curve, target) for curve in curves)}
    return training(20, *names, curves=tuple(curves), wins=wins(curves, target), **changes)
