"""PyTorch's own parallel loops, DistributedDataParallel and FSDP2, trained and timed in all processes together with the plans.

On CPUs, each process starts a separate one for its part of the loops, as for plain PyTorch (`calibrate.cpu.plain_process`); on GPUs it
trains itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from calibrate.cpu.plain_process import PlainProcess, ProcessLoop
from calibrate.cuda.testbed import GpuLoop
from calibrate.numerics import reference
from calibrate.testbed import TimedLoop
from executors.distributed.backend import DistributedBackend
from executors.distributed.loaded_plans import LoadedPlans
from executors.kernels.communication import TIMEOUT
from simulator.model.job import Job
from traces.errors import Code, SchedcastError


class RankLoops:
    """This process's part of the loops, by strategy. Other ranks call it for the commands of a `GroupLoop`."""

    def __init__(self):
        #: With the threads that torchrun leaves to each process.
        self.process = PlainProcess(alone=False)
        self._loops: dict[str, TimedLoop] = {}

    def __call__(self, loaded: LoadedPlans, request: str, strategy: str, *arguments: Any) -> dict[str, Any]:
        """Answer a request, `load` or `train`, about the loop of a strategy. Raises SchedcastError if the loop cannot train."""
        return getattr(self, request)(loaded, strategy, *arguments)

    def load(self, loaded: LoadedPlans, strategy: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Begin to train the job with these fields."""
        job, driver = Job(**fields), loaded.gpu_driver
        if job.lowered_dtype:
            raise SchedcastError(f"{strategy} is not timed with --precision {job.precision}; use amp", Code.MODEL)
        if driver is None:
            self._loops[strategy] = ProcessLoop(self.process, job, False, "", strategy)
            return {}
        from executors.parallel import Parallel

        parallel = Parallel(strategy, dist.new_group(timeout=TIMEOUT, backend=loaded.library), loaded.backend.torch_device.type)
        plain = reference(job, job.build(), False, loaded.backend, parallel=parallel)
        self._loops[strategy] = GpuLoop(plain, driver, driver.stream(), job.batch // parallel.group.size())
        return {}

    def train(self, loaded: LoadedPlans, strategy: str, steps: int) -> dict[str, Any]:
        """Train together with the other processes, and return the seconds of each step."""
        loaded.channel.barrier()
        return {"steps_s": self._loops[strategy].train(steps)}

    def close(self) -> None:
        """End the process of the loops on CPUs."""
        self.process.close()


class GroupLoop:
    """A loop of all processes, as the first of them controls it (`calibrate.testbed.TimedLoop`)."""

    about = ""

    def __init__(self, backend: DistributedBackend, loops: RankLoops, job: Job, strategy: str):
        """Raises SchedcastError if a process cannot train it."""
        self._backend, self._loops, self._strategy = backend, loops, strategy
        self.losses: list[float] = []
        self._everywhere("load", job.describe())

    def _everywhere(self, request: str, *arguments: Any) -> dict[str, Any]:
        parts = [request, self._strategy, *arguments]
        own, _ = self._backend.run_everywhere(lambda: self._loops(self._backend.loaded, *parts), {"command": "loop", "request": parts})
        return own

    def train(self, steps: int, batches: Sequence[tuple] | None = None) -> list[float]:
        """Train `steps` steps on the job's own batch. Each step waits for all processes, so the times of one process are enough."""
        return self._everywhere("train", steps)["steps_s"]

    def restart(self, warm_up: int) -> None:
        """Do nothing: new processes of all ranks would take much longer than the steps."""
