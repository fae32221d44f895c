"""Runs probes one by one, each in a separate process, within the given time. The document is on disk after every probe.

A later call with the same folder runs the probes that have no answer yet.
"""

import atexit
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from calibrate.identity import same_device
from calibrate.preflight.child import QUIET
from calibrate.preflight.probe import ANSWER, BLOCKS, GRACE_S, Context, Probe
from calibrate.preflight.validations import TARGETS, Target
from executors.cuda.profiled import OFF, PROFILER, TEARDOWN
from traces.documents.comparison import Validation
from traces.documents.gpu_report import FACTS, FIRST, OUTPUTS, REPORT, VALIDATIONS, Fix, GpuReport, PartRecord, Status, fix_first, summarize
from traces.documents.profile import Identity
from traces.documents.profile_files import samples_path
from traces.documents.shipped import FILES
from traces.errors import Code, SchedcastError, UnusableFileError
from traces.files import read_json
from traces.forking import Forked, ForkServer
from traces.process import importing_environment

#: A probe is begun only if at least this share of its expected time is left.
SURE = 0.5
#: Seconds to wait for a process that opens the GPU, for one that is told to stop, and for one that should have stopped already.
_OPENING_S, _STOPPING_S, _LATE_S = 120.0, 30.0, 15.0
#: Seconds between two looks for an answer on disk.
_LOOK_S = 1.0
#: The output of the process that runs the long probes, and the characters of a process's last words that are shown.
_LONG, _LAST_WORDS = "long", 300
#: Starts the server; with a request, the process that answers it.
_COMMAND = (sys.executable, "-P", "-m", f"{__package__}.child")
Tell = Callable[[GpuReport, PartRecord | None], None]
Show = Callable[[str], None]
#: Runs a probe. Takes it, its limit, the seconds left, the seconds to reserve, and what to call with progress. Returns fields of its
#: record, and why the GPU is `unusable` if it could not be opened.
Ask = Callable[[Probe, float, float, float, Show], dict[str, Any]]


class _Starter:
    """Starts processes of `child`: forks of a server, or, if a new server does not fork, each from scratch."""

    def __init__(self):
        self._server: ForkServer | None = None
        self._forks = True

    def start(self, request: dict[str, Any], environment: Mapping[str, str], files: tuple[int, int, int]) -> subprocess.Popen | Forked:
        """Start one with `files` as its standard input, output and error."""
        given, out, err = files
        # A separate group, since Ctrl-C would reach it twice.
        more: dict[str, Any] = {"stdout": out, "stderr": err, "process_group": 0}
        while self._forks:
            server, new = self._server, self._server is None
            if server is None:
                server = self._server = ForkServer(_COMMAND, {**importing_environment(), "OPENBLAS_NUM_THREADS": "1"}, **more)
            try:
                return Forked(server, request, environment, Path.cwd(), files)
            except OSError:  # it has died meanwhile, or must not fork
                self.close()
                self._forks = not new
        return subprocess.Popen([*_COMMAND, json.dumps(request)], env=environment, stdin=given, **more)

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


_starter = _Starter()
atexit.register(_starter.close)


