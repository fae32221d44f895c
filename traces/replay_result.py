"""The document of `stepcast replay`: a recording compared with its simulation."""

from pydantic import Field

from traces.documents import Data, Document


class ReplayStep(Data):
    """One recorded iteration."""

    name: str
    measured_s: float
    simulated_s: float


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


class WhatIf(Data):
    """The effect of what-if rules on the replay's period. `speedup` is before/after; both are simulated."""

    rules: tuple[str, ...]
    assumptions: tuple[str, ...]
    gpu_period_before_s: float
    gpu_period_after_s: float
    speedup: float | None


class ReplayResult(Document):
    """A replayed recording. Document `stepcast.replay/1`.

    The period is the GPU's time per iteration, end to end. `error` = simulated / measured − 1. `streams` is the number of streams,
    `unmatched_kernels` the number of device operations whose launch was not recorded. Communication is exposed while a device runs
    collectives and nothing else.
    """

    schema_name = "stepcast.replay/1"
    kind = "replay"

    gpu_period_measured_s: float
    gpu_period_simulated_s: float
    error: float | None
    steps: tuple[ReplayStep, ...]
    kernels: int = Field(ge=0)
    streams: int = Field(ge=0)
    unmatched_kernels: int = Field(ge=0)
    exposed_communication_measured_s: float
    exposed_communication_simulated_s: float
    busy: tuple[StreamBusy, ...] = ()
    misplaced: tuple[MisplacedKernel, ...] = ()
    notes: tuple[str, ...] = ()
    what_if: WhatIf | None = None
