"""Opens the testbed that a placement asks for: this machine's CPU, its GPU, or a process group that torchrun started."""

from calibrate.cpu.testbed import CpuTestbed, Testbed
from calibrate.placement import Placement, check_names
from traces.errors import StepcastError


def testbed_for(placement: Placement, precision: str) -> Testbed:
    """Where to measure. Raises StepcastError for what this machine or version cannot run."""
    check_names(placement)
    testbed = _stand(placement, precision)
    testbed.memory_limit_bytes = placement.memory_limit_bytes
    return testbed


def _stand(placement: Placement, precision: str) -> Testbed:
    device, mode = placement.device, placement.mode
    if device == "cpu":
        if mode == "graph":
            raise StepcastError("--mode graph needs CUDA; use --mode eager or --device cuda, or predict it with --machine h200")
        if precision == "tf32":
            raise StepcastError("--precision tf32 needs an NVIDIA GPU; use fp32 or --device cuda, or predict it with --machine h200")
        if placement.ranks is not None:
            from calibrate.distributed.testbed import CpuGroupTestbed
            from executors.distributed.control import open_channel

            return CpuGroupTestbed(open_channel(placement.ranks))
        return CpuTestbed(placement.devices or 1, placement.link)
    from calibrate.cuda.testbed import GpuTestbed
    from executors.cuda.torch_driver import gpu

    if placement.ranks is not None:
        if device != "cuda":
            raise StepcastError(f"--device {device}: under torchrun every process has the GPU of its own number; use --device cuda")
        from calibrate.distributed.gpus import GpuGroupTestbed
        from executors.distributed.control import open_channel

        return GpuGroupTestbed(open_channel(placement.ranks), gpu(placement.ranks.local_rank), mode, precision)
    return GpuTestbed(gpu(int(device.partition(":")[2] or 0)), mode, precision, partitions=placement.devices or 1)
