"""`watch`: record a few steps of a training loop that exists, and say what they wait for. The others are the same for libraries."""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch.profiler import ProfilerActivity, profile, schedule

from traces import units
from traces.errors import SchedcastError
from ui.api.shown import Shown

#: Steps that run unrecorded first, whose time says what recording costs, and those in which the profiler starts.
BEFORE, WARM_UP = 3, 1
#: How PyTorch's loaders mark the time in which they make, or wait for, a batch.
LOADER = "enumerate(DataLoader)"


class Watch(Shown):
    """Steps of a loop that are recorded within a `with` block. Afterwards it is their answer, and stands for their trace.

    `trace`: the file of the recording. `ended`: whether it is complete.
    """

    def __init__(self, steps: int, out: str | Path | None, memory: bool, when_done: Callable[["Watch"], object] | None = None):
        """Record `steps` steps, after BEFORE others, into the file `out`; by default one in the folder of temporary files."""
        if steps < 1:
            raise SchedcastError(f"watch(steps={steps}); expected at least 1 step to record")
        rank = os.environ.get("RANK", "0")
        self.trace = (
            Path(tempfile.gettempdir()) / f"schedcast-{os.getpid()}-rank{rank}.json.gz" if out is None else _ranked(Path(out), rank)
        )
        self.steps, self.ended = steps, False
        self._when_done, self._memory = when_done, memory
        self._ends_s: list[float] = []
        self._loader_s = 0.0
        self._profiler: Any = None

    def start(self) -> "Watch":
        """Start without a `with` block. The answer is printed when enough steps are recorded."""
        self._when_done = _say
        return self.__enter__()

    def __enter__(self) -> "Watch":
        """Start."""
        activities = {ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu() else [])}
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=BEFORE, warmup=WARM_UP, active=self.steps, repeat=1),
            on_trace_ready=self._keep,
            record_shapes=True,
            profile_memory=self._memory,
        )
        self._profiler.__enter__()
        self._ends_s = [time.perf_counter()]
        return self

    def step(self) -> None:
        """Say that a step has ended. When enough are recorded, this does nothing."""
        if self.ended or self._profiler is None:
            return
        self._ends_s.append(time.perf_counter())
        self._profiler.step()
        if self.ended:
            self._profiler.__exit__(None, None, None)

    def __exit__(self, *error: object) -> None:
        """Stop. What was recorded until here is kept."""
        if self._profiler is not None and not self.ended:
            self._profiler.__exit__(*error)

    def _keep(self, profiler: profile) -> None:
        """Write the trace as a whole or not at all."""
        self.ended = True
        part = self.trace.with_name(f".part-{self.trace.name}")
        try:
            profiler.export_chrome_trace(str(part))
            os.replace(part, self.trace)
        except OSError as error:
            raise SchedcastError(f"cannot write {self.trace}: {error}; expected a folder with space; give watch(out=...)") from error
        finally:
            part.unlink(missing_ok=True)
        events = profiler.key_averages()
        self._loader_s = sum(event.cpu_time_total for event in events if event.key.startswith(LOADER)) / 1e6 / self.steps
        if self._when_done is not None:
            self._when_done(self)

    @property
    def overhead(self) -> float | None:
        """By which share recording made the steps longer: the recorded ones over those before. None if there are too few."""
        lengths = [after - before for before, after in zip(self._ends_s, self._ends_s[1:], strict=False)]
        before, recorded = lengths[1:BEFORE], lengths[BEFORE + WARM_UP :]
        return median(recorded) / median(before) - 1 if before and recorded else None

    @cached_property
    def recorded(self) -> Any:
        """The replay of the trace (`recorded.Recorded`). Raises SchedcastError if too few steps have run, or none on a GPU."""
        from ui.api.recorded import replay

        if not self.ended:
            raise SchedcastError(
                f"{len(self._ends_s) - 1} steps have ended; expected {BEFORE + WARM_UP + self.steps} calls of step() within the block"
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
        if not on_gpu() and self.ended:
            length = median(after - before for before, after in zip(self._ends_s[1:], self._ends_s[2:], strict=False))
            console.print(
                f"A step takes {units.duration(length)}, of which the loop waits {units.duration(self._loader_s)} for data.", style="bold",
                highlight=False,
            )  # fmt: skip
            console.print(f"- {cost}No GPU was recorded, so nothing is replayed.", highlight=False)
            return
        self.recorded._print(console)
        console.print(f"- {cost}The trace is {self.trace}.", highlight=False, markup=False)


def _cost(share: float) -> str:
    """What recording cost the steps, in a sentence. Steps vary by themselves, so that recorded ones may be shorter."""
    if share <= 0:
        return "Recording did not make the steps longer."
    return f"Recording made the steps {units.percent(share, signed=False)} longer."


def on_gpu() -> bool:
    """Whether PyTorch sees a GPU whose work can be recorded."""
    return torch.cuda.is_available()


def _ranked(path: Path, rank: str) -> Path:
    """The file of a rank: under torchrun, its number precedes the suffix."""
    name = path.name if path.name.endswith((".json", ".json.gz")) else f"{path.name}.json.gz"
    if "RANK" in os.environ:
        stem, _, suffix = name.partition(".json")
        name = f"{stem}-rank{rank}.json{suffix}"
    return path.with_name(name)


def _say(seen: Watch) -> None:
    """Print what was seen, on the first rank alone."""
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

    handler: Any = ProfileKwargs()  # no class of ours: Accelerator knows its handlers by their very class
    handler.build = lambda: Watch(steps, out, False, _say)
    return handler


def lightning(steps: int = 5, out: str | Path | None = None) -> Any:
    """See `schedcast.lightning`."""
    base: Any = import_module("lightning.pytorch" if find_spec("lightning") else "pytorch_lightning").Callback

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
