"""Predictions for figures 4 to 7 of the optimizer-fusion paper. The paper draws curves without numbers, so nothing published is shown."""

from collections.abc import Iterator

from simulator.reproduce.fusion_cases import BF, BF2, CALLED, FF, SHORT, Scope, StepsByStrategy, Sweeps, first_missing, optimizer_share
from simulator.reproduce.predicting import BASELINE
from traces.reproduction import Chart, Panel, Series


def charts(scope: Scope, sweeps: Sweeps, sizes: dict[str, float], optimizers: dict[str, StepsByStrategy]) -> Iterator[Chart]:
    """Yield speed-ups and saved time over the batch, and speed-ups over the layer size and over the optimizer's share."""
    predicted = {model: {batch: steps for batch, steps in batches.items() if not first_missing(steps)} for model, batches in sweeps.items()}
    panels = tuple(Panel(title=model, series=_lines(batches, _gain)) for model, batches in predicted.items() if batches)
    yield Chart(name="sweeps", title="Predicted speed-up over the batch", x_label="batch", y_label="speed-up", panels=panels, level=1.0)
    model = scope.phases[0]
    saved = (Panel(title="", series=_lines(predicted.get(model, {}), _saved_ms)),)
    title = f"Predicted time saved, {model}"
    yield Chart(name="saved", title=title, x_label="batch", y_label="ms saved", panels=saved, level=0.0)
    same = {model: (sizes[model], batches[scope.same_batch]) for model, batches in predicted.items() if scope.same_batch in batches}
    title = f"Predicted speed-up by model, batch {scope.same_batch}"
    yield _scatter("layers", title, "average parameters per layer", same, log_x=True)
    shares = {name: (optimizer_share(steps[BASELINE]), steps) for name, steps in optimizers.items() if not first_missing(steps)}
    title = f"Predicted speed-up by optimizer, {model}, batch {scope.phases[1]}"
    yield _scatter("optimizers", title, "optimizer's share of the baseline's step", shares)


def _gain(steps: StepsByStrategy, text: str) -> float:
    return steps[BASELINE].step_s / steps[text].step_s


def _saved_ms(steps: StepsByStrategy, text: str) -> float:
    return 1e3 * (steps[BASELINE].step_s - steps[text].step_s)


def _lines(batches: dict[int, StepsByStrategy], value) -> tuple[Series, ...]:
    x = tuple(map(float, batches))
    return tuple(Series(name=CALLED[text], x=x, y=tuple(value(steps, text) for steps in batches.values())) for text in (FF, BF, BF2))


def _scatter(name: str, title: str, x_label: str, shown: dict[str, tuple[float, StepsByStrategy]], log_x: bool = False) -> Chart:
    """Return a chart of named points with one series per schedule."""
    named = sorted(shown.items(), key=lambda item: item[1][0])
    x, names = tuple(x for _, (x, _) in named), tuple(name for name, _ in named)
    series = (Series(name=CALLED[text], x=x, y=tuple(_gain(steps, text) for _, (_, steps) in named), names=names) for text in SHORT)
    panels = (Panel(title="", series=tuple(series)),)
    return Chart(name=name, title=title, x_label=x_label, y_label="speed-up", panels=panels, level=1.0, log_x=log_x, joined=False)
