"""The context of a GPU report: the GPU, the folder of the report with its profiles, and the time that is left."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from calibrate.cuda.anchor import EDGE
from calibrate.cuda.bench import Effort
from calibrate.cuda.testbed import GpuTestbed
from calibrate.cuda.transfers import SIZES
from calibrate.device_record import Conditions, DeviceRecord, GpuMonitor
from calibrate.identity import describe_gpu, this_gpu
from calibrate.preflight.facts import Scale
from calibrate.testbed import Progress, no_progress
from executors.cuda.driver import Driver
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.errors import StepcastError, UnusableFileError
from traces.gpu_report import FACTS, REPORT, VALIDATIONS
from traces.profile import Profile
from traces.profile_files import samples_path
from traces.shipped import FILES

#: A part that has begun may exceed the time limit by this many seconds.
GRACE_S = 30.0


class CutShortError(Exception):
    """A part ran out of time. The keys that it measured are in the profile."""


class UnsuitedError(Exception):
    """The GPU cannot do what a part measures; the message says why."""


@dataclass(frozen=True)
class Thoroughness:
    """Sizes and effort of the measurements; tests use less."""

    scale: Scale = field(default_factory=Scale)
    effort: Effort | None = None
    anchor_edge: int = EDGE
    transfer_sizes: tuple[int, ...] = SIZES


class ReportContext:
    """A GPU and the folder of its report.

    `end_s` is the time on `clock` at which the run must end, and `reserve_s` is what the rounds after a calibration need of it. `part` is
    the name of the part being measured. `kept` says, by TF32, whether the folder held a complete profile of this machine; `notes` say in
    words what was wrong with a profile that was not kept.
    """

    def __init__(
        self,
        driver: Driver,
        folder: Path,
        resume: bool = True,
        keep_samples: bool = False,
        thoroughness: Thoroughness | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """With `resume`, continue the report in `folder`; otherwise remove its files.

        Raises StepcastError if, with `resume`, the folder is of another machine.
        """
        self.driver, self.folder, self.clock = driver, folder, clock
        self.keep_samples, self.thoroughness = keep_samples, thoroughness or Thoroughness()
        self.end_s, self.reserve_s = float("inf"), 0.0
        self.show: Progress = no_progress
        self.part = ""
        self.notes: list[str] = []
        self.record = DeviceRecord.read(getattr(driver, "uuid", ""))
        self.kept: dict[bool, bool] = {}
        self.profiles: dict[bool, Profile] = {}
        for tf32 in (True, False):  # ends without TF32, the default setting of the GPU
            self.profiles[tf32] = self._open(tf32, resume)
        self.device = self.about()
        if not resume:
            self._clear()

    def profile_path(self, tf32: bool) -> Path:
        """The path of the profile, as the package expects it in a GPU's folder."""
        return self.folder / FILES[tf32]

    def about(self, partitions: int = 1) -> dict[str, object]:
        """The GPU, whole or in partitions, as this run's documents describe it."""
        return describe_gpu(this_gpu(self.driver, "fp32", self.record), partitions)

    def testbed(self, mode: str, precision: str, partitions: int = 1) -> "ReportTestbed":
        """A testbed for one part of the report, with the GPU set to its precision."""
        return ReportTestbed(self, mode, precision, partitions)

    def left_s(self) -> float:
        """Seconds that are left."""
        return self.end_s - self.clock()

    def progress(self, done: int, total: int, text: str) -> None:
        """Report progress. Raises CutShortError once the time limit is exceeded by `GRACE_S`."""
        if self.left_s() < -GRACE_S:
            raise CutShortError("time ran out before all rounds were run")
        self.show(done, total, text)

    def _open(self, tf32: bool, resume: bool) -> Profile:
        identity = this_gpu(self.driver, "tf32" if tf32 else "fp32", self.record)
        path, empty = self.profile_path(tf32), Profile(identity=identity)
        self.kept[tf32] = False
        if not resume or not path.exists():
            return empty
        try:
            profile = Profile.load(path)
        except UnusableFileError as error:
            self.notes.append(f"all measurements based on {path.name} were repeated: {self.scrubbed(error)}")
            return empty
        if different := profile.matches(identity):
            raise StepcastError(
                f"{path} was measured on another machine or software ({'; '.join(different)}); choose another --out, or replace all with"
                " --no-resume"
            )
        if profile.identity.driver != identity.driver:
            self.notes.append(
                f"{path.name} was begun with driver {profile.identity.driver} and is continued with {identity.driver}; drivers of one major"
                " version count as the same"
            )
        self.kept[tf32] = profile.dispatch.dispatch_s is not None
        return profile

    def _clear(self) -> None:
        """Remove the files of an earlier report, the report itself first, so that no file is taken for a part of this one."""
        files = [self.folder / REPORT, self.folder / FACTS, *sorted((self.folder / VALIDATIONS).glob("*.json"))]
        for path in (*files, *map(self.profile_path, FILES), *(samples_path(self.profile_path(tf32)) for tf32 in FILES)):
            path.unlink(missing_ok=True)

    def scrubbed(self, error: BaseException | str) -> str:
        """An error's text on one line, without the folder's path."""
        return " ".join(str(error).replace(str(self.folder), self.folder.name).split())[:400]


class ReportTestbed(GpuTestbed):
    """A testbed that stops at the time limit, and collects the disturbances of the rounds in `flags`."""

    def __init__(self, context: ReportContext, mode: str, precision: str, partitions: int):
        """See `ReportContext.testbed`."""
        thoroughness = context.thoroughness
        super().__init__(
            context.driver,
            mode,
            precision,
            thoroughness.effort,
            thoroughness.anchor_edge,
            thoroughness.transfer_sizes,
            keep_samples=context.keep_samples,
            kernels=thoroughness.scale.kernels,
            partitions=partitions,
        )
        self._context = context
        self.flags: list[str] = []

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure missing keys. Raises CutShortError if time ran out before the last one."""
        self._deadline_s = max(0.0, self._context.left_s() - self._context.reserve_s)
        measured = super().calibrate(plans, machine, profile, save_to, progress)
        if self.left:
            raise CutShortError(f"{len(self.left)} of its keys are not measured yet")
        return measured

    def monitor(self) -> "_FlagCollector":
        """Watch the GPU, and add disturbances to `flags`."""
        return _FlagCollector(GpuMonitor(self._uuid), self.flags)


@dataclass(frozen=True)
class _FlagCollector:
    """A monitor that adds the flags of another monitor to a list."""

    monitor: GpuMonitor
    flags: list[str]

    def stop(self) -> Conditions:
        """The conditions since the start."""
        conditions = self.monitor.stop()
        self.flags.extend(conditions.flags)
        return conditions
