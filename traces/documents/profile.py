"""A profile: the measurements that calibration made on one machine. Seconds, bytes, FLOPs.

There is one JSON file per machine, to which calibration adds. Each cost key is one compact row (20,000 keys load in about 0.2 s). The raw
samples are in `NAME.samples.jsonl.gz` in the same folder (`append_samples`).
"""

import statistics
from collections.abc import Sequence
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr, ValidationError

from traces.documents.collectives import CollectiveLaw, Measure, Rate
from traces.documents.measured_step import MeasuredStep
from traces.documents.profile_files import locked, merged
from traces.errors import UnusableFileError
from traces.files import first_fault, read_document, write_json
from traces.process import gc_paused

SCHEMA = "schedcast.profile/1"
#: Samples that spread more than this say nothing about a key, and intervals made of them would not be numbers.
MOST_SPREAD = 10.0

Count = Annotated[int, Field(ge=0, strict=True)]
Difference = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False, strict=True)]
Blocks = Annotated[int, Field(ge=1, strict=True)]


class Stats(NamedTuple):
    """Summary of the samples of one key, in seconds. `mean_s` is winsorized: samples above twice the median count as twice the median."""

    median_s: Measure
    mean_s: Measure
    q25_s: Measure
    q75_s: Measure
    samples: Count

    @staticmethod
    def from_samples(samples_s: Sequence[float]) -> "Stats":
        """Summarize samples, to six digits. Raises ValueError if there are none."""
        if not samples_s:
            raise ValueError("no samples to summarize; expected at least one duration in seconds")
        median = statistics.median(samples_s)
        mean = statistics.fmean(min(sample, 2 * median) for sample in samples_s)
        quarters = statistics.quantiles(samples_s, n=4, method="inclusive") if len(samples_s) > 1 else [median] * 3
        median_s, mean_s, q25_s, q75_s = (float(f"{x:.6g}") for x in (median, mean, quarters[0], quarters[2]))
        return Stats(median_s, mean_s, q25_s, q75_s, len(samples_s))

    @property
    def spread(self) -> float:
        """Relative quartile half-width (q75 − q25) / (2 · median), at most `MOST_SPREAD`; 0 for a median of 0."""
        return min(abs(self.q75_s - self.q25_s) / (2 * self.median_s), MOST_SPREAD) if self.median_s else 0.0


class KeyCost(NamedTuple):
    """The cost of one key when it runs alone: `warm` with its reads in the cache, `cold` without (None: not measured, same as warm).

    `grid` and `blocks_per_sm` are the kernel's geometry, if known. `op_class`, `flops` and `bytes` are those of the task's body.
    `issue_s` is the host's time to issue the task in eager mode: filling in arguments, the op's dispatch and all its launches (None: not
    measured). `geometry_from` is "profiler", "partitions" (fitted to times at several SM counts), "table" or "" (unknown).
    `launches` is the number of kernels (on a CPU: op calls) of an op that is a loop, such as a recurrent layer; 1 for all others.
    `model` is that of the job for which the key was measured; empty in older profiles.
    `kernels`: how many of them the profiler saw, whatever the op (None: not counted).
    `burst_s`: the median of cold samples in a burst at full clock, if `warm` and `cold` were taken under sustained load (None: they were
    not).
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
    model: str = ""
    burst_s: Measure | None = None
    kernels: Blocks | None = None


def slug(text: str) -> str:
    """`text` as part of a file name: lower case, words joined by `-`."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def driver_branch(version: str) -> str:
    """The major version of a GPU's driver: 580 of 580.65.06.

    Kernels come from CUDA's libraries, so patches of the driver do not change their times.
    """
    return version.partition(".")[0]


class _Data(BaseModel):
    model_config = ConfigDict(extra="ignore", validate_assignment=True)


