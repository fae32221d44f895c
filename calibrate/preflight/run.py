"""Makes the checks one by one, each in a process of its own, within the given time. The document is on disk after every check.

A later call with the same folder makes the checks that have no answer yet.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import calibrate
from calibrate.identity import same_device
from calibrate.preflight.check import BLOCKS, Check
from calibrate.preflight.registry import CHECKS
from traces.errors import StepcastError, UnusableFileError
from traces.files import read_json
from traces.gpu_first import CHECKS as OUTPUTS
from traces.gpu_first import FIRST, CheckRecord, GpuFirst, Mend, fix_first

#: The least seconds for which a check is begun, and the characters of a process's last words that are shown.
LEAST_S, _LAST_WORDS = 10.0, 300
Tell = Callable[[GpuFirst, CheckRecord | None], None]


def child_environment() -> dict[str, str]:
    """The environment of a process of ours: it imports the packages that this process runs."""
    root = str(Path(calibrate.__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}


class FirstLook:
    """The checks of one call. `records` holds the current record of each by name."""

    def __init__(
        self,
        folder: Path,
        minutes: float,
        opener: str,
        resume: bool = True,
        only: Sequence[str] = (),
        tell: Tell = lambda first, latest: None,
    ):
        """`opener` names the function that opens the GPU in a check's process; see `child`. `only`: the checks to make, even if they have
        answers (default: those without an answer).
        """
        self.folder, self.minutes, self.opener, self.only, self.tell = folder, minutes, opener, only, tell
        self.begin_s = time.monotonic()
        self.device: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        self.flags: list[str] = []
        self.report, self.complete = "", False
        self.records = {check.name: _left(check, "not begun") for check in CHECKS}
        self._earlier = _earlier(folder) if resume else None

    def left_s(self) -> float:
        """Seconds that are left."""
        return 60 * self.minutes - (time.monotonic() - self.begin_s)

    def run(self) -> None:
        """Make the checks. Raises StepcastError if there is no GPU that can be used, or if the folder is of another one."""
        first, *rest = CHECKS
        self._attempt_first(first)
        chosen = [check for check in rest if check.name in self.only] if self.only else rest
        for check in rest:
            if earlier := self._earlier and next((c for c in self._earlier.checks if c.name == check.name), None):
                self.records[check.name] = earlier.model_copy(update={"earlier": True})
        if not self.only:
            chosen = [check for check in rest if not self.records[check.name].answered]
            chosen.sort(key=lambda check: self.records[check.name].verdict == "failed")  # those that failed come last: they take longest
        self.tell(self.document(), self.records[first.name])
        for check in chosen:
            self.attempt(check)
            self.tell(self.document(), self.records[check.name])

    def _attempt_first(self, check: Check) -> None:
        """Make the first check. If there is no GPU, nothing is left behind; if the call is killed meanwhile, the next one can go on."""
        new = not (self.folder / FIRST).exists()
        if new:
            self.document()
        try:
            self.attempt(check)
        except StepcastError:
            if new:
                for path in (self.folder / FIRST, *(self.folder / OUTPUTS / f"{check.name}.{kind}" for kind in ("json", "log"))):
                    path.unlink(missing_ok=True)
                for folder in (self.folder / OUTPUTS, self.folder):
                    with suppress(OSError):  # it holds something else
                        folder.rmdir()
            raise
        self._recognize(self.records[check.name])

    def attempt(self, check: Check) -> None:
        """Make one check if there is time."""
        left_s = self.left_s()
        if left_s < LEAST_S:
            if not self.records[check.name].answered:
                self.records[check.name] = _left(check, f"{max(0.0, left_s):.0f} s were left")
            return
        begin_s = time.monotonic()
        status, limit_s = self._in_process(check, min(check.seconds, left_s))
        record = self._record(check, status, limit_s)
        self.records[check.name] = record.model_copy(update={"seconds": round(time.monotonic() - begin_s, 1)})

    def document(self) -> GpuFirst:
        """The document as it is now, written to disk."""
        checks = tuple(self.records.values())
        document = GpuFirst(
            fix_first=fix_first(checks),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            device=self.device,
            versions=self.versions,
            minutes=self.minutes,
            seconds=round(time.monotonic() - self.begin_s, 1),
            complete=self.complete,
            checks=checks,
            report=self.report,
            flags=tuple(self.flags),
        )
        document.save(self.folder / FIRST)
        return document

    def _in_process(self, check: Check, limit_s: float) -> tuple[int | None, float]:
        """Run the check in a process. Returns its exit status, negative if a signal ended it and None if it was given up, and its limit."""
        outputs = self.folder / OUTPUTS
        outputs.mkdir(parents=True, exist_ok=True)
        (outputs / f"{check.name}.json").unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "calibrate.preflight.child", check.name, self.opener, str(outputs / f"{check.name}.json")]
        with (outputs / f"{check.name}.log").open("w") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**child_environment(), **check.environment}
            )
            try:
                return process.wait(limit_s), limit_s
            except subprocess.TimeoutExpired:
                return None, limit_s
            finally:
                process.kill()
                with suppress(subprocess.TimeoutExpired):  # a process within a driver call may not end: the others go on all the same
                    process.wait(5)

    def _record(self, check: Check, status: int | None, limit_s: float) -> CheckRecord:
        """The record of a check whose process ended with `status`."""
        try:
            answer = read_json(self.folder / OUTPUTS / f"{check.name}.json", "answer")
        except UnusableFileError:
            answer = {}
        if "unusable" in answer:
            if check is CHECKS[0]:
                raise StepcastError(answer["unusable"])
            return self._failed(check, {}, f"the GPU could not be opened: {answer['unusable']}")
        if status == 0 and "verdict" in answer:
            return CheckRecord(name=check.name, asks=check.asks, **answer)
        figures = answer.get("figures", {})
        if "error" in answer:
            return self._failed(check, figures, answer["error"])
        if status is None and limit_s < check.seconds:
            return _left(check, f"it did not end within the {limit_s:.0f} s that were left").model_copy(update={"figures": figures})
        if status is None:
            return self._failed(check, figures, f"it did not end within {limit_s:.0f} s, so a kernel or a wait may hang")
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return self._failed(check, figures, f"its process ended with {how}{self._last_words(check)}")

    def _failed(self, check: Check, figures: dict, why: str) -> CheckRecord:
        mend = Mend(worth=BLOCKS, text=f"find out why the check {check.name} failed ({why}); see {OUTPUTS}/{check.name}.log")
        return CheckRecord(name=check.name, asks=check.asks, verdict="failed", figures=figures, means=why, mend=(mend,))

    def _last_words(self, check: Check) -> str:
        with suppress(OSError):
            lines = (self.folder / OUTPUTS / f"{check.name}.log").read_text(errors="replace").strip().splitlines()
            return f": {lines[-1][-_LAST_WORDS:]}" if lines else ""
        return ""

    def _recognize(self, record: CheckRecord) -> None:
        """Take device and versions from the first check, and compare them with those of an earlier call."""
        figures: dict[str, Any] = record.figures
        self.device, self.versions = dict(figures.get("device", {})), dict(figures.get("versions", {}))
        if self._earlier is None or not self.device or not self._earlier.device:
            return
        before = self._earlier.device
        if not same_device(before, self.device):
            names = [" ".join(str(of.get(name)) for name in ("name", "sms", "driver", "cuda", "torch")) for of in (before, self.device)]
            raise StepcastError(
                f"{self.folder} is of another machine or software ({names[0]} there, {names[1]} here); choose another --out, or replace all"
                " with --no-resume"
            )
        if before != self.device:
            self.flags.append(
                f"begun with driver {before.get('driver')}, continued with {self.device.get('driver')}; drivers of one major version count"
                " as the same"
            )


def _left(check: Check, why: str) -> CheckRecord:
    return CheckRecord(name=check.name, asks=check.asks, verdict="left", means=why)


def _earlier(folder: Path) -> GpuFirst | None:
    """The document of an earlier call; None if there is none, or if it is damaged."""
    try:
        return GpuFirst.load(folder / FIRST)
    except UnusableFileError:
        return None


def named(names: Iterable[str]) -> list[str]:
    """The names, if they are names of checks. Raises UnknownNameError."""
    from traces.errors import UnknownNameError

    known = [check.name for check in CHECKS]
    for name in names:
        if name not in known:
            raise UnknownNameError("check", name, known)
    return list(names)
