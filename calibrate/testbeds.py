"""Makes the testbed for a placement: this machine's CPU, its GPU, or a process group that torchrun started."""

from calibrate.cpu.testbed import CpuTestbed
from calibrate.placement import Placement, check_names, check_one_gpu
from calibrate.testbed import Testbed
from traces.errors import SchedcastError


def testbed_for(placement: Placement, precision: str) -> Testbed:
    """The testbed for `placement`. Raises SchedcastError for what this machine or version cannot run."""
    check_names(placement)
    testbed = _cpu_testbed(placement, precision) if placement.device == "cpu" else _gpu_testbed(placement, precision)
    testbed.memory_limit_bytes = placement.memory_limit_bytes
    return testbed


def cpu_testbed() -> Testbed:
    """This machine's whole CPU, the default testbed."""
    return CpuTestbed()


def _cpu_testbed(placement: Placement, precision: str) -> Testbed:
    if placement.partitions > 1:
        raise SchedcastError(
            f"--partition {placement.partition} splits a GPU; add --device cuda, or use --devices {placement.partition} for groups of cores"
        )
    if placement.mode == "graph":
        raise SchedcastError("--mode graph needs CUDA; use --mode eager or --device cuda, or predict it with --machine h200")
    if precision == "tf32":
        raise SchedcastError("--precision tf32 needs an NVIDIA GPU; use fp32 or --device cuda, or predict it with --machine h200")
    if placement.ranks is not None:
        from calibrate.distributed.cpu_testbed import CpuGroupTestbed
        from executors.distributed.control import open_channel

        return CpuGroupTestbed(open_channel(placement.ranks))
    return CpuTestbed(placement.devices or 1, placement.link)


def _gpu_testbed(placement: Placement, precision: str) -> Testbed:
    from calibrate.cuda.testbed import GpuTestbed
    from executors.cuda.torch_driver import gpu

    if placement.ranks is not None:
        if placement.device != "cuda":
            raise SchedcastError(
                f"--device {placement.device}: under torchrun every process uses the GPU of its local rank; use --device cuda"
            )
        from calibrate.distributed.gpu_testbed import GpuGroupTestbed
        from executors.distributed.control import open_channel
        from executors.distributed.own_gpu import own_gpu

        return GpuGroupTestbed(open_channel(placement.ranks), own_gpu(placement.ranks), placement.mode, precision)
    check_one_gpu(placement, "one process uses one GPU")
    number = int(placement.device.partition(":")[2] or 0)
    return GpuTestbed(gpu(number), placement.mode, precision, partitions=placement.partitions)
