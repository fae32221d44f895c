"""Predictions and measurements compared: the documents of `schedcast predict` and `schedcast validate`, and the timelines of one strategy.

Floats are finite or null. A quantity that does not exist, such as the measured time of a skipped strategy, is null, never 0 and never NaN.
"""

from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AliasChoices, Field, model_validator

from traces.documents.base import Bytes, Data, Document, Duration, Length, Seconds
from traces.documents.step import Step
from traces.documents.timeline import AtPeak, CriticalSpan, DeviceUse, Timeline
from traces.documents.verdict import Gain, for_choice, gain, is_busy
from traces.documents.whole_training import WholeTraining

#: The row of plain PyTorch, the user's own loop.
PYTORCH = "pytorch"
#: The same with each step captured in one CUDA graph, as torch.cuda.graph does: the fair competitor of a schedule on a GPU.
PYTORCH_GRAPH = "pytorch-graph"
#: Plain PyTorch whose optimizer is called by hooks.
PYTORCH_HOOKS = "pytorch-hooks"
#: What runs in PyTorch's own loop, with its costs.
LOOPS = (PYTORCH, PYTORCH_HOOKS)
#: The user's own loop on several devices, a process on each: DistributedDataParallel, and FSDP2 (`fully_shard`).
PYTORCH_DDP, PYTORCH_FSDP = "pytorch-ddp", "pytorch-fsdp"
PARALLEL_LOOPS = (PYTORCH_DDP, PYTORCH_FSDP)
#: What else a user runs without a schedule.
OTHER_LOOPS = (PYTORCH_GRAPH, *PARALLEL_LOOPS)
#: The same step as a plan on one stream.
BASELINE = "baseline"

#: When the keys of a validation were measured: in the rounds that also measured its steps, or before.
INTERLEAVED: Final = "interleaved"
PROFILE: Final = "profile"
#: A prediction over a measurement, minus 1.
RelativeError = Annotated[float, Field(gt=-1)]
#: A measured speed-up that differs from 1 by at most the A/A spread plus this margin is no clear gain or loss; its sign is not scored.
SIGN_MARGIN = 0.03
#: Above this `Validation.swing` the machine itself changed its speed. Of 41 validations on a 2-core virtual machine with neighbors, 32 are
#: between 1.02 and 1.26, and nine, some of which had errors of a third, between 1.35 and 2.05.
UNSTEADY = 1.3


class Shares(Data):
    """The shares of the predicted task seconds with measured, fitted and guessed costs. They add up to 1."""

    measured: float = Field(ge=0, le=1)
    fitted: float = Field(ge=0, le=1)
    guessed: float = Field(ge=0, le=1)


class Change(Data):
    """One part of the difference between two step times: `part` in words, and by how many seconds it makes the step longer."""

    part: str
    seconds: Seconds


#: From this share of a GPU's memory on, PyTorch's allocator has so little room that it frees cached memory and asks the driver again
#: (cudaFree waits for the GPU). Of published steps of language models on H100, tensors divided among at most 8, all that reserved more than
#: 70 of 80 GB took 3 to 16 times as long as similar steps (nanotron's table of the Ultra-Scale Playbook).
AT_LIMIT = 0.88


class MemoryNeed(Data):
    """The peak need of a memory, and its size (or the limit that was given for it).

    `allocated_bytes`: the tensors of the plan and temporary tensors of its tasks. `reserved_bytes`: the memory that PyTorch's allocator
    reserves on a GPU for them. `needed_bytes`: on a GPU, the reserved bytes plus those of the driver and the CUDA context, else the
    allocated ones. Both are None in older documents without these fields, and `reserved_bytes` for memories that are no GPU's or are too
    small for the tensors alone.
    """

    name: str
    needed_bytes: int = Field(ge=0)
    size_bytes: int = Field(ge=0)
    allocated_bytes: int | None = Field(default=None, ge=0)
    reserved_bytes: int | None = Field(default=None, ge=0)

    @property
    def at_limit(self) -> bool:
        """Whether a plan fits a GPU's memory with so little room left that its step time is uncertain."""
        return self.needed_bytes <= self.size_bytes and (self.reserved_bytes or 0) >= AT_LIMIT * self.size_bytes


