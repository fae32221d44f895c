"""What the picture and the chart of a validation have in common: one row for plain PyTorch and for every strategy that ran."""

from dataclasses import dataclass

from traces.documents.comparison import Validation
from traces.documents.verdict import Gain
from ui.present.text.labels import labelled_rows, plain_label


@dataclass(frozen=True)
class Row:
    """One row. In earlier documents plain PyTorch has no prediction.

    `gain`: over plain PyTorch, or over the baseline if plain PyTorch was not measured.
    """

    label: str
    predicted_s: float | None
    interval_s: tuple[float, float] | None
    measured_s: float
    runs_s: tuple[float, ...]
    gain: Gain | None
    predicted_speedup: float | None
    measured_speedup: float | None

    @property
    def seconds(self) -> tuple[float, ...]:
        """Every time that is drawn."""
        return (self.measured_s, *self.runs_s, *(self.interval_s or ()), *((self.predicted_s,) if self.predicted_s else ()))

    @property
    def factors(self) -> tuple[float, ...]:
        """Every speed-up that is drawn."""
        return () if self.gain is None else (self.gain.factor, *(self.gain.interval or ()))


def rows(validation: Validation) -> list[Row]:
    """The rows of a validation, plain PyTorch first."""
    gain_of = validation.gain_over_baseline if validation.reference_step_s is None else validation.gain_over_pytorch
    strategies = [
        Row(label, result.predicted_step_s, result.predicted_interval_s, result.measured_step_s, result.measured_runs_s,
            gain_of(result), result.predicted_speedup, result.measured_speedup)
        for label, result in labelled_rows(validation) if result.ok
    ]  # fmt: skip
    if not strategies or validation.reference_step_s is None or validation.pytorch is not None:
        return strategies
    plain_s, gain = validation.reference_step_s, validation.plain_speedup
    return [Row(plain_label(validation), None, None, plain_s, validation.reference_runs_s, None, None, gain), *strategies]


def rival_name(validation: Validation) -> str:
    """What the speed-ups of the rows are over."""
    return "the baseline" if validation.reference_step_s is None else "PyTorch"