class Identity(_Data):
    """The machine and software that a profile is valid for. `throttle` and `extras` are recorded but do not distinguish machines."""

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
    conv_tf32: bool = False
    throttle: dict[str, JsonValue] = {}
    extras: dict[str, JsonValue] = {}

    @property
    def precision(self) -> str:
        """What dense kernels on float32 operands ran in: fp32, tf32, or "default" (convolutions alone in TF32)."""
        return "tf32" if self.tf32 else "default" if self.conv_tf32 else "fp32"

    @property
    def name(self) -> str:
        """A short name for files: `gpu-nvidia-h100-132` (with TF32 `gpu-nvidia-h100-132-tf32`), `cpu-amd-epyc-2`."""
        words = [
            self.kind,
            self.gpu or self.cpu or "unknown",
            str(self.sms or self.cores),
            "" if self.precision == "fp32" else self.precision,
        ]
        return slug(" ".join(words))

    def differences(self, other: "Identity") -> list[str]:
        """The fields in which another machine differs, in words: `torch is 2.11.0 here, 2.13.0 there`. Of a driver, its branch counts."""
        differences = []
        for field in type(self).model_fields:
            mine, theirs = getattr(self, field), getattr(other, field)
            if field == "driver":
                mine, theirs = driver_branch(mine), driver_branch(theirs)
            if mine != theirs and field not in ("throttle", "extras"):
                differences.append(f"{_WORDS.get(field, field)} is {_shown(mine)} here, {_shown(theirs)} there")
        return differences


_WORDS = {
    "cpu": "the CPU model", "cores": "the number of cores", "pinned": "pinning of threads", "gpu": "the GPU", "sms": "the number of SMs",
    "clocks_mhz": "the clocks in MHz", "driver": "the driver", "cuda": "CUDA", "cudnn": "the cuDNN settings", "tf32": "TF32",
    "conv_tf32": "TF32 of convolutions",
}  # fmt: skip


def _shown(value: object) -> str:
    return str(value) if value not in ("", {}) else "not recorded"


class Dispatch(_Data):
    """Seconds that the host or the executor spends around a task; None if not measured. Fields have the names of `simulator.machine`.

    On a GPU `dispatch_s` is the executor's own time per task, measured on tasks without an op; `KeyCost.issue_s` is added to it. A key's
    warm and cold times include the gap between two nodes of one stream, so `node_gap_s` is 0 and `cross_gap_s` is what crossing streams
    adds. `launch_gap_s` is how much longer the gap between two kernels is if they are launched one by one; it may be negative.
    `switch_s` is the time to switch to another stream. Launching a graph takes `graph_launch_s`, `graph_node_s` more for each node, and
    `graph_branch_s` for each branch beyond the first. `queue_depth` is the number of launches that a stream accepts before the host blocks.
    `callback_s` is how long a host call that returns at once stops a stream of a graph, with the gap to the next node. `call_s` is the
    host's time to issue it in addition to `dispatch_s`.
    """

    task_overhead_s: Measure | None = None
    shared_overhead_s: Measure | None = None
    wake_s: Measure | None = None
    dispatch_s: Measure | None = None
    record_s: Measure | None = None
    wait_s: Measure | None = None
    switch_s: Measure | None = None
    graph_launch_s: Measure | None = None
    graph_node_s: Measure | None = None
    graph_branch_s: Measure | None = None
    node_gap_s: Measure | None = None
    cross_gap_s: Measure | None = None
    launch_gap_s: Difference | None = None
    callback_s: Measure | None = None
    call_s: Measure | None = None
    queue_depth: Count | None = None


class LoopCosts(_Data):
    """Seconds that PyTorch's own loop spends on an op in addition to the executor's call of the same op; they may be negative.

    `forward_s`: per op of the forward pass (modules, autograd's graph). `backward_s`: per op of the backward pass. `view_s`: per view.
    `update_s`: per call of `optimizer.step()`, and `parameter_s`: per parameter, with `zero_grad` and the gradient's hand-over.
    `threads`: how many PyTorch used for an op on a CPU; None on a GPU and in older profiles. `waiting`: "active" or "passive" if the user's
    environment said how they wait (OMP_WAIT_POLICY). `fresh_s_per_byte`: how much longer the first write to memory from the
    system takes than a later one; 0 on a GPU.
    """

    forward_s: Difference = 0.0
    backward_s: Difference = 0.0
    view_s: Difference = 0.0
    update_s: Difference = 0.0
    parameter_s: Difference = 0.0
    threads: int | None = Field(default=None, gt=0)
    waiting: str = ""
    fresh_s_per_byte: Measure = 0.0


