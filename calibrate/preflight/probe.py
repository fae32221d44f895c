"""What a probe is: a question about a GPU with a limit, the function that answers it, and the context in which that function runs."""

import gc
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from calibrate.cuda.bench import Effort, wait
from calibrate.cuda.contention import Sizes
from calibrate.cuda.device_record import Conditions, DeviceRecord, GpuMonitor, GroupMonitor, describe_gpu, gpu_identity
from calibrate.cuda.rates import EDGE
from calibrate.cuda.testbed import GpuTestbed
from calibrate.cuda.transfers import SIZES
from calibrate.testbed import Progress, no_progress
from executors.cuda.driver import Driver
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.model.user_code import brief
from simulator.plan.plan import Plan
from traces.documents.gpu_report import OUTPUTS
from traces.documents.profile import Identity, Profile
from traces.documents.shipped import FILES
from traces.errors import SchedcastError, UnusableFileError
from traces.files import write_json

#: What a fix is worth: see `traces.documents.gpu_report.Fix`.
BLOCKS, WRONG, UNCERTAIN, SUBSTITUTE = 1, 2, 3, 4


class Order(IntEnum):
    """When probes run: what is worth most comes first, so that a few minutes on a GPU answer what matters most.

    `USUAL` is what most train, under schedules. `URGENCY`, `SCANS`, `DIVIDED`, `LAYERWISE` and `UPDATES` are the published systems:
    priorities, scans, pipelines and data parallelism on partitions, parallelism by layer, and fused updates as their paper ran them.
    `LANGUAGE` is a language model, `HOST_BOUND` a step that waits for the host. `CONSTANTS`, `GRAPHS`, `NUMERICS` and `KERNELS` explain
    what came before. The others repeat it for more models, layouts and precisions.
    """

    IDENTITY = 0
    YARDSTICK = 1
    USUAL = 2
    URGENCY = 3
    SCANS = 4
    PARTITIONS = 5
    DIVIDED = 6
    LAYERWISE = 7
    LANGUAGE = 8
    HOST_BOUND = 9
    CONSTANTS = 10
    GRAPHS = 11
    UPDATES = 12
    SEVERAL_GPUS = 13
    NUMERICS = 14
    CHANNELS_LAST = 15
    SEQUENCE = 16
    OTHER_PRECISIONS = 17
    METHODS = 18
    KERNELS = 19
    REST = 20


#: The end of the name of the file that has a probe's answer until it is in the document.
ANSWER = ".answer.json"
#: A probe that has begun may exceed the time limit by this many seconds.
GRACE_S = 30.0
#: How many functions of the traceback are named if a probe fails with an unexpected error.
_FRAMES = 6


class CutShortError(Exception):
    """A probe ran out of time. The keys that it measured are in the profile."""


class FreshProcessError(Exception):
    """What a probe measured is in the profile, but its eager steps need a process that has not used the profiler.

    A launch takes the host 46 % longer on an H100 after three sessions, though CUPTI was detached after each.
    """


class UnsuitedError(Exception):
    """The GPU cannot do what a probe measures; the message says why."""


@dataclass(frozen=True)
class Scale:
    """Sizes of the work; tests use smaller ones.

    `jobs` are trained in several precisions, and `image_jobs` channels-last. `image` is (batch, channels, edge) of a batch-norm and
    `convolution` that of a convolution; `sequence` is (batch, heads, length, width) of an attention. `encoder` is (layers, batch, length,
    width, heads) of a transformer's encoder. `transfer_sizes` are in bytes, and so is `relu_bytes`, the size of an elementwise op's output.
    """

    effort: Effort = field(default_factory=Effort)
    kernels: Sizes = field(default_factory=Sizes)
    jobs: tuple[Job, ...] = (
        Job("resnet18", 8, 64), Job("transformer_base", 2, optimizer="adam"), Job("rnn_bitstream", 4, 64, optimizer="adam"),
    )  # fmt: skip
    image_jobs: tuple[Job, ...] = (Job("resnet18", 8, 64), Job("mobilenet_v2", 8, 64, optimizer="adam", form="fused"))
    image: tuple[int, int, int] = (64, 64, 28)
    sequence: tuple[int, int, int, int] = (4, 8, 128, 64)
    convolution: tuple[int, int, int] = (32, 128, 28)
    encoder: tuple[int, int, int, int, int] = (12, 8, 1024, 768, 12)
    reference_edge: int = EDGE
    transfer_sizes: tuple[int, ...] = SIZES
    relu_bytes: int = 25_000_000


