"""A profile: what calibration measured on one machine. Seconds, bytes, FLOPs.

One JSON file per machine; calibration adds to it. Each cost key is one compact row (20,000 keys load in about 0.2 s); the raw samples lie
beside it in `NAME.samples.jsonl.gz` (`append_samples`).
"""

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from traces.collectives import CollectiveLaw, Measure
from traces.errors import UnusableFileError
from traces.files import first_fault, read_document, write_json
from traces.garbage import gc_paused

SCHEMA = "stepcast.profile/1"

Count = Annotated[int, Field(ge=0, strict=True)]
Blocks = Annotated[int, Field(ge=1, strict=True)]


class Stats(NamedTuple):
    """Summary of one key's samples, in seconds. `mean_s` is winsorised: samples above twice the median count as twice the median."""

    median_s: Measure
    mean_s: Measure
    q25_s: Measure
    q75_s: Measure
    samples: Count

    @staticmethod
    def of(samples_s: Sequence[float]) -> "Stats":
        """Summarise samples, to six digits. Raises ValueError for none."""
        if not samples_s:
            raise ValueError("no samples to summarise; expected at least one duration in seconds")
        median = statistics.median(samples_s)
        mean = statistics.fmean(min(sample, 2 * median) for sample in samples_s)
        quarters = statistics.quantiles(samples_s, n=4, method="inclusive") if len(samples_s) > 1 else [median] * 3
        return Stats(*(float(f"{x:.6g}") for x in (median, mean, quarters[0], quarters[2])), len(samples_s))

    @property
    def spread(self) -> float:
        """Relative quartile half-width (q75 − q25) / (2 · median); 0 for a median of 0."""
        return (self.q75_s - self.q25_s) / (2 * self.median_s) if self.median_s else 0.0


class KeyCost(NamedTuple):
    """What one cost key costs alone: `warm` with its reads in the cache, `cold` without (None: not measured, as warm).

    `grid` and `blocks_per_sm` are the kernel's geometry where it is known; `op_class`, `flops` and `bytes` as the task's body counts them.
    `issue_s`: what issuing the task takes the host in eager mode: filling in arguments, the op's dispatch and all its launches (None: not
    measured). `geometry_from`: "profiler", "partitions" (from its times at several SM counts), "table" or "" (unknown).
    `launches`: kernels (on a CPU: op calls) of an op that is a loop of many, as a recurrent layer is; 1 of all others.
    """

    warm: Stats
    cold: Stats | None = None
    op_class: str = ""
    flops: Measure = 0.0
    bytes: Measure = 0.0
    grid: Blocks | None = None
    blocks_per_sm: Blocks | None = None
    issue_s: Measure | None = None
    geometry_from: str = ""
    launches: Blocks = 1


def slug(text: str) -> str:
    """`text` fit for the name of a file: lower case, words joined by `-`."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", validate_assignment=True)


class Identity(_Part):
    """The machine and software that a profile holds for. `throttle` and `extras` are recorded but do not tell machines apart."""

    kind: Literal["cpu", "gpu"]
    cpu: str = ""
    cores: Count = 0
    pinned: bool = False
    gpu: str = ""
    sms: Count = 0
    clocks_mhz: dict[str, Measure] = {}
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    cudnn: dict[str, JsonValue] = {}
    tf32: bool = False
    throttle: dict[str, JsonValue] = {}
    extras: dict[str, JsonValue] = {}

    @property
    def name(self) -> str:
        """A short name fit for a file: `gpu-nvidia-h100-132`, with TF32 `gpu-nvidia-h100-132-tf32`, `cpu-amd-epyc-2`."""
        words = [self.kind, self.gpu or self.cpu or "unknown", str(self.sms or self.cores), "tf32" if self.tf32 else ""]
        return slug(" ".join(words))

    def differences(self, other: "Identity") -> list[str]:
        """The fields in which another machine differs, in words: `torch is 2.11.0 here, 2.13.0 there`."""
        found = []
        for field in type(self).model_fields:
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs and field not in ("throttle", "extras"):
                found.append(f"{_WORDS.get(field, field)} is {_shown(mine)} here, {_shown(theirs)} there")
        return found


_WORDS = {
    "cpu": "the CPU model", "cores": "the number of cores", "pinned": "pinning of threads", "gpu": "the GPU", "sms": "the number of SMs",
    "clocks_mhz": "the clocks in MHz", "driver": "the driver", "cuda": "CUDA", "cudnn": "the cuDNN settings", "tf32": "TF32",
}  # fmt: skip


def _shown(value: object) -> str:
    return str(value) if value not in ("", {}) else "not recorded"


class Dispatch(_Part):
    """Seconds the host or the executor spends around a task; None where not measured. Names as in `simulator.machine`.

    On a GPU `dispatch_s` is the executor's own time per task, measured on tasks without an op; `KeyCost.issue_s` comes on top. A key's
    warm and cold times include the gap between two nodes of one stream, so `node_gap_s` is 0, and `cross_gap_s` what crossing streams adds.
    `queue_depth` counts the launches that a stream takes before the host blocks. `callback_s`: how long a stream stands still for a call of
    the host that returns at once, in a graph, with the gap to the next node; `call_s`: what issuing it takes the host besides `dispatch_s`.
    """

    task_overhead_s: Measure | None = None
    shared_overhead_s: Measure | None = None
    wake_s: Measure | None = None
    dispatch_s: Measure | None = None
    record_s: Measure | None = None
    wait_s: Measure | None = None
    graph_launch_s: Measure | None = None
    node_gap_s: Measure | None = None
    cross_gap_s: Measure | None = None
    callback_s: Measure | None = None
    call_s: Measure | None = None
    queue_depth: Count | None = None


class Transfer(_Part):
    """One route's line `latency_s + bytes / bytes_per_s`, and the (bytes, seconds) points it was fitted on."""

    latency_s: Measure
    bytes_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
    points: list[tuple[Measure, Measure]] = []


