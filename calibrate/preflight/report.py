"""Measures the parts of a GPU report in order, within the given time. Each part is on disk before the next begins.

The parts are defined in `report_parts`. A later run continues where this one ended.
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

from calibrate.cuda.stall import wait
from calibrate.preflight.report_context import CutShortError, ReportContext, UnsuitedError
from executors.cuda.driver import Driver
from simulator.models.user_code import brief
from traces.comparison import Validation
from traces.errors import StepcastError, UnusableFileError
from traces.gpu_report import REPORT, GpuReport, PartRecord, Status, summarise

#: A part is begun only if at least this share of its expected time is left.
SURE = 0.5
#: How many functions of the traceback are named if a part fails with an unexpected error.
_FRAMES = 6
_NOT_BEGUN = "not begun"


@dataclass(frozen=True)
class Result:
    """The result of a part besides its file.

    `same_numbers` is whether the numbers equal plain PyTorch's (None: the part compares none). `flags` say in words what was odd.
    """

    same_numbers: bool | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """Something to measure.

    `run` measures it and writes `file`. `earlier` returns the result of an earlier run, or None if the part must be measured (again).
    `guess_s` is a guess of its time, which is corrected by the times of other parts of its `kind`. `reserve_s` is the share of it that
    comes after calibration.
    """

    name: str
    title: str
    priority: int
    file: str
    kind: str
    guess_s: float
    reserve_s: float
    run: Callable[[ReportContext], Result]
    earlier: Callable[[ReportContext], Result | None]


Tell = Callable[[GpuReport, PartRecord | None], None]


def measure(context: ReportContext, parts: Sequence[Part], minutes: float, tell: Tell = lambda report, latest: None) -> GpuReport:
    """Measure what is missing and return the report, which is also on disk. Calls `tell` after every part, with that part's record.

    Parts that failed before are tried after all others, since one of them may break the GPU again. If interrupted, what was measured stays.
    """
    return _Run(context, parts, minutes, tell).measure()


def usable(driver: Driver) -> bool:
    """Whether the GPU can still compute."""
    try:
        wait(driver)
        torch.ones(1, device=driver.device).add_(1)
        wait(driver)
    except Exception:
        return False
    return True


class _Run:
    """One run of the report. `records` holds the current record of each part by name."""

    def __init__(self, context: ReportContext, parts: Sequence[Part], minutes: float, tell: Tell):
        self.context, self.parts, self.minutes, self.tell = context, list(parts), minutes, tell
        self.begin_s = context.clock()
        context.end_s = self.begin_s + 60 * minutes
        self.records = {part.name: _record(part, "left", why=_NOT_BEGUN) for part in parts}

    def measure(self) -> GpuReport:
        """Measure all parts that no earlier run has measured."""
        earlier_records = _earlier_records(self.context.folder)
        for part in self.parts:
            result, record = part.earlier(self.context), earlier_records.get(part.name)
            if record is not None and record.status == "failed":
                self.records[part.name] = record
            if result is not None:
                recorded = record is not None and record.measured
                flags, seconds = (record.flags, record.seconds) if recorded else (result.flags, None)
                self.records[part.name] = _record(part, "skipped", seconds, same_numbers=result.same_numbers, flags=flags)
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
        """Measure a part if there is time. Returns whether the GPU is usable afterwards."""
        context, ratio = self.context, self.ratio(part.kind)
        expected_s, left_s = part.guess_s * ratio, context.left_s()
        if left_s <= 0 or expected_s * SURE > left_s:
            self.leave(part, f"about {expected_s:.0f} s, {max(0.0, left_s):.0f} s were left")
            return True
        context.reserve_s = part.reserve_s * ratio
        context.part = part.name
        context.progress(0, 1, "")
        begin_s = context.clock()
        try:
            result = part.run(context)
            record = _record(part, "done", context.clock() - begin_s, same_numbers=result.same_numbers, flags=result.flags)
        except CutShortError as error:
            record = _record(part, "left", context.clock() - begin_s, why=f"cut short: {error}; the next run continues")
        except UnsuitedError as error:
            record = _record(part, "unsuited", context.clock() - begin_s, why=context.scrubbed(error))
        except KeyboardInterrupt:
            self.records[part.name] = _record(part, "left", why="stopped")
            self.write()
            raise
        except Exception as error:
            why = context.scrubbed(error if isinstance(error, StepcastError) else brief(error))
            where = "" if isinstance(error, StepcastError) else _innermost_frames(error)
            record = _record(part, "failed", context.clock() - begin_s, why=why, where=where)
        self.records[part.name] = record
        gpu_usable = self.free_memory()
        self.tell(self.write(), record)
        return gpu_usable

    def leave(self, part: Part, why: str) -> None:
        """Record that a part was not begun. A part that failed before keeps that status, and stays last in the next run."""
        if self.records[part.name].status != "failed":
            self.records[part.name] = _record(part, "left", why=why)

    def free_memory(self) -> bool:
        """Free what a part allocated. Returns whether the GPU is usable."""
        gc.collect()
        if not usable(self.context.driver):  # asked first, since emptying the cache waits for the GPU without an end
            return False
        try:
            if self.context.driver.device.type == "cuda":
                torch.cuda.empty_cache()
        except Exception:
            return False
        return True

    def ratio(self, kind: str) -> float:
        """Median ratio of the time that parts of a kind took to the time guessed; 1 if none was measured."""
        guesses = {part.name: part.guess_s for part in self.parts if part.kind == kind and part.guess_s > 0}
        done = [r for r in self.records.values() if r.measured and r.name in guesses and r.seconds is not None]
        return min(20.0, max(0.05, statistics.median(r.seconds / guesses[r.name] for r in done))) if done else 1.0

    def write(self) -> GpuReport:
        """The report as it is now, written to disk."""
        context, records = self.context, tuple(self.records.values())
        report = GpuReport(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=_versions(context.driver),
            device=context.device,
            identity=context.profiles[False].identity.model_dump(mode="json"),
            minutes=self.minutes,
            seconds=round(context.clock() - self.begin_s, 1),
            parts=records,
            flags=(*context.notes, *_merge_flags(record.flags for record in records)),
        )
        validations: list[tuple[str, Validation]] = list(report.read_validations(context.folder).items())
        report = report.model_copy(update={"summary": summarise(validations)})
        report.save(context.folder / REPORT)
        return report


def _record(part: Part, status: Status, seconds: float | None = None, **more) -> PartRecord:
    seconds = None if seconds is None else round(seconds, 1)
    return PartRecord(name=part.name, title=part.title, priority=part.priority, status=status, seconds=seconds, file=part.file, **more)


def _earlier_records(folder: Path) -> dict[str, PartRecord]:
    """The records of an earlier run by part; empty if there is no report, or it is damaged (then the parts' files decide)."""
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


def _merge_flags(flags: Iterable[tuple[str, ...]]) -> list[str]:
    """Merge flags that differ only in their numbers into one, with the number of parts that have it."""
    shown: dict[str, str] = {}
    count: Counter[str] = Counter()
    for of_part in flags:
        for kind in dict.fromkeys(re.sub(r"[\d.]+", "#", flag) for flag in of_part):
            count[kind] += 1
            shown.setdefault(kind, next(flag for flag in of_part if re.sub(r"[\d.]+", "#", flag) == kind))
    return [f"{text} (and similarly in {count[kind] - 1} more parts)" if count[kind] > 1 else text for kind, text in shown.items()]


def _innermost_frames(error: BaseException) -> str:
    """The innermost functions of the traceback, without their folders."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return " > ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
