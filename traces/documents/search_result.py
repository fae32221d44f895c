"""The document of `schedcast search`: plans ranked by predicted step time, and how well the ranking agrees with measurements."""

from typing import Any, Self

from pydantic import Field, model_validator

from traces.documents.base import Bytes, Data, Document, Duration
from traces.documents.comparison import BASELINE, PYTORCH, Change
from traces.documents.measured_step import MeasuredStep
from traces.documents.step import Step
from traces.documents.verdict import Verdict, verdict
from traces.documents.whole_training import WholeTraining


class RankedPlan(Step):
    """One plan that was simulated. `plan` is its `NAME[:option=value,...]`, as `--strategy` takes it.

    If the search varies the job, `plan` ends with the variant's options, as in `fsdp --accumulate 4`; `accumulate` and `checkpoint` are the
    job's.

    `speedup` is against the baseline. `behind` is its step time over the best plan's, with the 90 % interval `behind_interval` from draws
    of the costs that both share; `probability` is the share of the draws in which it is the fastest plan that fits. `bound_s` is the lower
    bound of its step time, because of `bound_by`. `why_not` says why it does not fit in memory. `semantics` is that of the plan.
    `measured`: what an earlier validation measured of it on this machine. `mfu`: as in `Prediction`. `held_bytes`: the bytes allocated on
    the fullest device at its peak, by kind. `at_limit`: it fits with so little memory left that its step time is uncertain
    (`comparison.MemoryNeed`); such plans come after the others that fit, and are not compared with them.
    """

    plan: str
    strategy: str
    options: dict[str, Any]
    accumulate: int = 1
    checkpoint: str = "none"
    peak_bytes: Bytes
    peak_bytes_by_device: dict[str, Bytes]
    fits: bool
    speedup: float | None
    against_pytorch: float | None = None
    behind: float | None = None
    behind_interval: tuple[float, float] | None = None
    probability: float = Field(0.0, ge=0, le=1)
    bound_s: float
    bound_by: str
    why_not: str = ""
    measured: MeasuredStep | None = None
    semantics: dict[str, Any] = {}
    mfu: float | None = Field(default=None, ge=0)
    held_bytes: dict[str, Bytes] = {}
    at_limit: bool = False

    @property
    def text(self) -> str:
        """The strategy with its options, as `--strategy` takes it."""
        return self.plan.partition(" --")[0]

    @property
    def verdict(self) -> Verdict | None:
        """Whether the best plan is faster than this one; None if it does not fit, or for the best plan itself."""
        return verdict(self.behind_interval) if self.behind_interval is not None else None

    @property
    def tied(self) -> bool:
        """Whether the best plan is not distinguishably faster than this one, or is the same for all practical purposes."""
        return self.verdict in ("same", "cannot tell")


class PlainStep(Step):
    """The predicted step of a loop that users run without a schedule, with its 90 % interval, and earlier measurements of it on this
    machine.

    `strategy`: plain PyTorch's, or one of `PARALLEL_LOOPS`.
    """

    strategy: str = PYTORCH
    peak_bytes: Bytes
    fits: bool = True
    at_limit: bool = False
    measured: MeasuredStep | None = None


class PrunedPlan(Data):
    """A plan that was not simulated, because its step takes at least `bound_s` seconds (because of `bound_by`).

    `beaten_by` is a plan that fits and was simulated: its step is shorter by the factor `over`, so this one cannot win.
    """

    plan: str
    bound_s: float
    bound_by: str
    beaten_by: str = ""
    over: float | None = None


class RefusedPlan(Data):
    """A candidate that has no plan for this job and machine, and why.

    `excess_bytes`: by how much a memory is too small for it at least, if that is why; then it was not simulated.
    """

    plan: str
    why: str
    excess_bytes: Bytes = 0


class VerifiedPlan(Data):
    """A plan that ran. `predicted_step_s` is what the search said, `recalibrated_step_s` what measured costs say.

    `behind` is its measured step over that of the plan measured fastest, with the 90 % interval `behind_interval` (null for that plan).
    `status` is that of `ValidationResult`; the other figures are null if the plan was skipped.
    """

    plan: str
    status: str
    predicted_step_s: Duration
    recalibrated_step_s: Duration | None
    measured_step_s: Duration | None
    max_grad_error: float | None
    behind: float | None = None
    behind_interval: tuple[float, float] | None = None

    @property
    def tied(self) -> bool:
        """Whether the plan measured fastest is not distinguishably faster than this one."""
        return self.behind_interval is not None and verdict(self.behind_interval) in ("same", "cannot tell")