class Prediction(Document, Step):
    """The predicted step time of one strategy on one machine, with its explanation. Document `schedcast.prediction/1`.

    `tasks` counts task executions over all simulated periods. `simulate_wall_s` is the time of the simulation alone, after dependencies
    are derived and costs are resolved. `bubble_share` is 1 − busy device seconds / (devices · step). `at_peak` lists the contents of each
    device's memory at its peak.

    `speedup_interval` is the 90 % interval of `speedup`, from draws of the costs that the baseline and the strategy share. `waterfall`
    explains `step_s` − `baseline_step_s`, and is exact in its sum. `memories` compares the need of each memory with its size. If the
    plan does not fit, `largest_batch` is the largest batch that is predicted to fit: None if none does, or if none was sought
    (`batch_sought`). `would_fit`: other changes by which it is predicted to fit, if any were tried (`changes_sought`). `at_limit`: the
    strategies, this one's or those that it is compared with, that do not fit, or fit with so little memory left that their step time is
    uncertain (`MemoryNeed.at_limit`): no verdict compares them.

    `pytorch_step_s` is the predicted step time of plain PyTorch, the user's own loop; `against_pytorch` is that over `step_s`.
    `settled` is False if the schedule neither repeats itself nor has the same mean in longer runs, so that `step_s` is only an estimate.
    `faster_probability` and `faster_than_pytorch_probability`: how likely this step is shorter than the baseline's and than PyTorch's.

    `measured_share`: the share of the predicted task seconds with measured costs, the smallest of this step's and of those that it
    is compared with; None if all of them come from specifications, whose accuracy is known, and in older documents without this field.

    `unused_devices`: devices that the job was given and the plan does not use. `checkpoint`: which blocks repeat their forward in backward.
    `mfu`: the share of the GPUs' peak FLOP/s that the step's products and convolutions use (docs/glossary.md); None on a CPU, and in older
    documents without this field. `shown`: how many of the step's microbatches the timeline and the plan show; empty for all.
    `assumed`: assumptions about what the user has not specified. `loss`: how the loss differs from that of the whole batch, if it does.
    `tokens`: those of a step; 0 if the model reads no rows of tokens. `devices_used`: how many devices the plan uses, also if it shows
    only one, which represents all; 0 in older documents without this field. `usual`: by the name of the option, what the job has because
    nobody stated it, and people train such models with it. `too_large`: the strategies, this one's or those that it is compared with,
    that do not fit in memory: nobody is faster than a loop that cannot run. `training`: what a whole one takes; None for a model that
    reads no tokens, and for a plan that does not fit.
    """

    schema_name = "schedcast.prediction/1"
    kind = "prediction"

    strategy: str
    options: dict[str, Any]
    mode: str
    precision: str
    baseline_step_s: Duration | None
    speedup: float | None
    devices: tuple[DeviceUse, ...]
    fits: bool
    exposed_transfer_s: float
    bubble_share: float
    tasks: int
    simulate_wall_s: float
    shares: Shares
    critical_path: tuple[CriticalSpan, ...]
    at_peak: tuple[AtPeak, ...] = ()
    speedup_interval: tuple[float, float] | None = None
    waterfall: tuple[Change, ...] = ()
    memories: tuple[MemoryNeed, ...] = ()
    largest_batch: int | None = None
    batch_sought: bool = False
    would_fit: tuple[str, ...] = ()
    changes_sought: bool = False
    at_limit: tuple[str, ...] = ()
    pytorch_step_s: Duration | None = None
    against_pytorch: float | None = None
    against_pytorch_interval: tuple[float, float] | None = None
    faster_probability: float | None = Field(default=None, ge=0, le=1)
    faster_than_pytorch_probability: float | None = Field(default=None, ge=0, le=1)
    measured_share: float | None = Field(default=None, ge=0, le=1)
    settled: bool = True
    unused_devices: int = Field(default=0, ge=0)
    checkpoint: str = ""
    mfu: float | None = Field(default=None, gt=0)
    shown: str = ""
    assumed: tuple[str, ...] = ()
    loss: str = ""
    tokens: int = Field(default=0, ge=0)
    devices_used: int = Field(default=0, ge=0)
    usual: dict[str, str] = {}
    too_large: tuple[str, ...] = ()
    training: WholeTraining | None = None

    @model_validator(mode="after")
    def _explains_a_difference(self) -> Self:
        if self.waterfall and self.baseline_step_s is None:
            raise ValueError("a waterfall starts from the baseline's step, which is missing")
        return self

    @property
    def gain_over_pytorch(self) -> Gain | None:
        """The gain over plain PyTorch; None for plain PyTorch itself, or if it was not predicted or does not fit."""
        return None if self.strategy == PYTORCH else self._gain(self.against_pytorch, self.against_pytorch_interval, PYTORCH)

    @property
    def gain_over_baseline(self) -> Gain | None:
        """The gain over the baseline; None for the baseline itself, or if it was not predicted or does not fit."""
        return None if self.strategy == BASELINE else self._gain(self.speedup, self.speedup_interval, BASELINE)

    @property
    def gain(self) -> Gain | None:
        """The gain over plain PyTorch, or over the baseline if plain PyTorch was not predicted; None for plain PyTorch itself."""
        if self.strategy == PYTORCH:
            return None
        return self.gain_over_baseline if self.against_pytorch is None else self.gain_over_pytorch

    @property
    def compared_with(self) -> str:
        """What `gain` compares with: plain PyTorch, or the baseline if plain PyTorch was not predicted."""
        return BASELINE if self.against_pytorch is None else PYTORCH

    @property
    def compared_by(self) -> dict[str, tuple[float | None, tuple[float, float] | None]]:
        """How many times as fast it is as plain PyTorch and as the baseline, each with its interval; None over one that does not fit."""
        every = {
            PYTORCH: (self.against_pytorch, self.against_pytorch_interval),
            BASELINE: (self.speedup, self.speedup_interval),
        }
        return {name: (None, None) if name in self.too_large else own for name, own in every.items()}

    @property
    def is_at_limit(self) -> bool:
        """Whether the plan fits with so little memory left that its step time is uncertain."""
        return self.fits and self.strategy in self.at_limit

    def _gain(self, factor: float | None, interval: tuple[float, float] | None, other: str) -> Gain | None:
        if factor is None or other in self.too_large:
            return None
        return gain(factor, interval, measured_share=self.measured_share, at_limit=not {self.strategy, other}.isdisjoint(self.at_limit))