class Processes:
    """Runs probes in processes: a quick one in its own, long ones in a common one until it crashes or hangs. Only one lives at a time.

    `opener` names the function that opens the GPU; see `child`.
    """

    def __init__(self, folder: Path, opener: str, targets: Sequence[Target] = TARGETS, samples: bool = False):
        models = [(target.model, target.batch) for target in targets]
        self._outputs = folder / OUTPUTS
        self._request = {"opener": opener, "folder": str(folder), "targets": models, "samples": samples}
        self._process: subprocess.Popen | Forked | None = None

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def look(self, wait_s: float, show: Show) -> tuple[str, float | None]:
        """Wait as `calibrate.testbeds` does. Returns the GPU's name and what others take of it. Raises SchedcastError if unusable."""
        self._start(Path(os.devnull), {})
        try:
            reply = self._exchange(_OPENING_S + wait_s, (QUIET, wait_s, 0.0), show)
        except (EOFError, OSError) as error:
            raise SchedcastError(
                "the GPU could not be opened; schedcast gpu-report --quick --out DIR keeps what its process says"
            ) from error
        finally:
            self.close()
        if "unusable" in reply:
            raise SchedcastError(reply["unusable"], Code.DEVICES)
        return reply["product"], reply["busy_share"]

    def ask(self, probe: Probe, limit_s: float, left_s: float, reserve_s: float, show: Show) -> dict[str, Any]:
        """See `Ask`."""
        quick = probe.file is None
        self._outputs.mkdir(parents=True, exist_ok=True)
        log, figures, answer = (
            self._outputs / name for name in (f"{probe.name if quick else _LONG}.log", f"{probe.name}.json", f"{probe.name}{ANSWER}")
        )
        for earlier in (figures, answer):
            earlier.unlink(missing_ok=True)
        begin_s = time.monotonic()
        if quick or self._process is None or self._process.poll() is not None:
            self._start(log, probe.environment, "w" if quick else "a")
        try:
            reply = self._exchange(limit_s - (time.monotonic() - begin_s), (probe.name, left_s, reserve_s), show, answer)
        except TimeoutError:
            self.close()
            if answer.exists():
                return _taken(answer, "did not go on")
            if limit_s > left_s + GRACE_S:
                return _unanswered("left", f"it did not end within the {limit_s:.0f} s that were left", figures)
            return _unanswered("failed", f"it did not end within {limit_s:.0f} s, so a kernel or a wait may hang", figures)
        except (EOFError, OSError):
            if answer.exists():
                return _taken(answer, f"ended with {self._ended()}")
            return _unanswered("failed", f"its process ended with {self._ended()}{_last_words(log)}", figures) | {"usable": False}
        except BaseException:
            if self._process is not None:
                self._process.send_signal(signal.SIGINT)  # it saves what it has
            self.close(_STOPPING_S)
            raise
        answer.unlink(missing_ok=True)
        if quick or "unusable" in reply or not reply["usable"]:
            self.close()
        if "unusable" in reply:
            return {"status": "failed", "why": f"the GPU could not be opened: {reply['unusable']}", **reply}
        return reply

    def close(self, patience_s: float = 0.0) -> None:
        """End the process, after `patience_s` seconds at most. One within a driver call may not end: others are started all the same."""
        process, self._process = self._process, None
        if process is None:
            return
        self._connection.close()
        for seconds in (patience_s, 5.0):
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            process.kill()

    def _start(self, log: Path, environment: Mapping[str, str], mode: str = "w") -> None:
        self.close()
        self._connection, theirs = Pipe()
        with theirs, log.open(mode) as output:
            files = theirs.fileno(), output.fileno(), output.fileno()
            self._process = _starter.start(self._request, {**importing_environment(), **environment}, files)

    def _exchange(self, limit_s: float, request: tuple[str, float, float], show: Show, answer: Path | None = None) -> dict[str, Any]:
        """The process's reply. Raises EOFError or OSError if the process has ended.

        Raises TimeoutError after `limit_s` seconds, or if the file `answer` is there and no reply comes.
        """
        end_s = time.monotonic() + limit_s
        self._connection.send(request)
        while (now_s := time.monotonic()) < end_s:
            if not self._connection.poll(min(_LOOK_S, end_s - now_s)):
                if answer is not None and answer.exists():
                    end_s = min(end_s, now_s + _LATE_S)
                continue
            reply = self._connection.recv()
            if isinstance(reply, dict):
                return reply
            done, total, text = reply
            show(f"{request[0]} {done}/{total} {text}")
        raise TimeoutError

    def _ended(self) -> str:
        process = self._process
        self.close(5.0)
        if process is None or process.returncode is None:
            return "no exit status: it does not end"
        return signal.Signals(-process.returncode).name if process.returncode < 0 else f"exit status {process.returncode}"


def _unanswered(status: str, why: str, figures: Path) -> dict[str, Any]:
    """Fields of the record of a probe without an answer, with the figures that its process left."""
    return {"status": status, "why": why, "figures": read_json(figures, "figures") if figures.exists() else {}}


