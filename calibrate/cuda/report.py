"""Measures the parts of a GPU report in their order, within the time given; each is on disk before the next begins.

`report_parts` says what the parts are, `report_place` where they are measured. A later run goes on where this one ended.
"""

import gc
import re
import statistics
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from calibrate.cuda.report_place import CutShortError, Place, UnsuitedError
from executors.cuda.driver import Driver
from simulator.models.factory import brief
from traces.comparison import Validation
from traces.errors import StepcastError, UnusableFileError
from traces.gpu_report import REPORT, GpuReport, PartRecord, summarise

#: A part is begun unless even this share of what it is expected to take is more than what is left.
SURE = 0.5
#: So many functions are named where a part failed by no fault of the user's.
_FRAMES = 6
_NOT_BEGUN = "not begun"


@dataclass(frozen=True)
class Result:
    """What a part found besides its file: whether numbers are plain PyTorch's (None: it compares none), and what was odd, in words."""

    same_numbers: bool | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """Something to measure. `run` writes `file`; `found` tells what an earlier run left of it, None where it must be done (again).

    `guess_s`: what it may take, which is corrected by what others of its `kind` took; `reserve_s` is the share of it after calibration.
    """

    name: str
    title: str
    priority: int
    file: str
    kind: str
    guess_s: float
    reserve_s: float
    run: Callable[[Place], Result]
    found: Callable[[Place], Result | None]


Tell = Callable[[GpuReport, PartRecord | None], None]


def measure(place: Place, parts: Sequence[Part], minutes: float, tell: Tell = lambda report, latest: None) -> GpuReport:
    """Measure what is missing, and return the report, which is on disk too; `tell` gets it after every part, with that part's record.

    Parts that failed before are tried after all others: one of them may break the GPU again. Interrupted, what was measured stays.
    """
    return _Run(place, parts, minutes, tell).go()


def usable(driver: Driver) -> bool:
    """Whether the GPU still computes."""
    try:
        driver.synchronize()
        torch.ones(1, device=driver.device).add_(1)
        driver.synchronize()
    except Exception:
        return False
    return True