class ValidationResult(Data):
    """The row of one strategy in a validation. `error` is predicted/measured − 1. Speed-ups are against the executor's baseline.

    The row of plain PyTorch, which no executor runs, has the strategy `pytorch`.

    `calibration` says when the keys were measured: "interleaved" with the steps, or before them ("profile"). The drift of the reference
    kernel corrects only costs from another time. With a profile, `error_drift_corrected` is predicted · anchor_drift / measured − 1. With
    interleaved keys, whose costs contain the drift already, it equals `error`. Older documents of interleaved runs have a value that was
    corrected twice; `scored_error` does not use it.

    `tracing_overhead`: the relative slow-down of the run that measured task times, compared with the run that measured step times (GPU
    only). Peak bytes are those of the device that needs most, and, if they were stored, by device (or by memory, if all its devices are
    counted together).

    `max_grad_error` and `max_param_error` compare with plain PyTorch. `reference_grad_error` and `reference_param_error` compare plain
    PyTorch with itself, run twice: on a GPU its numbers may differ from run to run, and a plan's may by a multiple of that. If a plan's
    numbers are beyond the tolerance, other runs are from parameters that are one rounding away. `first_step_error` is the largest
    difference from plain PyTorch after the first step, which nothing but the tolerance excuses.

    Intervals are 90 % intervals. That of `predicted_speedup` comes from draws of the costs that both plans share, those of
    `measured_speedup` and of `against_pytorch` (plain PyTorch's step time over this one) from rounds in which both ran; see
    `Validation.comparisons`. `waterfall` explains `measured_step_s` − `predicted_step_s`, and is exact in its sum.
    """

    strategy: str
    options: dict[str, Any]
    predicted_step_s: Duration | None
    predicted_interval_s: tuple[float, float] | None
    measured_step_s: Duration | None
    measured_runs_s: tuple[Length, ...]
    error: RelativeError | None
    error_drift_corrected: RelativeError | None
    predicted_speedup: float | None
    measured_speedup: float | None
    max_grad_error: float | None
    max_param_error: float | None
    semantics: dict[str, Any]
    predicted_peak_bytes: Bytes | None
    measured_peak_bytes: Bytes | None
    predicted_peak_bytes_by_device: dict[str, Bytes] | None = None
    measured_peak_bytes_by_device: dict[str, Bytes] | None = None
    shares: Shares | None
    calibration: Literal["interleaved", "profile"] | None = None
    tracing_overhead: float | None = Field(default=None, validation_alias=AliasChoices("tracing_overhead", "twin_overhead"))
    predicted_speedup_interval: tuple[float, float] | None = None
    measured_speedup_interval: tuple[float, float] | None = None
    against_pytorch: float | None = None
    against_pytorch_interval: tuple[float, float] | None = None
    waterfall: tuple[Change, ...] = ()
    reference_grad_error: float | None = None
    reference_param_error: float | None = None
    first_step_error: float | None = None
    status: str = Field(pattern=r"^(ok|skipped: .+)$")

    @model_validator(mode="after")
    def _ran_with_times(self) -> Self:
        if self.status == "ok" and (self.predicted_step_s is None or self.measured_step_s is None):
            raise ValueError("a strategy that ran has a predicted and a measured step time")
        return self

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def steps_s(self) -> tuple[float, float]:
        """The predicted and the measured step time, in seconds. Raises ValueError if the strategy did not run."""
        if self.predicted_step_s is None or self.measured_step_s is None:
            raise ValueError(f"{self.strategy} did not run: {self.status}")
        return self.predicted_step_s, self.measured_step_s

    @property
    def scored_error(self) -> float | None:
        """The error that counts wherever errors are summarized or scored; None if the strategy did not run.

        It is `error` if the keys were measured in the rounds, else `error_drift_corrected`.
        """
        return self.error if self.calibration == INTERLEAVED else self.error_drift_corrected

    def sign_right(self, aa_spread: float) -> bool | None:
        """Whether the predicted and the measured speed-up are on the same side of 1.

        None if the measured speed-up differs from 1 by at most `aa_spread` + SIGN_MARGIN, or if one of them is missing.
        """
        if self.measured_speedup is None or self.predicted_speedup is None:
            return None
        gain = self.measured_speedup - 1
        if abs(gain) <= aa_spread + SIGN_MARGIN:
            return None
        return (self.predicted_speedup - 1) * gain > 0