class Context:
    """A GPU, the folder of its report with its profiles, the time that is left, and the findings so far of the running probe.

    `end_s` is the time on `clock` at which the call must end, and `reserve_s` is what the rounds after a calibration need of it. `notes`
    say in words what was wrong with a profile of the folder. Without a driver, `identities` must be set, and nothing can be measured.
    """

    def __init__(
        self,
        driver: Driver | None,
        scale: Scale | None = None,
        folder: Path | None = None,
        keep_samples: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._driver, self.scale, self.folder, self.keep_samples, self.clock = driver, scale or Scale(), folder, keep_samples, clock
        self.end_s, self.reserve_s = float("inf"), 0.0
        self.show: Progress = no_progress
        self.notes: list[str] = []
        self.begin("")

    @property
    def driver(self) -> Driver:
        """The GPU's driver. Raises ValueError without one."""
        if self._driver is None:
            raise ValueError("nothing can be measured without a GPU's driver")
        return self._driver

    def path(self, file: str) -> Path:
        """The path of a file in the folder. Raises ValueError without a folder."""
        if self.folder is None:
            raise ValueError(f"there is no folder for {file}")
        return self.folder / file

    def begin(self, name: str) -> None:
        """Forget the findings, since the probe `name` begins."""
        self.figures: dict[str, Any] = {}
        self.faults: list[tuple[int, str]] = []
        self.flags: list[str] = []
        self.same_numbers: bool | None = None
        self._outputs = self.folder / OUTPUTS / name if self.folder is not None and name else None

    def figure(self, name: str, value: Any) -> None:
        """Add a figure. It is written to disk immediately, so that a probe that crashes leaves the figures that it had."""
        self.figures[name] = _plain(value)
        if self._outputs is not None:
            write_json(self._outputs.with_suffix(".json"), self.figures)

    def answered(self, fields: Mapping[str, Any]) -> None:
        """Write the answer to disk, since this process may die or hang before it has sent it."""
        if self._outputs is not None:
            write_json(self._outputs.with_suffix(ANSWER), _plain(fields))

    def fault(self, worth: int, fix: str) -> None:
        """Say what to fix, since the GPU behaves differently than Schedcast assumes."""
        self.faults.append((worth, fix))

    def attempt(self, name: str, case: Callable[[], Any], must: str, worth: int = WRONG) -> Any:
        """Run one of several cases and return its figures, which are stored; None if it fails: then `must` and the reason are a fault."""
        try:
            figures = case()
        except Exception as error:
            self.figure(name, {"failed": brief(error)})
            self.fault(worth, f"{must}: {brief(error)}")
            self.driver.synchronize()  # raises where the GPU cannot be used any more
            return None
        self.figure(name, figures)
        return figures

    @cached_property
    def record(self) -> DeviceRecord:
        return DeviceRecord.read(getattr(self._driver, "uuid", ""))

    @cached_property
    def identities(self) -> dict[bool, Identity]:
        """The GPU's identity by TF32. Leaves the GPU without TF32, its default setting."""
        return {tf32: gpu_identity(self.driver, "tf32" if tf32 else "fp32", self.record) for tf32 in (True, False)}

    @cached_property
    def profiles(self) -> dict[bool, Profile]:
        """The folder's profiles by TF32; empty ones where it has none. Raises SchedcastError if one is of another machine."""
        return {tf32: self._profile(tf32) for tf32 in FILES}

    def profile_path(self, tf32: bool) -> Path:
        """The path of the profile, as the package expects it in a GPU's folder."""
        return self.path(FILES[tf32])

    def about(self, partitions: int = 1) -> dict[str, object]:
        """The GPU, whole or in partitions, as documents describe it."""
        return describe_gpu(self.identities[False], partitions)

    def left_s(self) -> float:
        return self.end_s - self.clock()

    def progress(self, done: int, total: int, text: str) -> None:
        """Report progress. Raises CutShortError once the time limit is exceeded by `GRACE_S`."""
        if self.left_s() < -GRACE_S:
            raise CutShortError("time ran out before all rounds were run")
        self.show(done, total, text)

    def scrubbed(self, error: BaseException | str) -> str:
        """An error's text on one line, without the folder's path."""
        text = str(error) if self.folder is None else str(error).replace(str(self.folder), self.folder.name)
        return " ".join(text.split())[:400]

    def _profile(self, tf32: bool) -> Profile:
        identity, path = self.identities[tf32], self.profile_path(tf32)
        if not path.exists():
            return Profile(identity=identity)
        try:
            profile = Profile.load(path)
        except UnusableFileError as error:
            self.notes.append(f"all measurements based on {path.name} were repeated: {self.scrubbed(error)}")
            return Profile(identity=identity)
        if different := profile.matches(identity):
            raise SchedcastError(
                f"{path} was measured on another machine or software ({'; '.join(different)}); choose another --out, or replace all with"
                " --no-resume"
            )
        if profile.identity.driver != identity.driver:
            self.notes.append(
                f"{path.name} was begun with driver {profile.identity.driver} and is continued with {identity.driver}; drivers of one major"
                " version count as the same"
            )
        return profile


class ProbeTestbed(GpuTestbed):
    """A testbed of short rounds, which stops at the time limit and adds the disturbances of the rounds to the flags of the probe."""

    units_per_round = 3
    round_s = 0.15
    plain_steps_per_round = 4

    def __init__(self, context: Context, mode: str, precision: str, partitions: int = 1):
        scale = context.scale
        sizes = scale.effort, scale.reference_edge, scale.transfer_sizes
        more: dict[str, Any] = {"keep_samples": context.keep_samples, "kernels": scale.kernels, "partitions": partitions}
        super().__init__(context.driver, mode, precision, *sizes, **more)
        self._context = context

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure missing cost keys. Raises CutShortError if time ran out before the last one."""
        self._deadline_s = max(0.0, self._context.left_s() - self._context.reserve_s)
        measured = super().calibrate(plans, machine, profile, save_to, progress)
        if self.left:
            raise CutShortError(f"{len(self.left)} of its cost keys are not measured yet")
        if measured and self.mode == "eager":
            raise FreshProcessError("its cost keys are measured")
        return measured

    def monitor(self) -> "_FlagCollector":
        """Watch the GPU, and add disturbances to the flags."""
        return _FlagCollector(self.gpu_monitor(), self._context.flags)


@dataclass(frozen=True)
class _FlagCollector:
    """A monitor that adds the flags of another monitor to a list."""

    monitor: GpuMonitor | GroupMonitor
    flags: list[str]

    def stop(self) -> Conditions:
        conditions = self.monitor.stop()
        self.flags.extend(conditions.notes)
        return conditions


@dataclass(frozen=True)
class Probe:
    """A question about a GPU.

    `run` answers `asks`: it adds figures and faults to the context, and says in words what they mean if there is no fault. It is abandoned
    after `limit_s`. A quick probe has a separate process, started with the variables `environment`. A long one writes `file`; `earlier`
    returns fields of its record if an earlier call wrote it, or None if it must be measured (again). `estimate_s` is its expected time,
    corrected by the times of other probes of its `kind`; `reserve_s` is the share of it that comes after calibration. It `needs` what the
    quick probes of these names try.
    """

    name: str
    asks: str
    run: Callable[[Context], str]
    order: Order
    limit_s: float = 60.0
    environment: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None
    kind: str = "quick"
    estimate_s: float = 20.0
    reserve_s: float = 0.0
    needs: tuple[str, ...] = ()
    earlier: Callable[[Context], dict[str, Any] | None] = lambda context: None


def answer(probe: Probe, context: Context, left_s: float = float("inf"), reserve_s: float = 0.0) -> dict[str, Any]:
    """Run a probe in this process, with the seconds that are left and to reserve.

    Returns the fields of its record, and `usable`: whether this process can run another long one. `again`: whether it goes on in another.
    """
    context.end_s, context.reserve_s = context.clock() + left_s, reserve_s
    context.begin(probe.name)
    fields: dict[str, Any]
    again = False
    try:
        words = probe.run(context)
        if probe.file is None:
            context.driver.synchronize()
        faults = [] if probe.file is not None else [text for _, text in context.faults]  # those of a long probe are in its table
        fields = {"status": "done", "why": "; ".join(faults) or words}
    except CutShortError as error:
        fields = {"status": "left", "why": f"cut short: {error}; the next call continues"}
    except FreshProcessError as error:
        again, fields = True, {"status": "left", "why": f"{error}; it goes on in another process"}
    except UnsuitedError as error:
        fields = {"status": "unsuited", "why": context.scrubbed(error)}
    except Exception as error:
        traceback.print_exc()
        own = isinstance(error, SchedcastError)
        fields = {"status": "failed", "why": context.scrubbed(error if own else brief(error)), "where": "" if own else _frames(error)}
    fixes = [{"worth": worth, "text": text} for worth, text in context.faults]
    flags = list(dict.fromkeys(context.flags))
    fields |= {"figures": context.figures, "fixes": fixes, "flags": flags, "same_numbers": context.same_numbers}
    context.answered(fields)
    return {**fields, "again": again, "usable": not again and (probe.file is None or usable(context.driver))}


def usable(driver: Driver) -> bool:
    """Free what nothing uses any more. Returns whether the GPU can still compute."""
    gc.collect()
    try:
        wait(driver)  # first, since emptying the cache waits for the GPU without an end
        torch.ones(1, device=driver.device).add_(1)
        wait(driver)
        if driver.device.type == "cuda":
            torch.cuda.empty_cache()
    except Exception:
        return False
    return True


def _frames(error: BaseException) -> str:
    """The innermost functions of the traceback, without their folders."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return " > ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)


def _plain(value: Any) -> Any:
    """The value in types that JSON has; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else None
    return value if value is None or isinstance(value, str | int) else str(value)
