"""`watch`: record a few steps of an existing training loop, and say what they wait for. The other functions are the same for libraries."""

import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from weakref import finalize, ref

import torch
from rich.console import Console
from torch.profiler import ProfilerActivity, profile, schedule

from simulator.model.user_code import brief
from traces import units
from traces.errors import SchedcastError
from traces.process import spec_of
from ui.api.shown import Shown

#: Steps that first run unrecorded, whose time shows the cost of recording, and those in which the profiler starts.
BEFORE, WARM_UP = 3, 1
#: How PyTorch's loaders mark the time in which they make, or wait for, a batch.
LOADER = "enumerate(DataLoader)"

#: PyTorch has one profiler per process. The current recorder: an empty list, or the one watch, which may have been deleted before it ended.
_recording: list["ref[Watch]"] = []
_changing = threading.Lock()
log = logging.getLogger("schedcast")


class Watch(Shown):
    """Steps of a loop that are recorded within a `with` block. Afterwards it is their answer, and can be used as their trace.

    Arguments are checked before the loop starts. From then on nothing raises: if a recording fails, one warning says why, and the loop
    continues. `trace`: the file of the recording. `ended`: whether it is complete. `failure`: why there is none; empty if nothing failed.
    """

    def __init__(self, steps: int, out: str | Path | None, memory: bool, when_done: Callable[["Watch"], object] | None = None):
        """Record `steps` steps, after BEFORE others, into the file `out`; by default a temporary one that is removed with this object.

        Raises SchedcastError if `steps` is not a number of steps or `out` cannot be written.
        """
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise SchedcastError(f"watch(steps={steps!r}); expected at least 1 step to record")
        rank = os.environ.get("RANK", "0")
        self._own_folder = out is None
        if out is None:
            folder = tempfile.mkdtemp(prefix="schedcast-")
            finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self.trace = Path(folder) / f"steps-rank{rank}.json.gz"
        else:
            self.trace = _writable(out, rank)
        self.steps, self.ended, self.failure = steps, False, ""
        self._when_done, self._memory = when_done, memory
        self._ends_s: list[float] = []
        self._loader_s = 0.0
        self._profiler: Any = None
        self._thread: int | None = None  # that of the steps, from the block's start to its end; PyTorch records one thread's profiler

    def start(self) -> "Watch":
        """Start without a `with` block. The answer is printed when enough steps are recorded."""
        self._when_done = _say
        return self.__enter__()

    def __enter__(self) -> "Watch":
        """Start."""
        with _changing:
            if any(other() is not None for other in _recording):
                self._warn("another watch records in this process")
                return self
            _recording[:] = [ref(self)]
        self._thread, self._ends_s = 0, [time.perf_counter()]
        return self

    def step(self) -> None:
        """Mark the end of a step. When enough steps are recorded, this does nothing."""
        if self._thread is None:
            return
        self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident():
            if not self.failure:
                self._warn("step() is called by several threads, of which the first alone is recorded")
            return
        try:
            self._ends_s.append(time.perf_counter())
            if len(self._ends_s) == 1 + BEFORE:
                self._begin()
            elif self._profiler is not None:
                self._profiler.step()
            if self.ended:
                self._stop()
        except Exception as error:
            self._give_up(error)

    def __exit__(self, *error: object) -> None:
        """Stop. The recorded steps are retained."""
        try:
            self._stop()
        except Exception as failure:
            self._give_up(failure)

    def _begin(self) -> None:
        """Start the profiler, in the thread of the steps."""
        if torch.autograd._profiler_enabled():
            raise SchedcastError("another profiler records in this process")
        profiler = profile(
            activities={ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu() else [])},
            schedule=schedule(wait=0, warmup=WARM_UP, active=self.steps, repeat=1),
            on_trace_ready=self._keep,
            record_shapes=True,
            profile_memory=self._memory,
        )
        profiler.__enter__()
        self._profiler = profiler

    def _stop(self) -> None:
        """Stop the profiler, and let others record. Does nothing if this has happened."""
        profiler, self._profiler, self._thread = self._profiler, None, None
        try:
            if profiler is not None:
                profiler.__exit__(None, None, None)
        finally:
            with _changing:
                _recording[:] = [other for other in _recording if other() is not self]

    def _give_up(self, cause: Exception) -> None:
        """End the recording, and say once why there is none."""
        try:
            self._stop()
        except Exception as error:  # the profiler fails once more; the loop goes on without it
            log.debug("%s", error)
        if not self.failure:
            self._warn(str(cause) if isinstance(cause, SchedcastError) else brief(cause))

    def _warn(self, why: str) -> None:
        """Store and print why the recording fails or lacks steps.

        It is not a Python warning, since a filter may turn warnings into errors.
        """
        self.failure = why
        log.warning("watch: %s; the loop goes on", why)

    def _keep(self, profiler: profile) -> None:
        """Write the trace as a whole or not at all."""
        handle, part = tempfile.mkstemp(dir=self.trace.parent, prefix=".part-", suffix=".json.gz")
        os.close(handle)
        try:
            profiler.export_chrome_trace(part)
            os.replace(part, self.trace)
        except OSError as error:
            raise SchedcastError(f"cannot write {self.trace}: {error}; expected a folder with space; give watch(out=...)") from error
        finally:
            Path(part).unlink(missing_ok=True)
        self.ended = True
        events = profiler.key_averages()
        self._loader_s = sum(event.cpu_time_total for event in events if event.key.startswith(LOADER)) / 1e6 / self.steps
        if self._when_done is not None:
            self._when_done(self)

    @property
    def overhead(self) -> float | None:
        """The share by which recording made the steps longer: the recorded ones over those before. None if there are too few."""
        lengths = [after - before for before, after in zip(self._ends_s, self._ends_s[1:], strict=False)]
        before, recorded = lengths[1:BEFORE], lengths[BEFORE + WARM_UP :]
        return median(recorded) / median(before) - 1 if before and recorded else None

    @cached_property
    def recorded(self) -> Any:
        """The replay of the trace (`recorded.Recorded`). Raises SchedcastError if too few steps have run, or none on a GPU."""
        from ui.api.recorded import replay

        if not self.ended:
            if self.failure:
                raise SchedcastError(f"nothing was recorded: {self.failure}")
            raise SchedcastError(
                f"{max(0, len(self._ends_s) - 1)} steps have ended; expected {BEFORE + WARM_UP + self.steps} calls of step() within the"
                " block"
            )
        return replay(self.trace)

    def what_if(self, *rules: str) -> Any:
        """See `Recorded.what_if`."""
        return self.recorded.what_if(*rules)

    def report(self, path: str | Path, title: str = "Schedcast") -> Path:
        """See `Recorded.report`."""
        return self.recorded.report(path, title)

    def json(self) -> dict[str, Any]:
        """See `Shown`."""
        return self.recorded.json()

    def _print(self, console: Console) -> None:
        cost = "" if self.overhead is None else f"{_cost(self.overhead)} "
        kept = f"The trace is {self.trace}{', a temporary file; watch(out=...) keeps it' if self._own_folder else ''}."
        why = "No GPU was recorded, so nothing is replayed."
        if on_gpu() or not self.ended:
            try:
                self.recorded._print(console)
            except SchedcastError as error:
                if not self.ended:
                    raise
                why = f"Nothing is replayed: {error}"
            else:
                console.print(f"- {cost}{kept}", highlight=False, markup=False)
                return
        length = median(after - before for before, after in zip(self._ends_s[1:], self._ends_s[2:], strict=False))
        console.print(
            f"A step takes {units.duration(length)}, of which the loop waits {units.duration(self._loader_s)} for data.", style="bold",
            highlight=False,
        )  # fmt: skip
        console.print(f"- {cost}{why}", highlight=False, markup=False)


