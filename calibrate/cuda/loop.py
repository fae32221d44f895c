"""What the host spends in PyTorch's own loop, besides what the executor needs to issue the same ops."""

from collections.abc import Callable

from calibrate.cuda.bench import Bench
from calibrate.cuda.dispatch import TinyOps
from calibrate.loop import loop_costs
from executors.cuda.backend import CudaBackend
from traces.documents.profile import LoopCosts


def measure_loop(bench: Bench, tiny: TinyOps, steps: int) -> LoopCosts:
    """Time the host in `steps` steps of a loop of tiny ops on an idle stream, against the executor's issue of the same ops one by one."""
    driver = bench.driver
    driver.use(bench.stream)

    def seconds_of(work: Callable[[], object]) -> float:
        driver.synchronize()
        begin = driver.now_s()
        work()
        return driver.now_s() - begin

    costs = loop_costs(tiny.loop_job, tiny.loop, tiny.machine, tiny.issue_s, seconds_of, CudaBackend(tiny.machine, driver), steps)
    driver.synchronize()
    return costs
