"""Which versions there are, and which of the libraries that Stepcast uses answer."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

import torch

from calibrate.device_record import DeviceRecord
from calibrate.identity import describe_gpu, this_gpu
from calibrate.preflight.check import SUBSTITUTE, UNCERTAIN, Check, CheckContext, Finding
from executors.cuda.driver import Driver
from simulator.models.user_code import brief

#: Distributions whose versions decide what the probes below find.
_DISTRIBUTIONS = (
    "cuda-bindings",
    "cuda-pathfinder",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-cupti",
    "nvidia-ml-py",
    "triton",
    "numpy",
    "pydantic",
)


def _run(context: CheckContext) -> Finding:
    driver = context.driver
    uuid = getattr(driver, "uuid", "")
    record = DeviceRecord.read(uuid)
    context.figure("device", describe_gpu(this_gpu(driver, "fp32", record)))
    context.figure("versions", {"python": python_version(), **driver.software(), **_installed()})
    context.figure("nvml", dict(record.facts))
    faults = (
        [(UNCERTAIN, f"give Stepcast the GPU alone: NVML counts {record.facts['other_processes']} other processes on it")]
        if record.facts.get("other_processes")
        else []
    )
    if uuid and record.notes:
        faults.append((SUBSTITUTE, f"let NVML answer, so that throttling and other processes are seen: {'; '.join(record.notes)}"))
    if str(driver.software().get("max_connections", "")).startswith("default"):
        faults.append((UNCERTAIN, "set CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA starts: more than 8 streams share hardware queues now"))
    answers = {}
    for name, (probe, worth, mend) in _PROBES.items():
        why = _answer(driver, probe)
        answers[name] = why or "ok"
        context.figure("probes", dict(answers))
        if why:
            faults.append((worth, f"{mend}: {why}"))
    return Finding.of(faults, "every library that Stepcast uses answers")


def _installed() -> dict[str, str]:
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _answer(driver: Driver, probe: Callable[[Driver], str | None]) -> str | None:
    """None if the probe is answered, else why not."""
    try:
        return probe(driver)
    except Exception as error:
        return brief(error)


def _partitions(driver: Driver) -> None:
    driver.partitions(2)


def _nvrtc(driver: Driver) -> str | None:
    seen = len(driver.sm_ids(driver.stream()))
    return None if seen == driver.facts.sms else f"its kernel ran on {seen} of {driver.facts.sms} SMs"


def _host_call(driver: Driver) -> None:
    driver.use(driver.stream())
    driver.call_host(0.0)
    driver.synchronize()


def _cudnn(driver: Driver) -> str | None:
    return "torch.backends.cudnn is not available" if driver.device.type == "cuda" and not torch.backends.cudnn.is_available() else None


def _cupti(driver: Driver) -> str | None:
    driver.use(driver.stream())
    x = torch.ones(1 << 16, device=driver.device)
    kernels = driver.kernels([lambda: x.add_(1)])
    return "the profiler is refused" if kernels is None else None if kernels[0] else "the profiler lists no kernel of an addition"


#: By name: the probe, which returns or raises why it was not answered; the worth of mending that; and what to mend.
_PROBES: dict[str, tuple[Callable[[Driver], str | None], int, str]] = {
    "cudnn": (_cudnn, UNCERTAIN, "install a PyTorch with cuDNN, which convolutions and batch-norm are measured with"),
    "nvrtc": (_nvrtc, SUBSTITUTE, "let NVRTC compile kernels: scans run as batched products, and partitions stay unchecked"),
    "green_contexts": (_partitions, SUBSTITUTE, "make green contexts work, without which one GPU cannot be several devices"),
    "host_calls": (_host_call, SUBSTITUTE, "let streams call the host, which TurboDL's callbacks need"),
    "cupti": (_cupti, UNCERTAIN, "let the profiler see kernels: their grids are guessed from times on partitions now"),
}

CHECK = Check("versions", "Which versions are there, and which libraries answer?", 90.0, _run)
