"""Where a GPU report is measured and written: the GPU, the folder with its profiles, and the time that is left."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from calibrate.cpu.session import Progress
from calibrate.cuda.anchor import EDGE
from calibrate.cuda.bench import Effort
from calibrate.cuda.facts import Scale
from calibrate.cuda.testbed import GpuTestbed, about_gpu
from calibrate.cuda.transfers import SIZES
from calibrate.device_record import DeviceRecord
from calibrate.identity import this_gpu
from executors.cuda.driver import Driver
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.errors import StepcastError, UnusableFileError
from traces.gpu_report import FACTS, REPORT, VALIDATIONS
from traces.profile import Profile
from traces.profile_files import samples_path
from traces.shipped import FILES

#: What has begun may take so many seconds more than were given.
GRACE_S = 30.0


class CutShortError(Exception):
    """A part ran out of time. What it measured of its keys is in the profile."""


class UnsuitedError(Exception):
    """The GPU cannot do what a part is about, and the message says why."""


@dataclass(frozen=True)
class Thoroughness:
    """What is measured on; tests choose less."""

    scale: Scale = field(default_factory=Scale)
    effort: Effort | None = None
    anchor_edge: int = EDGE
    transfer_sizes: tuple[int, ...] = SIZES


class Place:
    """A GPU and the folder of its report. `end_s` is when, on `clock`, time is up; `reserve_s` what the rounds after a calibration need.

    `kept`: which of the two profiles (by TF32) were there, whole and of this machine; `notes` say in words what was not.
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
        """Raises StepcastError where, with `resume`, the folder is of another machine. Without, its earlier files are removed."""
        self.driver, self.folder, self.clock = driver, folder, clock
        self.keep_samples, self.thoroughness = keep_samples, thoroughness or Thoroughness()
        self.end_s, self.reserve_s = float("inf"), 0.0
        self.show: Progress = lambda done, total, text: None
        self.part = ""  # the one that is being measured
        self.notes: list[str] = []
        self.record = DeviceRecord.read(getattr(driver, "uuid", ""))
        self.kept: dict[bool, bool] = {}
        self.profiles: dict[bool, Profile] = {}
        for tf32 in (True, False):  # last without, which is then how the GPU is set
            self.profiles[tf32] = self._open(tf32, resume)
        self.device = self.about()
        if not resume:
            self._clear()

    def profile_path(self, tf32: bool) -> Path:
        """Where the profile lies, as the package expects it of a GPU's folder."""
        return self.folder / FILES[tf32]

    def about(self, partitions: int = 1) -> dict[str, object]:
        """The GPU, whole or in parts, as this run's documents describe it."""
        return about_gpu(this_gpu(self.driver, "fp32", self.record), partitions)

    def testbed(self, mode: str, precision: str, partitions: int = 1) -> "ReportStand":
        """A stand for one part, with the GPU set for its precision."""
        return ReportStand(self, mode, precision, partitions)

    def left_s(self) -> float:
        """Seconds that are left."""
        return self.end_s - self.clock()

    def progress(self, done: int, total: int, text: str) -> None:
        """Report progress. Raises CutShortError when time is long up."""
        if self.left_s() < -GRACE_S:
            raise CutShortError("time was up before all rounds were run")
        self.show(done, total, text)

    def _open(self, tf32: bool, resume: bool) -> Profile:
        identity = this_gpu(self.driver, "tf32" if tf32 else "fp32", self.record)
        path, empty = self.profile_path(tf32), Profile(identity=identity)
        self.kept[tf32] = False
        if not resume or not path.exists():
            return empty
        try:
            found = Profile.load(path)
        except UnusableFileError as error:
            self.notes.append(f"what rests on {path.name} was measured again: {self.scrubbed(error)}")
            return empty
        if different := found.matches(identity):
            raise StepcastError(
                f"{path} was measured on another machine or software ({'; '.join(different)}); choose another --out, or replace all with"
                " --no-resume"
            )
        self.kept[tf32] = found.dispatch.dispatch_s is not None
        return found

    def _clear(self) -> None:
        """Remove what an earlier report has written here, the report first: nothing may be taken for a part of this one."""
        mine = [self.folder / REPORT, self.folder / FACTS, *sorted((self.folder / VALIDATIONS).glob("*.json"))]
        for path in (*mine, *map(self.profile_path, FILES), *(samples_path(self.profile_path(tf32)) for tf32 in FILES)):
            path.unlink(missing_ok=True)

    def scrubbed(self, error: BaseException | str) -> str:
        """An error's text on one line, without the path of the folder."""
        return " ".join(str(error).replace(str(self.folder), self.folder.name).split())[:400]


class ReportStand(GpuTestbed):
    """A stand that stops where time is up, and remembers what disturbed the GPU in the rounds."""

    def __init__(self, place: Place, mode: str, precision: str, partitions: int):
        """See Place.stand."""
        how = place.thoroughness
        super().__init__(
            place.driver,
            mode,
            precision,
            how.effort,
            how.anchor_edge,
            how.transfer_sizes,
            keep_samples=place.keep_samples,
            kernels=how.scale.kernels,
            partitions=partitions,
        )
        self._place = place
        self.flags: list[str] = []

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure missing keys; raises CutShortError where time was up before the last."""
        self._deadline_s = max(0.0, self._place.left_s() - self._place.reserve_s)
        measured = super().calibrate(plans, machine, profile, save_to, progress)
        if self.left:
            raise CutShortError(f"{len(self.left)} of its keys are not measured yet")
        return measured

    def watch(self) -> "_Watch":
        """Watch the GPU, and keep what was seen."""
        return _Watch(super().watch(), self.flags)


@dataclass(frozen=True)
class _Watch:
    watch: object
    flags: list[str]

    def stop(self):
        """What happened since the start."""
        found = self.watch.stop()
        self.flags.extend(found.flags)
        return found
