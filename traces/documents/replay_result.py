"""The documents of `schedcast replay`, a recording compared with its simulation, and of `schedcast diff`, why one run's step is longer."""

from enum import StrEnum
from math import fsum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from traces.documents.base import Data, Document, Duration, Seconds
from traces.documents.rule_records import RuleRecord
from traces.documents.timeline import Timeline, faults

#: A replay whose mean or median step is longer or shorter than recorded by more than this share does not explain its recording. The 29 open
#: traces in `tests/simulator/replay/test_replay.py` replay within 1 %.
TOLERANCE = 0.02
#: Terms add up to the difference within this share of the longer step: rounding.
ROUNDING = 1e-9


class Contribution(Data):
    """A contribution to a term: its seconds per step, and the seconds of all work of its kind per step in A and in B."""

    label: str
    seconds: Seconds
    a_s: Seconds
    b_s: Seconds


WhatCompared = Literal["traces", "timelines", "validation"]


class DiffTerm(Data):
    """One term of the difference: the seconds by which it makes B's step longer. `contributions`: the largest first, without small ones."""

    part: str
    seconds: Seconds
    contributions: tuple[Contribution, ...] = ()


class Diff(Document):
    """B's step time less A's, in terms that add up to it. Document `schedcast.diff/1`.

    `compared`: two recorded traces, two timelines, or the predicted and the measured step of a validation. The last term may be a
    remainder, `remainder_s`: what the comparison does not explain. `aligned_share`: the share of the device seconds of both that is spent
    in work with a partner of the same name in the other; null for a validation, which compares a plan with itself. `steps`: how many of the
    first steps were compared.
    """

    schema_name = "schedcast.diff/1"
    kind = "diff"

    compared: WhatCompared
    a: str
    b: str
    a_step_s: Duration
    b_step_s: Duration
    difference_s: Seconds
    terms: tuple[DiffTerm, ...]
    remainder_s: Seconds
    steps: int = Field(ge=1)
    aligned_share: float | None
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        least_s = ROUNDING * max(self.a_step_s, self.b_step_s)
        if abs(self.b_step_s - self.a_step_s - self.difference_s) > least_s:
            raise ValueError("the difference is not that of the two steps")
        if abs(fsum(term.seconds for term in self.terms) - self.difference_s) > least_s:
            raise ValueError("the terms do not add up to the difference")
        return self