def _taken(answer: Path, how: str) -> dict[str, Any]:
    """The answer of a probe whose process had written it to disk, and then ended or hung as `how` says."""
    reply = read_json(answer, "answer")
    answer.unlink()
    return {**reply, "flags": [*reply["flags"], f"its process {how} after it had answered"], "usable": False}


def _last_words(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return f": {lines[-1][-_LAST_WORDS:]}" if lines else ""
    return ""


@dataclass
class Runner:
    """One call.

    The first of `probes` says which GPU it is, and is run in every call. `tell` is called with the document and the latest answer. `only`:
    the quick probes to run, even if they have answers (default: all without an answer). Without `long`, no long ones are run. `records` has
    the current record of each probe by name.
    """

    folder: Path
    probes: Sequence[Probe]
    minutes: float
    ask: Ask
    tell: Tell = lambda report, latest: None
    show: Show = lambda text: None
    resume: bool = True
    only: Sequence[str] = ()
    long: bool = True
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.begin_s = self.clock()
        self.device: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        self.context: Context | None = None
        self._usable, self._again = True, False
        self.records = {probe.name: _record(probe, status="left", why="not begun") for probe in self.probes if self._wanted(probe)}
        self._earlier = _earlier(self.folder) if self.resume else None

    def left_s(self) -> float:
        return 60 * self.minutes - (self.clock() - self.begin_s)

    def run(self) -> GpuReport:
        """Run the probes and return the document, which is also on disk.

        Those that failed before come last, since one of them may break the GPU again, and then those that need them. If interrupted, what
        was measured stays. Raises SchedcastError if there is no GPU that can be used, or if the folder is of another one.
        """
        first, *rest = self.probes
        self._identify(first)
        todo = self._todo(rest)
        self.tell(self.write(), self.records[first.name])
        unopened = 0
        for position, probe in enumerate(todo):
            if why := self._hindered(probe):
                self._leave(probe, why, "unsuited")
                continue
            expected_s, left_s = probe.estimate_s * self._ratio(probe.kind), self.left_s()
            if left_s <= 0 or expected_s * SURE > left_s:
                self._leave(probe, f"about {expected_s:.0f} s, {max(0.0, left_s):.0f} s were left")
                continue
            limit_s = probe.limit_s * max(1.0, self._ratio(probe.kind))
            for opened in self._tries(probe, limit_s):
                unopened = 0 if opened else unopened + 1
            self.tell(self.write(), self.records[probe.name])
            if unopened == 2:
                for other in todo[position + 1 :]:
                    self._leave(other, f"the GPU is unusable after {probe.name}; start again")
                break
        report = self.write(complete=True)
        self.tell(report, None)
        return report

    def _tries(self, probe: Probe, limit_s: float) -> Iterator[bool]:
        """Run a probe, in another process as often as it asks to, and once more if it breaks the GPU.

        Yields after each time whether the GPU could be opened.
        """

        def attempt() -> bool:
            return self.attempt(probe, min(limit_s, self.left_s() + GRACE_S + _LATE_S))

        yield attempt()
        while self._again and self.left_s() > 0:
            yield attempt()
        # A long probe has made the GPU unusable for its process. Another one may survive: the key that broke the GPU is skipped now.
        if probe.file is not None and self.records[probe.name].status == "failed" and not self._usable and self.left_s() > 0:
            yield attempt()

    def _hindered(self, probe: Probe) -> str:
        """Why a probe cannot work: one that it needs failed, and none that needs that one was measured all the same. "" if it can."""
        for name in probe.needs:
            record, others = self.records.get(name), [other.name for other in self.probes if name in other.needs]
            if record is not None and record.status == "failed" and not any(self.records[other].measured for other in others):
                return f"skipped: the check {name} failed: {record.why}"
        return ""

    def _environment(self, probe: Probe) -> Mapping[str, str]:
        """The variables of a probe. Long ones use the profiler as the first of its checks that found no fault, or not if all found one."""
        checks = {other.name: other.environment for other in self.probes if TEARDOWN in other.environment}
        if probe.file is None or not checks:
            return probe.environment
        verdicts = {name: self.records[name].verdict for name in checks if name in self.records}
        well = [environment for name, environment in checks.items() if verdicts.get(name) == "ok"]
        faulty = all(verdicts.get(name) in ("differs", "failed") for name in checks)
        return well[0] if well else {PROFILER: OFF} if faulty else {}

    def attempt(self, probe: Probe, limit_s: float) -> bool:
        """Run a probe. Returns whether the GPU could be opened."""
        begin_s = self.clock()
        self.show(probe.name)
        if probe is not self.probes[0]:  # else an earlier call's answers are not in the records yet
            self.records[probe.name] = _record(probe, status="running", why="it runs, or the call was killed meanwhile")
            self.tell(self.write(), None)
        environment = self._environment(probe)
        try:
            fields = self.ask(
                replace(probe, environment=environment), limit_s, self.left_s(), probe.reserve_s * self._ratio(probe.kind), self.show
            )
        except KeyboardInterrupt:
            if probe is not self.probes[0]:
                self._leave(probe, "stopped")
                self.write()
            raise
        if PROFILER in environment:
            fields["flags"] = [*fields.get("flags", ()), "the profiler was off, since its checks found faults"]
        record = _record(probe, seconds=round(self.clock() - begin_s, 1), **fields)
        if record.status == "failed" and probe.file is None:
            why = f"find out why the probe {probe.name} failed ({record.why}); see {OUTPUTS}/{probe.name}.log"
            record = record.model_copy(update={"fixes": (*record.fixes, Fix(worth=BLOCKS, text=why))})
        self.records[probe.name], self._usable, self._again = record, fields.get("usable", True), fields.get("again", False)
        if "unusable" in fields and probe is self.probes[0]:
            raise SchedcastError(fields["unusable"], Code.DEVICES)
        return "unusable" not in fields

    def write(self, complete: bool = False) -> GpuReport:
        """The document as it is now, written to disk."""
        records = tuple(self.records.values())
        context = self.context
        report = GpuReport(
            fix_first=fix_first(records),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=self.versions,
            device=self.device,
            identity=context.identities[False].model_dump(mode="json") if context is not None else {},
            minutes=self.minutes,
            seconds=round(self.clock() - self.begin_s, 1),
            parts=records,
            flags=(*(context.notes if context is not None else ()), *_merge_flags(record.flags for record in records)),
            complete=complete,
        )
        validations: list[tuple[str, Validation]] = list(report.read_validations(self.folder).items())
        report = report.model_copy(update={"summary": summarize(validations)})
        report.save(self.folder / REPORT)
        return report

    def _wanted(self, probe: Probe) -> bool:
        return probe.file is None or (self.long and not self.only)

    def _identify(self, first: Probe) -> None:
        """Run the first probe. If there is no GPU, no files remain; if the call is killed meanwhile, the next one can continue."""
        new = not any((self.folder / name).exists() for name in (REPORT, FIRST))
        if new:
            self.write()
        try:
            self.attempt(first, first.limit_s)
        except SchedcastError:
            if new:
                for path in (self.folder / REPORT, *(self.folder / OUTPUTS / f"{first.name}.{kind}" for kind in ("json", "log"))):
                    path.unlink(missing_ok=True)
                for folder in (self.folder / OUTPUTS, self.folder):
                    with suppress(OSError):  # it contains something else
                        folder.rmdir()
            raise
        figures: dict[str, Any] = self.records[first.name].figures
        self.device = dict(figures.get("device", {}))
        self.versions = {name: str(version) for name, version in figures.get("versions", {}).items()}
        before = self._earlier.device if self._earlier is not None else {}
        if before and self.device and not same_device(before, self.device):
            names = [" ".join(str(of.get(name)) for name in ("name", "sms", "driver", "cuda", "torch")) for of in (before, self.device)]
            raise SchedcastError(
                f"{self.folder} is of another machine or software ({names[0]} there, {names[1]} here); choose another --out, or replace all"
                " with --no-resume"
            )
        if not self.resume:
            self._clear(first)
        if "identity" in figures:
            context = Context(None, folder=self.folder)
            context.identities = {tf32: Identity.model_validate(figures["identity"][str(tf32)]) for tf32 in FILES}
            context.profiles  # noqa: B018 - raises if the folder is of another GPU, before anything is measured
            self.context = context

    def _clear(self, first: Probe) -> None:
        """Remove the files of an earlier report, the document itself first, so that no file is taken for a part of this one."""
        outputs = [path for path in sorted((self.folder / OUTPUTS).glob("*.*")) if path.stem != first.name]
        profiles = [self.folder / name for name in FILES.values()]
        documents = [self.folder / name for name in (REPORT, FIRST, FACTS)]
        validations = sorted((self.folder / VALIDATIONS).glob("*.json"))
        for path in (*documents, *validations, *profiles, *map(samples_path, profiles), *outputs):
            path.unlink(missing_ok=True)

    def _todo(self, rest: list[Probe]) -> list[Probe]:
        """The probes to run. The records of the others become those of earlier calls."""
        earlier = {record.name: _ended(record) for record in self._earlier.parts} if self._earlier is not None else {}
        todo = []
        for probe in rest:
            record, result = earlier.get(probe.name), None
            if probe.file is not None:  # its file decides
                result = probe.earlier(self.context) if self.context is not None else None
            elif record is not None and record.measured:
                result = {}
            if result is not None or (record is not None and record.status == "failed"):
                known = record if record is not None and (record.measured or result is None) else None
                fields = known.model_dump(exclude={"name", "title", "priority", "file"}) if known is not None else {}
                self.records[probe.name] = _record(probe, **(fields if result is None else {**fields, "status": "skipped", **result}))
            if probe.name in self.only or (not self.only and result is None and self._wanted(probe)):
                todo.append(probe)
        self.records = {probe.name: self.records[probe.name] for probe in self.probes if probe.name in self.records}
        return sorted(todo, key=lambda probe: 2 if self._hindered(probe) else self.records[probe.name].status == "failed")

    def _leave(self, probe: Probe, why: str, status: Status = "left") -> None:
        """Record that a probe was not run. A probe that has an answer keeps it, and one that failed before stays last in the next call."""
        if self.records[probe.name].status in ("left", "running"):
            self.records[probe.name] = _record(probe, status=status, why=why)

    def _ratio(self, kind: str) -> float:
        """Median ratio of the time that probes of a kind took to the time estimated; 1 if none was measured."""
        estimates = {probe.name: probe.estimate_s for probe in self.probes if probe.kind == kind}
        done = [r for r in self.records.values() if r.measured and r.name in estimates]
        ratios = [r.seconds / estimates[r.name] for r in done if r.seconds is not None]
        return min(20.0, max(0.05, statistics.median(ratios))) if ratios else 1.0


def _record(probe: Probe, **fields: Any) -> PartRecord:
    return PartRecord(name=probe.name, title=probe.asks, priority=probe.order, file=probe.file, **fields)


def _ended(record: PartRecord) -> PartRecord:
    """The record as the next call takes it: a probe during which a call was killed may be what killed it."""
    return record.model_copy(update={"status": "failed", "why": "the call ended with it"}) if record.status == "running" else record


def _earlier(folder: Path) -> GpuReport | None:
    """The document of an earlier call; None if there is none, or if it is damaged (then the files of the long probes decide)."""
    for name in (REPORT, FIRST):
        with suppress(UnusableFileError):
            return GpuReport.load(folder / name)
    return None


def _merge_flags(flags: Iterable[tuple[str, ...]]) -> list[str]:
    """Merge flags that differ only in their numbers into one, with the number of probes that have it."""
    shown: dict[str, str] = {}
    count: Counter[str] = Counter()
    for of_probe in flags:
        kinds = [re.sub(r"[\d.]+", "#", flag) for flag in of_probe]
        count.update(set(kinds))
        for kind, flag in zip(kinds, of_probe, strict=True):
            shown.setdefault(kind, flag)
    return [f"{text} (and similarly in {count[kind] - 1} more parts)" if count[kind] > 1 else text for kind, text in shown.items()]