def _cost(share: float) -> str:
    """What recording cost the steps, in a sentence. Steps vary anyway, so recorded ones may be shorter."""
    if share <= 0:
        return "Recording did not make the steps longer."
    return f"Recording made the steps {units.percent(share, signed=False)} longer."


def on_gpu() -> bool:
    """Whether PyTorch sees a GPU whose work can be recorded."""
    return torch.cuda.is_available()


def _writable(out: str | Path, rank: str) -> Path:
    """The file of a rank: under torchrun, its number precedes the suffix. Raises SchedcastError if no file can be written there."""
    try:
        path = Path(out)
    except TypeError:
        raise SchedcastError(f"watch(out={out!r}); expected the path of a file") from None
    name = path.name if path.name.endswith((".json", ".json.gz")) else f"{path.name}.json.gz"
    if "RANK" in os.environ:
        stem, _, suffix = name.partition(".json")
        name = f"{stem}-rank{rank}.json{suffix}"
    try:
        path = path.with_name(name)
        with tempfile.TemporaryFile(dir=path.parent), suppress(FileNotFoundError):
            os.stat(path)  # raises for an impossible file name
    except (OSError, ValueError) as error:
        raise SchedcastError(f"watch(out={str(out)!r}): {error}; expected a file in a folder that can be written") from None
    if path.is_dir():
        raise SchedcastError(f"watch(out={str(out)!r}): {path} is a folder; expected a file")
    return path


def _say(seen: Watch) -> None:
    """Print the answer, only on the first rank."""
    if os.environ.get("RANK", "0") == "0":
        print(repr(seen), file=sys.stderr)


def hf(steps: int = 5, out: str | Path | None = None) -> Any:
    """See `schedcast.hf`."""
    from transformers import TrainerCallback

    class WatchCallback(TrainerCallback):
        """Watches the Trainer's first steps, and prints the answer when they are recorded. `seen`: the `Watch`."""

        def __init__(self):
            self.seen = Watch(steps, out, False, _say)

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.seen.__enter__()

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.seen.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.seen.__exit__(None, None, None)

    return WatchCallback()


def accelerate(steps: int = 5, out: str | Path | None = None) -> Any:
    """See `schedcast.accelerate`."""
    from accelerate.utils import ProfileKwargs

    handler: Any = ProfileKwargs()  # not a subclass: Accelerator checks the exact class of its handlers
    handler.build = lambda: Watch(steps, out, False, _say)
    return handler


def lightning(steps: int = 5, out: str | Path | None = None) -> Any:
    """See `schedcast.lightning`."""
    base: Any = import_module("lightning.pytorch" if spec_of("lightning") else "pytorch_lightning").Callback

    class WatchCallback(base):
        """Watches the first steps of a fit, and prints the answer when they are recorded. `seen`: the `Watch`."""

        def __init__(self):
            self.seen = Watch(steps, out, False, _say)

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.seen.__enter__()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
            self.seen.step()

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self.seen.__exit__(None, None, None)

    return WatchCallback()
