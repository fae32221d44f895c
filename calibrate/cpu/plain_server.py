"""The process that runs plain PyTorch: it trains a job, and times the ops of its loop, when its parent asks for it (`plain_process`).

It has the environment and the number of threads of the user's own programs. It does not apply the executor's settings of the allocator and
of its workers' threads.
"""

import mmap
import os
import pickle
import platform
import signal
import statistics
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch

from calibrate.cpu.sampler import PairSampler
from calibrate.numerics import reference
from calibrate.tiny_model import loop_costs, loop_plan
from executors.binding import Forms
from executors.cpu.allocator import prepare
from executors.cpu.cores import waiting
from executors.kernels.communication import TIMEOUT
from executors.reference import Reference
from executors.tensors import module_tensors
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.model.user_code import brief, training_step
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.documents.profile import LoopCosts
from traces.errors import SchedcastError
from traces.process import seconds_of

if TYPE_CHECKING:
    from executors.parallel import Parallel

_SAMPLES = 15
#: Bytes of fresh memory that are written at a time: more than the caches of many CPUs, little enough to take milliseconds.
_FRESH_BYTES = 24 << 20


def measure_loop(sampler: PairSampler) -> LoopCosts:
    """Time a loop of tiny ops on this thread against the same ops one by one. `sampler`: of this thread, without keys."""
    machine = this_cpu(cores=1)
    job, plan = loop_plan(machine)
    keys = plan.keys(machine)
    sampler.add(plan, keys)
    with torch.no_grad():
        for number in range(_SAMPLES):
            sampler.sample(list(keys), number)
    own_s = {key: statistics.median(s.warm_s[1:]) for key, s in sampler.samples.items() if key not in sampler.failures}
    costs = loop_costs(job, plan, machine, own_s, seconds_of)
    return costs.model_copy(update={"fresh_s_per_byte": _fresh_s_per_byte()})


def _fresh_s_per_byte() -> float:
    """How much longer the first write to fresh memory takes than a later one, per byte, on PyTorch's threads; 0 without glibc's malloc."""
    if platform.libc_ver()[0] != "glibc":
        return 0.0

    def extra_s() -> float:
        block = torch.frombuffer(mmap.mmap(-1, _FRESH_BYTES), dtype=torch.float32)
        first_s, _, later_s = (seconds_of(lambda: block.fill_(1.0)) for _ in range(3))
        return first_s - later_s

    return max(0.0, statistics.median(extra_s() for _ in range(_SAMPLES)) / _FRESH_BYTES)


#: Dropout draws its masks as PyTorch does.
_OWN_DRAWS = Forms(draws="stream")


class PlainServer:
    """What the process does. Each method but those with an underscore answers one kind of request."""

    def __init__(self):
        self._loops: dict[str, tuple[Reference, int]] = {}  # with the batch, by the name of a parallel one
        self._sampler = PairSampler(forms=_OWN_DRAWS)
        self._plan: Plan | None = None

    def loop_costs(self) -> LoopCosts:
        """Measure what the loop adds to its ops."""
        threads, policy = self.threads()
        return measure_loop(PairSampler()).model_copy(update={"threads": threads, "waiting": policy})

    def threads(self) -> tuple[int, str]:
        """The number of threads of an op, and how they wait (`executors.cpu.cores`)."""
        return torch.get_num_threads(), waiting(os.environ)

    def load(self, fields: dict[str, Any], same_masks: bool, parallel: str = "") -> None:
        """Begin to train a job, given its fields. `same_masks`: as in `calibrate.numerics.reference`.

        `parallel`: in this loop of `PARALLEL_LOOPS`, as one of the processes that torchrun has started.
        """
        self._loops.pop(parallel, None)  # frees it before the next one is made
        job = Job(**fields)
        plain = reference(job, job.build(), same_masks, parallel=_joined(parallel) if parallel else None)
        self._loops[parallel] = plain, job.batch

    def train(self, steps: int, batches: list | None, parallel: str = "") -> tuple[list[float], list[float]]:
        """Train `steps` steps, on `batches` of (inputs, target) or on the job's own. Returns each step's seconds, and the losses."""
        plain, batch = self._loops[parallel]
        steps_s, losses = [], []
        with training_step(batch):
            for number in range(steps):
                if batches is not None:
                    plain.feed(*batches[number])
                begin = time.perf_counter()
                losses.append(plain.step())
                steps_s.append(time.perf_counter() - begin)
        return steps_s, [float(loss) for loss in losses]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach() for name, tensor in module_tensors(self._loops[""][0].module).items()}

    def forget_keys(self) -> None:
        """Free the operands of all keys."""
        self._sampler, self._plan = PairSampler(forms=_OWN_DRAWS), None

    def add_keys(self, plan: Plan | None, keys: dict[str, Task]) -> dict[str, str]:
        """Compile keys of `plan` (None: the one of the last call). Returns why keys cannot be sampled."""
        prepare()
        self._plan = plan or self._plan
        self._sampler.add(self._plan, keys)
        return self._sampler.failures

    @torch.no_grad()
    def sample(self, keys: list[str], number: int) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
        """Take sample `number` of each key. Returns its cold and its warm seconds, and why other keys cannot be sampled."""
        sampler = self._sampler
        sampler.sample(keys, number)
        usable = (key for key in keys if key not in sampler.failures)
        return {key: (sampler.samples[key].cold_s[-1], sampler.samples[key].warm_s[-1]) for key in usable}, sampler.failures


def _joined(loop: str) -> "Parallel":
    """The loop with the group of all processes, which meet at torchrun's store: which is not this process's."""
    import torch.distributed as dist

    from executors.parallel import Parallel

    if not dist.is_initialized():
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        store, rank, world = next(dist.rendezvous("env://"))
        dist.init_process_group("gloo", store=dist.PrefixStore("loops", store), rank=rank, world_size=world, timeout=TIMEOUT)
    everybody = dist.group.WORLD
    assert everybody is not None, "it has been made"
    return Parallel(loop, everybody)


def serve() -> None:
    """Answer the requests that arrive on standard input, a socket, until the parent ends or closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent ends this one
    channel = Connection(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # a model's code may read its standard input
    server = PlainServer()
    with suppress(EOFError, ConnectionError):
        while True:
            name, arguments = pickle.loads(channel.recv_bytes())
            try:
                answer = True, getattr(server, name)(*arguments)
            except SchedcastError as error:
                answer = False, str(error)
            except Exception as error:
                answer = False, brief(error)
            channel.send_bytes(pickle.dumps(answer))