class _Run:
    def __init__(self, place: Place, parts: Sequence[Part], minutes: float, tell: Tell):
        self.place, self.parts, self.minutes, self.tell = place, list(parts), minutes, tell
        self.begin_s = place.clock()
        place.end_s = self.begin_s + 60 * minutes
        self.records = {part.name: _record(part, "left", why=_NOT_BEGUN) for part in parts}

    def go(self) -> GpuReport:
        earlier = _earlier(self.place.folder)
        for part in self.parts:
            there, before = part.found(self.place), earlier.get(part.name)
            if before is not None and before.status == "failed":
                self.records[part.name] = before
            if there is not None:
                flags = before.flags if before is not None and before.measured else there.flags
                seconds = before.seconds if before is not None and before.measured else None
                self.records[part.name] = _record(part, "skipped", seconds, same_numbers=there.same_numbers, flags=flags)
        todo = [part for part in self.parts if self.records[part.name].status != "skipped"]
        todo.sort(key=lambda part: self.records[part.name].status == "failed")
        self.tell(self.write(), None)
        for position, part in enumerate(todo):
            if not self.attempt(part):
                for other in todo[position + 1 :]:
                    self.leave(other, f"the GPU is unusable after {part.name}; start again")
                self.tell(self.write(), None)
                break
        return self.write()

    def attempt(self, part: Part) -> bool:
        """Measure a part if there is time; whether the GPU is usable afterwards."""
        place, ratio = self.place, self.ratio(part.kind)
        expected_s, left_s = part.guess_s * ratio, place.left_s()
        if left_s <= 0 or expected_s * SURE > left_s:
            self.leave(part, f"about {expected_s:.0f} s, {max(0.0, left_s):.0f} s were left")
            return True
        place.reserve_s = part.reserve_s * ratio
        place.part = part.name
        place.progress(0, 1, "")
        begin_s = place.clock()
        try:
            result = part.run(place)
            record = _record(part, "done", place.clock() - begin_s, same_numbers=result.same_numbers, flags=result.flags)
        except CutShortError as error:
            record = _record(part, "left", place.clock() - begin_s, why=f"cut short: {error}; the next run goes on")
        except UnsuitedError as error:
            record = _record(part, "unsuited", place.clock() - begin_s, why=place.scrubbed(error))
        except KeyboardInterrupt:
            self.records[part.name] = _record(part, "left", why="stopped")
            self.write()
            raise
        except Exception as error:
            why = place.scrubbed(error if isinstance(error, StepcastError) else brief(error))
            where = "" if isinstance(error, StepcastError) else _where(error)
            record = _record(part, "failed", place.clock() - begin_s, why=why, where=where)
        self.records[part.name] = record
        well = self.tidy()
        self.tell(self.write(), record)
        return well

    def leave(self, part: Part, why: str) -> None:
        """Note that a part was not begun; one that failed before stays a failed one, and last in the next run too."""
        if self.records[part.name].status != "failed":
            self.records[part.name] = _record(part, "left", why=why)

    def tidy(self) -> bool:
        """Free what a part held; whether the GPU is usable."""
        gc.collect()
        try:
            if self.place.driver.device.type == "cuda":
                torch.cuda.empty_cache()
        except Exception:
            return False
        return usable(self.place.driver)

    def ratio(self, kind: str) -> float:
        """What parts of a kind took of what was guessed."""
        guesses = {part.name: part.guess_s for part in self.parts if part.kind == kind and part.guess_s > 0}
        done = [r for r in self.records.values() if r.measured and r.name in guesses and r.seconds is not None]
        return min(20.0, max(0.05, statistics.median(r.seconds / guesses[r.name] for r in done))) if done else 1.0

    def write(self) -> GpuReport:
        """The report as it is now, written to disk."""
        place, records = self.place, tuple(self.records.values())
        report = GpuReport(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=_versions(place.driver),
            device=place.device,
            identity=place.profiles[False].identity.model_dump(mode="json"),
            minutes=self.minutes,
            seconds=round(place.clock() - self.begin_s, 1),
            parts=records,
            flags=(*place.notes, *_together(record.flags for record in records)),
        )
        found: list[tuple[str, Validation]] = list(report.read_validations(place.folder).items())
        report = report.model_copy(update={"summary": summarise(found)})
        report.save(place.folder / REPORT)
        return report


def _record(part: Part, status: str, seconds: float | None = None, **more) -> PartRecord:
    seconds = None if seconds is None else round(seconds, 1)
    return PartRecord(name=part.name, title=part.title, priority=part.priority, status=status, seconds=seconds, file=part.file, **more)


def _earlier(folder: Path) -> dict[str, PartRecord]:
    """What an earlier run says of its parts; nothing where there is none, or its report is damaged: the files themselves decide."""
    try:
        return {record.name: record for record in GpuReport.load(folder / REPORT).parts}
    except UnusableFileError:
        return {}


def _versions(driver: Driver) -> dict[str, str]:
    try:
        own = metadata.version("stepcast")
    except metadata.PackageNotFoundError:
        own = "not installed"
    return {"stepcast": own, **{name: str(version) for name, version in driver.software().items()}}


def _together(flags: Iterable[tuple[str, ...]]) -> list[str]:
    """Flags that differ in their numbers alone become one, with how many parts have it."""
    shown: dict[str, str] = {}
    count: Counter[str] = Counter()
    for of_part in flags:
        for kind in dict.fromkeys(re.sub(r"[\d.]+", "#", flag) for flag in of_part):
            count[kind] += 1
            shown.setdefault(kind, next(flag for flag in of_part if re.sub(r"[\d.]+", "#", flag) == kind))
    return [f"{text} (and the like in {count[kind] - 1} more parts)" if count[kind] > 1 else text for kind, text in shown.items()]


def _where(error: BaseException) -> str:
    """The innermost functions, without the folders they lie in."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return " > ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