class Verification(Data):
    """How well the ranking agrees with measurements. `tau` is Kendall's rank correlation of the search's step times with the measured ones,
    None for fewer than two.

    `recalibrated_tau` is that of the predictions from measured costs. `predicted` is the plan that ran which the search put first, `chosen`
    the one that measured costs put first, `fastest` the one with the shortest measured step; `regret` is the measured step of `chosen` over
    that of `fastest`, minus 1. `held_out_regret` is the same of the plan measured fastest in half of the rounds, judged by the other half:
    the effect of noise on this choice. `aa_spread` is the difference of the baseline from itself. `busy_share`: that of the
    validation (`traces.documents.comparison.Validation`).
    """

    plans: tuple[VerifiedPlan, ...]
    tau: float | None
    recalibrated_tau: float | None
    chosen: str | None
    fastest: str | None
    regret: float | None
    aa_spread: float | None
    predicted: str | None = None
    held_out_regret: float | None = None
    busy_share: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _names_plans_that_ran(self) -> Self:
        ran = {plan.plan for plan in self.plans if plan.measured_step_s is not None}
        named = {"predicted": self.predicted, "chosen": self.chosen, "fastest": self.fastest}
        for field, plan in named.items():
            if plan not in ran and (plan is not None or (field == "fastest" and ran)):
                raise ValueError(f"{field} is not one of the plans that ran")
        return self


class SearchResult(Document):
    """Document `schedcast.search/1`. `plans` are ranked: those that fit in memory first, the fastest first.

    `best` is the `plan` of the first one or, once plans ran, of the one measured fastest; None if none fits. `bound_s` is the smallest
    lower bound of all candidates that may fit: no candidate takes less. `waterfall` explains the first plan's step − `baseline_step_s`,
    `rival_waterfall` that step − that of `rival`, the fastest plan of another family of strategies. `measured_share`: that of the first
    plan, of the baseline or of plain PyTorch, whichever is least, as in `Prediction`. `tokens`: of a step, if the model reads tokens.
    `training`: what a whole one takes with the first plan, if the model reads tokens. `usual`: as in `Prediction`.
    """

    schema_name = "schedcast.search/1"
    kind = "search"

    model: str
    batch_size: int = Field(gt=0)
    tokens: int | None = None
    image_size: int | None = None
    optimizer: str
    precision: str
    mode: str
    machine: str
    devices: int
    candidates: int
    plans: tuple[RankedPlan, ...]
    best: str | None
    pruned: tuple[PrunedPlan, ...] = ()
    refused: tuple[RefusedPlan, ...] = ()
    bound_s: float | None = None
    baseline_step_s: Duration | None = None
    pytorch_step_s: Duration | None = None
    pytorch: PlainStep | None = None
    parallel: tuple[PlainStep, ...] = ()
    measured_share: float | None = Field(default=None, ge=0, le=1)
    waterfall: tuple[Change, ...] = ()
    rival: str | None = None
    rival_waterfall: tuple[Change, ...] = ()
    verification: Verification | None = None
    training: WholeTraining | None = None
    usual: dict[str, str] = {}

    @property
    def winner(self) -> RankedPlan | None:
        """The plan that is predicted fastest."""
        return next(iter(self.fitting), None)

    @property
    def fitting(self) -> tuple[RankedPlan, ...]:
        """The plans that fit in memory, the fastest first."""
        return tuple(plan for plan in self.plans if plan.fits)

    @property
    def baseline_fits(self) -> bool:
        """Whether the baseline, if it was ranked, fits with room to spare. Nothing is called faster than a baseline that does not fit."""
        return all(plan.fits and not plan.at_limit for plan in self.plans if plan.plan == BASELINE)

    @property
    def gap(self) -> float | None:
        """The share by which the best plan's step is longer than the bound of all candidates."""
        return self.winner.step_s / self.bound_s - 1 if self.winner is not None and self.bound_s else None