class CoRun(NamedTuple):
    """One op timed alone and beside others: how many times longer it took (`slow_down`), and what the engine says without multipliers
    (`modelled`, from SMs and memory bandwidth). `held_out`: kept out of the fit, to score it. `key`: of the op, or a name.
    """

    group: str
    beside: str
    slow_down: Measure
    modelled: Measure = 1.0
    held_out: bool = False
    key: str = ""


class Contention(_Part):
    """Slow-downs of tasks that run side by side, by group of op classes: `multipliers["a|b"]` is a's beside b.

    `held_out_error`: mean relative error of the fitted multipliers on co-runs that were not fitted, `held_out_error_without` the same with
    every multiplier 1, when only SMs and memory bandwidth slow tasks down. Where multipliers do not lower the error they are not used:
    `multipliers` is empty, and `rejected` says what they would have been. `co_runs`: all that this rests on. `saturation_share`: of a
    GPU's SMs that saturate its memory, fitted likewise; None where co-runs do not tell. `disturbed`: other work ran meanwhile, so that they
    should be measured again. `unmeasured`: pairs of which no co-run could be made, as no task of either was at hand.
    """

    multipliers: dict[str, Measure] = {}
    rejected: dict[str, Measure] = {}
    held_out_error: Measure | None = None
    held_out_error_without: Measure | None = None
    saturation_share: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    disturbed: bool = False
    unmeasured: list[str] = []
    co_runs: list[CoRun] = []

    @property
    def known(self) -> frozenset[tuple[str, str]]:
        """The pairs (group, beside) of which there are co-runs, or can be none."""
        return frozenset((run.group, run.beside) for run in self.co_runs) | frozenset(tuple(pair.split("|")) for pair in self.unmeasured)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Profile(_Part):
    """Everything calibration knows about one machine. Change it in place and `save` it.

    `failures` says per key why it could not be measured. `transfers` are named `SOURCE>TARGET`, `collectives` by `law_name`. `anchor_s` is
    the anchor op's time at calibration. The memory figures and `peak_flops` (by precision) are measured ones, None or absent where they
    were not. `partition_sms`: how many SMs each part of an n-way split has, by n as text. `notes` say in words what was odd, such as
    throttling.
    """

    identity: Identity
    created: str = Field(default_factory=_now)
    updated: str = Field(default_factory=_now)
    costs: dict[str, KeyCost] = {}
    failures: dict[str, str] = {}
    dispatch: Dispatch = Field(default_factory=Dispatch)
    transfers: dict[str, Transfer] = {}
    collectives: dict[str, CollectiveLaw] = {}
    contention: Contention = Field(default_factory=Contention)
    anchor_s: Measure | None = None
    cache_bytes: Count | None = None
    memory_bytes: Count | None = None
    bandwidth_bytes_per_s: Measure | None = None
    peak_flops: dict[str, Measure] = {}
    priority_levels: Count | None = None
    partition_sms: dict[str, Count] = {}
    notes: list[str] = []

    @staticmethod
    def load(path: Path | str) -> "Profile":
        """Read a profile written by `save`. Raises UnusableFileError for anything else: damaged, newer, or not a profile."""
        try:
            with gc_paused():
                return Profile.model_validate(read_document(path, "profile", SCHEMA))
        except ValidationError as error:
            raise UnusableFileError(f"profile {path} is damaged {first_fault(error)}; calibrate again") from error

    def save(self, path: Path | str) -> Path:
        """Write atomically and note the date in `updated`. Raises StepcastError where the disk refuses."""
        self.updated = _now()
        document: dict[str, Any] = {"schema": SCHEMA, **self.model_dump(mode="json", exclude={"costs"})}
        return write_json(path, document | {"costs": self.costs})

    def matches(self, other: Identity) -> list[str]:
        """The ways in which this profile is not of the machine `other`, in words; empty when it is."""
        return self.identity.differences(other)