class Part(StrEnum):
    """What a device does at one moment of a step."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    OTHER_RANK = "other rank"
    COPIES = "copies"
    LOADER = "data loader"
    ALLOCATION = "allocation"
    HOST = "host"
    SYNCHRONIZATION = "synchronization"
    DEPENDENCY = "dependency"
    BETWEEN_KERNELS = "between kernels"
    UNEXPLAINED = "unexplained"


class StepPart(Data):
    """Time per step that a device spends on one thing, or idle for one reason, and its share of the step time."""

    part: Part
    seconds: float
    share: float


class HostWait(Data):
    """Time of a step in which devices waited for the host, by what the host did: the op or annotation that was open, or the call."""

    label: str
    seconds: float


class RankWait(Data):
    """Time of a step in which devices waited for a rank that came last to a collective."""

    rank: int
    seconds: float


class ReplayStep(Data):
    """One recorded iteration. `parts` sum to its recorded time. `waits`, `ranks`: the longest first."""

    name: str
    measured_s: float
    simulated_s: float
    parts: tuple[StepPart, ...] = ()
    waits: tuple[HostWait, ...] = ()
    ranks: tuple[RankWait, ...] = ()


class ChangedStep(Data):
    """One iteration after what-if rules. `parts` sum to its simulated time."""

    name: str
    seconds: float
    parts: tuple[StepPart, ...]


class StreamBusy(Data):
    """Busy seconds of one stream, per iteration."""

    device: str
    stream: str
    measured_s: float
    simulated_s: float


class MisplacedKernel(Data):
    """A kernel whose simulated start is far from its recorded start, and the reason for the simulated start."""

    task: str
    device: str
    stream: str
    measured_start_s: float
    simulated_start_s: float
    reason: str


class RuleAnswer(Data):
    """The simulated step time under one what-if rule, alone.

    `step_interval_s`: what the step may become where the rule's own costs are uncertain. Without an answer, `step_s`, `gain_s` and
    `speedup` are null. `reason` says why there is no answer, or no gain. `readable` is False if the text is not a rule. `label` is a short
    name for a rule with a long regular expression. `record`: how accurate the rule was on what others measured; null if nobody has.
    """

    rule: str
    label: str = ""
    about: str = ""
    step_s: float | None
    gain_s: float | None
    speedup: float | None
    step_interval_s: tuple[float, float] | None = None
    reason: str | None = None
    readable: bool = True
    assumptions: tuple[str, ...] = ()
    record: RuleRecord | None = None


class WhatIf(Data):
    """The effect of what-if rules on the mean step time. `speedup` is before/after; both are simulated.

    `rules` are those that were applied, one after another; `answers` has every rule that was asked, alone. `diagnosis` sums to the step
    time after the rules. `remark`: what to say before the answers if the replay does not explain the recording; else empty.
    """

    rules: tuple[str, ...]
    assumptions: tuple[str, ...]
    gpu_period_before_s: float
    gpu_period_after_s: float
    speedup: float | None
    answers: tuple[RuleAnswer, ...] = ()
    diagnosis: tuple[StepPart, ...] = ()
    steps: tuple[ChangedStep, ...] = ()
    remark: str = ""


class StragglerCost(Data):
    """The seconds by which the step is longer because a rank's time of one kind is not the median rank's.

    `rank`: None for all ranks together. `kind`: None for all kinds together. Kinds are terms of `schedcast diff`, such as kernels.
    """

    rank: int | None
    kind: str | None
    seconds: float


class KernelUse(Data):
    """Kernels of one class in a step: seconds, their share of all kernels', and how much of the GPU they use.

    `known_share`: the share of the seconds for which shapes tell the work; `flops`, `bytes` are those of it, per step. `peak_share`,
    `bandwidth_share`: of the data sheet's figures; `roofline_share`: the least time of the work over its time. None if the GPU
    is not known.
    """

    name: str
    seconds: Duration
    share: float
    known_share: float
    flops: float = 0.0
    bytes: float = 0.0
    peak_share: float | None = None
    bandwidth_share: float | None = None
    roofline_share: float | None = None


class Roofline(Data):
    """The share of their GPU that the kernels of the first rank use. `mfu`: seconds of the counted FLOPs at the peak, over the step.

    `kernels`: by class. `modules`: by the class of the innermost `nn.Module`, forward and backward; empty if modules were not recorded.
    `gpu`: the driver's name, "" if not recorded. `known_gpu`: whether there is a data sheet. `shapes`: whether shapes were recorded.
    """

    gpu: str = ""
    known_gpu: bool = False
    shapes: bool = False
    mfu: float | None = None
    kernels: tuple[KernelUse, ...] = ()
    modules: tuple[KernelUse, ...] = ()


class MemoryPeak(Data):
    """The peak memory of a GPU's allocator during a recording.

    `reserved_bytes`: None in older traces, whose `allocated_bytes` are those above what was allocated when the recording began.
    `memory_bytes`: the GPU's memory, None if not recorded.
    """

    rank: int
    device: int
    allocated_bytes: int
    reserved_bytes: int | None
    memory_bytes: int | None


class ReplayResult(Document):
    """A replayed recording. Document `schedcast.replay/1`.

    The period is the GPU's time per iteration, end to end: the mean of all steps but the first. The median step represents the others in
    words and pictures; `slow_steps` are the positions in `steps` of those that take much longer, the slowest first. `error` = simulated /
    measured − 1 of the period. `disagreement` is that of the period or of the median step, whichever is larger, if the replay does not
    explain the recording: it is beyond `TOLERANCE`, and no changes are ranked; else null. `doubt` is a sentence that says why the waits of
    several ranks are uncertain, "" if they are certain. `streams` is the number of streams, `unmatched_kernels` the number of device
    operations whose launch was not recorded. Communication is exposed while a device runs collectives and no kernels. `diagnosis` sums to
    the recorded period. `ladder` and `bounds` answer the default changes, the largest gain first, unless only one step was recorded;
    `ladder_left_out` are rules that were skipped for lack of time. `stragglers`, if there are several ranks, says how much each rank, and
    each kind of work, delays the job.
    `roofline`: how far the kernels of the first rank are from what its GPU could do. `memory`: peaks, if the recording has memory events.
    `timeline`: the median step as it was recorded; None in older documents.
    """

    schema_name = "schedcast.replay/1"
    kind = "replay"

    gpu_period_measured_s: float
    gpu_period_simulated_s: float
    error: float | None
    disagreement: float | None = None
    doubt: str = ""
    steps: Annotated[tuple[ReplayStep, ...], Field(min_length=1)]
    kernels: int = Field(ge=0)
    streams: int = Field(ge=0)
    unmatched_kernels: int = Field(ge=0)
    exposed_communication_measured_s: float
    exposed_communication_simulated_s: float
    busy: tuple[StreamBusy, ...] = ()
    misplaced: tuple[MisplacedKernel, ...] = ()
    median_step: Annotated[int, Field(ge=0)] = 0
    slow_steps: tuple[Annotated[int, Field(ge=0)], ...] = ()
    notes: tuple[str, ...] = ()
    diagnosis: tuple[StepPart, ...] = ()
    ladder: tuple[RuleAnswer, ...] = ()
    bounds: tuple[RuleAnswer, ...] = ()
    ladder_left_out: tuple[str, ...] = ()
    what_if: WhatIf | None = None
    stragglers: tuple[StragglerCost, ...] = ()
    roofline: Roofline = Roofline()
    memory: tuple[MemoryPeak, ...] = ()
    timeline: Timeline | None = None

    @model_validator(mode="after")
    def _names_its_steps(self) -> Self:
        if self.timeline is not None and (fault := next(faults(self.timeline), None)) is not None:
            raise ValueError(f"of the timeline, {fault}")
        if max(self.median_step, *self.slow_steps, 0) >= len(self.steps):
            raise ValueError(f"there are {len(self.steps)} steps; the median or a slow one is none of them")
        return self
