"""Makes the testbed for a placement: this machine's CPU, its GPU, or a process group that torchrun started; waits until it is quiet."""

import time
from collections.abc import Callable

from calibrate.cpu.monitor import CpuMonitor
from calibrate.cpu.testbed import CpuTestbed
from calibrate.placement import Placement
from calibrate.testbed import Monitor, Progress, Testbed, no_progress
from executors.distributed.ranks import Ranks
from traces.documents.verdict import is_busy
from traces.errors import SchedcastError

#: Seconds of one look.
LOOK_S = 0.5


def monitor_of(testbed: Testbed) -> Callable[[], Monitor]:
    """What watches the device of a testbed that is not open yet."""
    return testbed.monitor if testbed.identity.kind == "gpu" else CpuMonitor


def wait_until_quiet(
    monitor: Callable[[], Monitor],
    wait_s: float = 0.0,
    progress: Progress = no_progress,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float | None:
    """Wait up to `wait_s` seconds until other processes leave the machine alone; with 0, only look.

    Returns the share of the machine that they took at last, None if unknown.
    """
    begin = clock()
    while True:
        look = monitor()
        sleep(LOOK_S)
        share, waited_s = look.stop().busy_share, clock() - begin
        if not is_busy(share) or waited_s >= wait_s:
            return share
        progress(int(waited_s), int(wait_s), f"others take {100 * share:.0f} % of the machine")


def testbed_for(placement: Placement, precision: str) -> Testbed:
    """The testbed for `placement`. Raises SchedcastError for what this machine or version cannot run."""
    if placement.device != "cpu":
        testbed = _gpu_testbed(placement, precision)
    elif placement.ranks is None:
        return cpu_testbed(placement, precision)
    else:
        testbed = _cpu_group_testbed(placement, placement.ranks, precision)
    testbed.memory_limit_bytes = placement.memory_limit_bytes
    return testbed


def cpu_testbed(placement: Placement, precision: str) -> CpuTestbed:
    """The testbed of this CPU for a single process. Raises SchedcastError for what a CPU cannot run."""
    _check_cpu(placement, precision)
    testbed = CpuTestbed(placement.devices or 1, placement.link)
    testbed.memory_limit_bytes = placement.memory_limit_bytes
    return testbed


def _cpu_group_testbed(placement: Placement, ranks: Ranks, precision: str) -> Testbed:
    from calibrate.distributed.testbeds import CpuGroupTestbed
    from executors.distributed.control import open_channel

    _check_cpu(placement, precision)
    return CpuGroupTestbed(open_channel(ranks))


def _check_cpu(placement: Placement, precision: str) -> None:
    if placement.partitions > 1:
        raise SchedcastError(
            f"--partition {placement.partition} splits a GPU; add --device cuda, or use --devices {placement.partition} for groups of cores"
        )
    if placement.mode == "graph":
        raise SchedcastError("--mode graph needs CUDA; use --mode eager or --device cuda, or predict it with --machine h200")
    if precision == "tf32":
        raise SchedcastError("--precision tf32 needs an NVIDIA GPU; use fp32 or --device cuda, or predict it with --machine h200")


def _gpu_testbed(placement: Placement, precision: str) -> Testbed:
    from calibrate.cuda.testbed import GpuTestbed
    from executors.cuda.torch_driver import gpu, several_gpus

    if placement.ranks is not None:
        if placement.device != "cuda":
            raise SchedcastError(
                f"--device {placement.device}: under torchrun every process uses the GPU of its local rank; use --device cuda"
            )
        from calibrate.distributed.testbeds import GpuGroupTestbed
        from executors.distributed.control import open_channel
        from executors.distributed.loaded_plans import own_gpu

        return GpuGroupTestbed(open_channel(placement.ranks), own_gpu(placement.ranks), placement.mode, precision)
    if (placement.devices or 1) > 1:
        first, *others = several_gpus(placement.devices or 1)
        return GpuTestbed(first, placement.mode, precision, others=others)
    number = int(placement.device.partition(":")[2] or 0)
    return GpuTestbed(gpu(number), placement.mode, precision, partitions=placement.partitions)
