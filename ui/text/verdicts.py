"""Which schedule is fastest, and whether it is faster than plain PyTorch: the headline of a validation."""

from collections.abc import Sequence
from dataclasses import dataclass

from traces import units
from traces.comparison import PYTORCH, Validation, ValidationResult
from traces.speedup import Verdict
from ui.text.labels import plain_threads, row_labels

BASELINE = "baseline"


@dataclass(frozen=True)
class Gain:
    """How many times as fast one step is as another: the factor, its 90 % interval if it is known, and what they say in a word."""

    factor: float
    interval: tuple[float, float] | None
    verdict: Verdict

    @property
    def text(self) -> str:
        """The factor with its interval: 1.16x (1.08 to 1.22)."""
        return units.speedup(self.factor, self.interval)


def against_pytorch(validation: Validation, result: ValidationResult) -> Gain | None:
    """The measured gain of a strategy over plain PyTorch; None if either was not measured, and for plain PyTorch itself.

    Documents without intervals are judged by the run-to-run noise.
    """
    if result.strategy == PYTORCH:
        return None
    factor = result.against_pytorch
    if factor is None and validation.reference_step_s and result.measured_step_s:
        factor = validation.reference_step_s / result.measured_step_s
    return None if factor is None else _gain(factor, result.against_pytorch_interval, result.verdict_against_pytorch, validation)


def against_baseline(validation: Validation, result: ValidationResult) -> Gain | None:
    """The measured gain of a strategy over the baseline; None if either was not measured, and for the baseline itself."""
    if result.measured_speedup is None or result.strategy == BASELINE:
        return None
    return _gain(result.measured_speedup, result.measured_speedup_interval, result.verdict, validation)


def _gain(factor: float, interval: tuple[float, float] | None, told: Verdict | None, validation: Validation) -> Gain:
    if interval is not None and told is not None:
        return Gain(factor, interval, told)
    noise = validation.aa_spread or 0.0
    return Gain(factor, None, "cannot tell" if abs(factor - 1) <= noise else "faster" if factor > 1 else "slower")


def headline_gain(validation: Validation) -> Gain | None:
    """The gain of the fastest strategy over plain PyTorch, or over the baseline if plain PyTorch was not measured."""
    fastest = validation.fastest
    if fastest is None:
        return None
    return against_baseline(validation, fastest) if validation.reference_step_s is None else against_pytorch(validation, fastest)


def headline(validation: Validation) -> str:
    """The result in one sentence, with the step times behind it. An empty string if there is nothing to compare."""
    gain = headline_gain(validation)
    if gain is None:
        return ""
    rival_s = _rival_s(validation)
    times = f"{units.duration(validation.fastest.measured_step_s)} per step, {units.duration(rival_s)} with {_rival(validation)}"
    return f"{short_headline(validation)}: {times}."


def headlines(validations: Sequence[Validation]) -> list[str]:
    """The headlines of several validations; each begins with the model if there is more than one."""
    lines = [(validation.model, headline(validation)) for validation in validations]
    return [f"{model}: {line}" if len(validations) > 1 else line for model, line in lines if line]


def short_headline(validation: Validation) -> str:
    """The result in a few words, for titles. An empty string if there is nothing to compare."""
    gain = headline_gain(validation)
    if gain is None:
        return ""
    label = row_labels(validation.results)[validation.results.index(validation.fastest)]
    rival = _rival(validation)
    return {
        "faster": f"{label} is {gain.text} as fast as {rival}",
        "same": f"No schedule is faster than {rival}: {label} is the same, {gain.text}",
        "slower": f"No schedule is faster than {rival}: the fastest, {label}, reaches {gain.text}",
        "cannot tell": f"Too noisy to tell whether {label} is faster than {rival}, at {gain.text}",
    }[gain.verdict]


def _rival(validation: Validation) -> str:
    """What the fastest strategy is compared with."""
    if validation.reference_step_s is None:
        return "the baseline"
    threads = plain_threads(validation)
    return f"plain PyTorch on {threads}" if threads else "plain PyTorch"


def _rival_s(validation: Validation) -> float | None:
    if validation.reference_step_s is not None:
        return validation.reference_step_s
    return next((result.measured_step_s for result in validation.ran if result.strategy == BASELINE), None)