class Validation(Document):
    """Predicted against measured step times of one job under several strategies. Document `schedcast.validation/1`.

    `aa_spread` is the spread of the baseline interleaved with itself, as a share of its step time; `reference_step_s` is plain PyTorch.
    `reference_threads` is how many threads it used (None on a GPU), and `reference_runs_s` are its step times in the rounds that count.
    `reference_waiting` is what its threads did between ops if the user's OMP_WAIT_POLICY said so, "active" or "passive", else ""; None in
    documents from before plain PyTorch ran in the user's own environment. `anchor_drift` is the reference kernel's time during the steps as
    a multiple of its time at calibration, a diagnosis of the machine. `image_size` is None for the model's own. `pytorch` is the row of
    plain PyTorch, predicted and measured (`reference_step_s`) like the strategies, but not run by an executor; None in documents from
    before it was predicted. `parallel`: the same of `OTHER_LOOPS`, whose numbers are not compared: its own loops on several devices and, on
    one GPU, each step in one graph.

    `busy_share` is the share of the cores that other processes, and the hypervisor, took during the rounds that count (None: unknown).
    Above `traces.documents.verdict.BUSY` the document is no measurement. `comparisons`: for how many rows together the 90 % intervals of
    measured speed-ups are valid, so that the fastest row may be chosen; 1 in older documents.
    """

    schema_name = "schedcast.validation/1"
    kind = "validation"

    model: str
    batch_size: int = Field(gt=0)
    optimizer: str
    precision: str
    mode: str
    device: dict[str, Any]
    anchor_drift: float | None
    aa_spread: float | None
    reference_step_s: Duration | None
    results: tuple[ValidationResult, ...]
    image_size: int | None = None
    reference_threads: int | None = None
    reference_waiting: str | None = None
    reference_runs_s: tuple[Duration, ...] = ()
    pytorch: ValidationResult | None = None
    parallel: tuple[ValidationResult, ...] = ()
    busy_share: float | None = Field(default=None, ge=0)
    comparisons: int = Field(default=1, ge=1)

    @property
    def busy(self) -> bool:
        """Whether other processes took so much of the machine that this is no measurement."""
        return is_busy(self.busy_share)

    @property
    def swing(self) -> float | None:
        """The ratio of the quartiles of a schedule's steps, as the median over the schedules; None if none ran four times.

        On a virtual machine, this shows neighbors that use memory bandwidth or affect the clock: `busy_share` does not show them.
        """
        quartiles = [quantiles(result.measured_runs_s, n=4) for result in self.ran if len(result.measured_runs_s) >= 4]
        return median(high / low for low, _, high in quartiles) if quartiles else None

    @property
    def unsteady(self) -> bool:
        """Whether the machine changed its speed so much during the steps that errors say little about the prediction."""
        return self.swing is not None and self.swing > UNSTEADY

    def gain_over_pytorch(self, result: ValidationResult) -> Gain | None:
        """The measured gain of a strategy over plain PyTorch; None if either was not measured, and for plain PyTorch itself."""
        factor = result.against_pytorch
        if factor is None and self.reference_step_s and result.measured_step_s:
            factor = self.reference_step_s / result.measured_step_s
        return None if result.strategy == PYTORCH else self._gain(factor, result.against_pytorch_interval)

    def gain_over_baseline(self, result: ValidationResult) -> Gain | None:
        """The measured gain of a strategy over the baseline; None if either was not measured, and for the baseline itself."""
        return None if result.strategy == BASELINE else self._gain(result.measured_speedup, result.measured_speedup_interval)

    def _gain(self, factor: float | None, interval: tuple[float, float] | None) -> Gain | None:
        """A measured gain, wide enough for a choice among all rows. Without an interval, the run-to-run noise decides its verdict."""
        if factor is None:
            return None
        if interval is not None:
            return gain(factor, for_choice(factor, interval, len(self.ran), self.comparisons), busy_share=self.busy_share)
        noise = 1 + (self.aa_spread or 0.0)
        return replace(gain(factor, (factor / noise, factor * noise), busy_share=self.busy_share), interval=None)

    @property
    def headline_gain(self) -> Gain | None:
        """The gain of the fastest strategy over plain PyTorch, or over the baseline if plain PyTorch was not measured."""
        if self.fastest is None:
            return None
        return self.gain_over_baseline(self.fastest) if self.reference_step_s is None else self.gain_over_pytorch(self.fastest)

    @property
    def ran(self) -> tuple[ValidationResult, ...]:
        """The results of strategies that were not skipped."""
        return tuple(result for result in self.results if result.ok)

    @property
    def rows(self) -> tuple[ValidationResult, ...]:
        """The row of plain PyTorch, if there is one, and those of its parallel loops, then the results."""
        return (*(() if self.pytorch is None else (self.pytorch,)), *self.parallel, *self.results)

    @property
    def calibration(self) -> str | None:
        """When the keys were measured, "interleaved" with the steps or before ("profile"); None if nothing ran or the rows do not say."""
        return next((r.calibration for r in self.ran), None)

    @property
    def scored_errors(self) -> tuple[float, ...]:
        """The signed errors that count (`ValidationResult.scored_error`) of the strategies that ran."""
        return tuple(r.scored_error for r in self.ran if r.scored_error is not None)

    @property
    def median_abs_error(self) -> float | None:
        """Median absolute error that counts; None if nothing ran."""
        return median(map(abs, self.scored_errors)) if self.scored_errors else None

    @property
    def worst(self) -> ValidationResult | None:
        """The result with the largest absolute error that counts; None if nothing ran."""
        scored = [(abs(r.scored_error), r) for r in self.ran if r.scored_error is not None]
        return max(scored, key=lambda pair: pair[0], default=(0.0, None))[1]

    @property
    def signs(self) -> tuple[int, int]:
        """(right, scored): how many speed-ups were predicted on the right side of 1, out of those whose sign is scored (`sign_right`)."""
        scored = [right for r in self.ran if (right := r.sign_right(self.aa_spread or 0.0)) is not None]
        return sum(scored), len(scored)

    @property
    def plain_speedup(self) -> float | None:
        """Measured speed-up of plain PyTorch against the executor's baseline; None if either was not measured."""
        baseline_s = next((r.measured_step_s for r in self.ran if r.strategy == BASELINE), None)
        return baseline_s / self.reference_step_s if baseline_s and self.reference_step_s else None

    @property
    def fastest(self) -> ValidationResult | None:
        """The strategy with the shortest measured step time; None when nothing ran."""
        return min(self.ran, key=lambda result: result.steps_s[1], default=None)


@dataclass(frozen=True, slots=True)
class PhaseSeconds:
    """Task seconds of one phase within one steady period; 0 for a phase that does not occur."""

    predicted_s: float
    measured_s: float


@dataclass(frozen=True)
class Comparison:
    """The predicted and the measured timeline of one strategy, with its row of the validation."""

    predicted: Timeline
    measured: Timeline
    result: ValidationResult

    @property
    def strategy(self) -> str:
        return self.result.strategy

    def phases(self) -> dict[str, PhaseSeconds]:
        """Task seconds per phase within one steady period; tasks that run at the same time both count."""
        predicted, measured = phase_seconds(self.predicted), phase_seconds(self.measured)
        return {phase: PhaseSeconds(predicted.get(phase, 0.0), measured.get(phase, 0.0)) for phase in predicted | measured}


def phase_seconds(timeline: Timeline) -> dict[str, float]:
    """Span seconds per phase within the steady period. A span that crosses its border counts with the part inside."""
    start, end = timeline.window_s
    seconds: dict[str, float] = {}
    for span in timeline.window():
        seconds[span.phase] = seconds.get(span.phase, 0.0) + min(span.end_s, end) - max(span.start_s, start)
    return seconds
