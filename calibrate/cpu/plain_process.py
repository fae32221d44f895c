"""Runs plain PyTorch in a separate process, started with the user's environment.

It cannot run in our process: the executor's workers need threads that sleep while they wait and memory that is never returned, and both
change plain PyTorch's step time by up to 1.7 times. The process is stopped between requests (SIGSTOP), so that its threads, which may spin
after an op for as long as the user's OpenMP lets them, never share a core with our workers.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

import torch

from calibrate.samples import Samples
from executors.cpu.cores import user_environment
from simulator.engine.costs.model import measurable
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.errors import SchedcastError
from traces.process import IMPORT_ROOT, interrupts_delayed

#: The prefix of the names of our packages.
_PREFIX = __package__.removesuffix("calibrate.cpu")
#: Loads our packages before the folders of the user's modules are searched, which are those of this process. Ends with its parent from the
#: start: PyTorch takes seconds to load.
_PROGRAM = f"""
import json, os, sys
root, path = json.loads(sys.argv[1])
sys.path.insert(0, root)
from {_PREFIX}traces.process import end_with
end_with(os.getppid())
import {_PREFIX}traces, {_PREFIX}simulator, {_PREFIX}executors, {_PREFIX}calibrate
sys.path[:] = path
from {_PREFIX}calibrate.cpu.plain_server import serve
serve()
"""
#: The last characters of the process's errors in which its last line is looked for.
_TAIL = 4000


def launch(command: list[str], environment: dict[str, str], channel: int, errors: IO) -> subprocess.Popen:
    """Start the process. Its standard input is `channel`, and its messages go to `errors`."""
    return subprocess.Popen(command, env=environment, stdin=channel, stdout=subprocess.DEVNULL, stderr=errors)


class PlainProcess:
    """The process, which starts with the first request. It ends with `close`, with this object, and with this process however that ends."""

    def __init__(self, alone: bool = True):
        """`alone`: it is plain PyTorch's only process, else one of those that torchrun has started."""
        self._process: subprocess.Popen | None = None
        self._alone = alone

    def ask(self, name: str, *arguments: object) -> Any:
        """The answer of `PlainServer` to a request. Raises SchedcastError if it cannot answer, or ends."""
        process = self._process or self._start()
        try:
            os.kill(process.pid, signal.SIGCONT)
            self._channel.send_bytes(pickle.dumps((name, arguments)))
            answered, answer = pickle.loads(self._channel.recv_bytes())
            os.kill(process.pid, signal.SIGSTOP)
        except (EOFError, ConnectionError, ProcessLookupError) as error:
            why = self._last_words(process)
            self.close()
            raise SchedcastError(
                f"the process that runs plain PyTorch ended{why}; is there enough memory for two copies of the model?"
            ) from error
        except BaseException:  # an answer may still be on its way
            self.close()
            raise
        if not answered:
            raise SchedcastError(answer)
        return answer

    def _start(self) -> subprocess.Popen:
        command = [sys.executable, "-P", "-c", _PROGRAM, json.dumps([str(IMPORT_ROOT), sys.path])]
        with interrupts_delayed(), ExitStack() as failed:
            self._errors = failed.enter_context(tempfile.TemporaryFile())
            self._channel, theirs = map(failed.enter_context, Pipe())
            try:
                process = launch(command, user_environment(alone=self._alone), theirs.fileno(), self._errors)
            except OSError as error:
                raise SchedcastError(f"the process that runs plain PyTorch cannot be started: {error}") from error
            theirs.close()
            failed.pop_all()
            self._process, self._end = process, weakref.finalize(self, _end, process, self._channel, self._errors)
        return process

    def close(self) -> None:
        """End the process. The next request starts another one."""
        if self._process is not None:
            self._end()
            self._process = None

    def _last_words(self, process: subprocess.Popen) -> str:
        """How the process ended, according to its status and its last line."""
        status = process.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _TAIL))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f" by signal {-status}" if status < 0 else f" with status {status}"
        return f"{how}: {lines[-1]}" if lines else how


def _end(process: subprocess.Popen, channel: Connection, errors: IO) -> None:
    process.kill()
    process.wait()
    channel.close()
    errors.close()


class ProcessLoop:
    """Plain PyTorch's training of a job in the process (`calibrate.testbed.PlainLoop`)."""

    def __init__(self, process: PlainProcess, job: Job, same_masks: bool, about: str, parallel: str = ""):
        """`parallel`: as in `PlainServer.load`. Such a loop shares its process with others, and starts with it once."""
        self._process, self.about, self._parallel = process, about, parallel
        self._load = "load", job.describe(), same_masks, parallel
        self._start()

    def restart(self, warm_up: int) -> None:
        """Load the job again in a new process, whose memory has no history, and train `warm_up` steps."""
        self._start()
        self.train(warm_up)

    def _start(self) -> None:
        if not self._parallel:
            self._process.close()
        self._process.ask(*self._load)
        self.losses: list[float] = []

    def train(self, steps: int, batches: Sequence[tuple] | None = None) -> list[float]:
        """Train `steps` steps, each timed individually."""
        steps_s, losses = self._process.ask("train", steps, batches, self._parallel)
        self.losses += losses
        return steps_s

    def copy_current(self, targets: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in self._process.ask("tensors").items():
            targets[name].detach().copy_(tensor)


class ProcessSampler:
    """Samples the keys of plain PyTorch in the process; here are the samples (as in `calibrate.cpu.sampler.PairSampler`)."""

    def __init__(self, process: PlainProcess):
        """Only one of them has keys at a time."""
        self._process = process
        self._sent: Plan | None = None
        self.samples: dict[str, Samples] = {}
        self.failures: dict[str, str] = {}
        process.ask("forget_keys")

    def add(self, plan: Plan, keys: dict[str, Task]) -> None:
        """Compile the tasks of `keys`. Keys that were added before, and keys that need no measuring, are skipped."""
        fresh = {key: task for key, task in keys.items() if key not in self.samples and measurable(task)}
        if fresh:
            self.failures |= self._process.ask("add_keys", None if plan is self._sent else plan, fresh)
            self._sent = plan
            self.samples |= {key: Samples(task) for key, task in fresh.items()}

    def sample(self, keys: list[str], number: int) -> None:
        pairs_s, failures = self._process.ask("sample", keys, number)
        self.failures |= failures
        for key, pair_s in pairs_s.items():
            self.samples[key].keep(pair_s, number)