class Transfer(_Data):
    """The cost of one route, `latency_s + bytes / bytes_per_s`, and the (bytes, seconds) points it was fitted on."""

    latency_s: Measure
    bytes_per_s: Rate
    points: list[tuple[Measure, Measure]] = []


class Interference(NamedTuple):
    """One op timed alone and concurrently with others.

    `slow_down`: how many times longer it took. `modeled`: the slow-down that the engine predicts without multipliers, from SMs and memory
    bandwidth. `beside`: the group of the concurrent ops. `held_out`: excluded from the fit, to score it. `key`: the op's cost key, or a
    name.
    """

    group: str
    beside: str
    slow_down: Measure
    modeled: Measure = 1.0
    held_out: bool = False
    key: str = ""


class Contention(_Data):
    """Slow-downs of tasks that run at the same time, by group of op classes: `multipliers["a|b"]` is the slow-down of a when b runs too.

    `held_out_error` is the mean relative error of the fitted multipliers on interference runs that were excluded from the fit;
    `held_out_error_without` is the error with every multiplier 1, when only SMs and memory bandwidth slow tasks down. If multipliers do not
    lower the error, `multipliers` is empty and `rejected` has the fitted ones. `co_runs` are the measurements of the fit.
    `saturation_share` is the share of a GPU's SMs that saturates its memory, also fitted; None if the interference runs do not determine
    it. `disturbed`: other work ran meanwhile, so the interference runs should be measured again. `unmeasured` lists pairs without an
    interference run, because no task of one group was available.
    """

    multipliers: dict[str, Measure] = {}
    rejected: dict[str, Measure] = {}
    held_out_error: Measure | None = None
    held_out_error_without: Measure | None = None
    saturation_share: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    disturbed: bool = False
    unmeasured: list[str] = []
    co_runs: list[Interference] = []

    @property
    def known(self) -> frozenset[tuple[str, str]]:
        """The pairs (group, other group) that need no measurement: they have interference runs, or cannot have any."""
        return frozenset((run.group, run.beside) for run in self.co_runs) | frozenset(pair.partition("|")[::2] for pair in self.unmeasured)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Profile(_Data):
    """All measurements of one machine. Change it in place, then `save` it.

    `failures` says for a key why it could not be measured (`fail`). `loop`: the costs of PyTorch's own loop; None: not measured.
    `rank_loop`: the same in one of several processes on a CPU, with the threads that it has there. `transfers` are named `SOURCE>TARGET`,
    `collectives` by `law_name`. On a GPU `contention` is that of products of float32, and `other_contention` has those of products in other
    precisions (bf16, fp16, fp64), whose kernels share the GPU in other ways. `anchor_s` is the time of the reference kernel at calibration.
    The memory sizes, the bandwidth and `peak_flops` (by precision) are measured; they are None or absent if not. `workspace_bytes` is the
    memory that stays allocated for each stream on which a matrix product has run. `partition_sms` is the number of SMs of each partition of
    an n-way split, by n as text. `notes` describe anything unusual, such as throttling. `steps`: what validations measured, by `step_name`.
    """

    identity: Identity
    created: str = Field(default_factory=_now)
    updated: str = Field(default_factory=_now)
    costs: dict[str, KeyCost] = {}
    failures: dict[str, str] = {}
    dispatch: Dispatch = Field(default_factory=Dispatch)
    loop: LoopCosts | None = None
    rank_loop: LoopCosts | None = None
    transfers: dict[str, Transfer] = {}
    collectives: dict[str, CollectiveLaw] = {}
    contention: Contention = Field(default_factory=Contention)
    other_contention: dict[str, Contention] = {}
    anchor_s: Measure | None = None
    cache_bytes: Count | None = None
    memory_bytes: Count | None = None
    bandwidth_bytes_per_s: Rate | None = None
    peak_flops: dict[str, Rate] = {}
    priority_levels: Count | None = None
    workspace_bytes: Count | None = None
    partition_sms: dict[str, Count] = {}
    notes: list[str] = []
    steps: dict[str, MeasuredStep] = {}

    #: The content of the file when this profile was last read or written, and the keys that failed since it was read.
    _saved: dict[str, Any] = PrivateAttr(default_factory=dict)
    _failed: frozenset[str] = PrivateAttr(default=frozenset())
    #: The model of the job that is being measured, for `KeyCost.model`.
    _model: str = PrivateAttr(default="")

    def measuring(self, model: str) -> "Profile":
        """This profile, from now on measured for a job of `model`."""
        self._model = model
        return self

    @staticmethod
    def load(path: Path | str) -> "Profile":
        """Read a profile written by `save`. Raises UnusableFileError if the file is damaged, newer, or not a profile."""
        try:
            with gc_paused():
                profile = Profile.model_validate(read_document(path, "profile", SCHEMA))
        except ValidationError as error:
            raise UnusableFileError(f"profile {path} is damaged {first_fault(error)}; calibrate again") from error
        profile._saved = profile._content()
        return profile

    def save(self, path: Path | str) -> Path:
        """Write atomically, with the current time in `updated`. Raises SchedcastError if the file cannot be written.

        What other processes have added to the file since this profile was read stays in it: only changes made here are written. A file of
        another machine, or one that cannot be read, is replaced.
        """
        self.updated = _now()
        with locked(path):
            current = self._joined_with(path)
            document: dict[str, Any] = {"schema": SCHEMA, **current.model_dump(mode="json", exclude={"costs"})}
            place = write_json(path, document | {"costs": current.costs})
        self._saved = self._content()
        return place

    def _joined_with(self, path: Path | str) -> "Profile":
        """This profile with what others have added to the file."""
        try:
            theirs = Profile.load(path)
        except UnusableFileError:
            return self
        if self.identity.differences(theirs.identity):
            return self
        saved = self._saved or Profile(identity=self.identity)._content()
        content = {name: merged(saved[name], getattr(self, name), getattr(theirs, name)) for name in saved}
        content["failures"] = {key: why for key, why in content["failures"].items() if key not in content["costs"]}
        return self.model_copy(update={**content, "created": min(self.created, theirs.created)})

    def _content(self) -> dict[str, Any]:
        """A copy of the measurements by field, which later changes of the profile do not change."""
        return {
            name: value.model_copy(deep=True) if isinstance(value, BaseModel) else copy(value)
            for name, value in self
            if name not in ("identity", "created", "updated")
        }

    def fail(self, key: str, why: str) -> None:
        """Record that `key` could not be measured now. The next calibration tries it again, since the reason may have passed."""
        self.failures[key] = why
        self._failed |= {key}

    @property
    def contentions(self) -> dict[str, Contention]:
        """What interference runs were measured for, by the precision of products: first float32, whose name is empty."""
        return {precision: fit for precision, fit in {"": self.contention, **self.other_contention}.items() if fit.co_runs}

    def contention_in(self, precision: str) -> Contention:
        """The contention of products in a precision; if it was not measured, that of the first precision that was."""
        measured = self.contentions
        return measured.get(precision) or next(iter(measured.values()), self.contention)

    @property
    def measured_model(self) -> str:
        """The model of the job that is being measured."""
        return self._model

    @property
    def new_failures(self) -> dict[str, str]:
        """The failures since the profile was read."""
        return {key: why for key, why in self.failures.items() if key in self._failed}

    def __eq__(self, other: object) -> bool:
        """Whether the other profile has the same content."""
        return isinstance(other, Profile) and dict(self) == dict(other)

    def matches(self, other: Identity) -> list[str]:
        """The differences between this profile's machine and `other`, in words; empty if they are the same."""
        return self.identity.differences(other)
