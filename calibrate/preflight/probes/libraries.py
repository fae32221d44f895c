"""Which GPU and which versions there are, and which of the libraries that Schedcast uses answer."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

import torch

from calibrate.preflight.probe import SUBSTITUTE, UNCERTAIN, Context, Order, Probe
from executors.cuda.driver import Driver
from simulator.model.user_code import brief

#: Distributions whose versions decide what probes find.
_DISTRIBUTIONS = (
    "schedcast", "cuda-bindings", "cuda-pathfinder", "nvidia-cuda-nvrtc", "nvidia-cuda-cupti", "nvidia-ml-py", "triton", "numpy",
    "pydantic",
)  # fmt: skip


def _versions(context: Context) -> str:
    driver, record = context.driver, context.record
    software = driver.software()
    context.figure("device", context.about())
    context.figure("identity", {str(tf32): identity.model_dump(mode="json") for tf32, identity in context.identities.items()})
    context.figure("versions", {"python": python_version(), **software, **{name: _installed(name) for name in _DISTRIBUTIONS}})
    context.figure("nvml", record.facts)
    context.figure("gpu", vars(driver.facts))
    if others := record.facts.get("other_processes"):
        context.fault(UNCERTAIN, f"give Schedcast the GPU alone: NVML counts {others} other processes that compute on it")
    if getattr(driver, "uuid", "") and record.notes:
        context.fault(SUBSTITUTE, f"let NVML answer, so that throttling and other processes are seen: {'; '.join(record.notes)}")
    if str(software.get("max_connections", "")).startswith("default"):
        context.fault(UNCERTAIN, "set CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA starts: more than 8 streams share hardware queues now")
    answers = {}
    for name, (ask, worth, fix) in _LIBRARIES.items():
        try:
            why = ask(driver)
        except Exception as error:
            why = brief(error)
        answers[name] = why or "ok"
        context.figure("libraries", answers)
        if why:
            context.fault(worth, f"{fix}: {why}")
    return "every library that Schedcast uses answers"


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _green_contexts(driver: Driver) -> None:
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


#: By name: what asks the library, and returns or raises why it does not answer; what fixing that is worth; and what to fix.
_LIBRARIES: dict[str, tuple[Callable[[Driver], str | None], int, str]] = {
    "cudnn": (_cudnn, UNCERTAIN, "install a PyTorch with cuDNN, which convolutions and batch-norm are measured with"),
    "nvrtc": (_nvrtc, SUBSTITUTE, "let NVRTC compile kernels: scans run as batched products, and partitions stay unchecked"),
    "green_contexts": (_green_contexts, SUBSTITUTE, "make green contexts work, without which one GPU cannot be several devices"),
    "host_calls": (_host_call, SUBSTITUTE, "let streams call the host, which TurboDL's callbacks need"),
    "cupti": (_cupti, UNCERTAIN, "let the profiler see kernels: their grids are estimated from times on partitions now"),
}

#: The first of all, which also says which GPU it is, and runs in every call.
PROBES = (Probe("versions", "Which versions are there, and which libraries answer?", _versions, Order.IDENTITY, 90.0),)
