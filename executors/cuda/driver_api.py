"""Calls the CUDA driver where PyTorch has no function: streams of every priority, partitions (green contexts), and calls of the host.

It uses the optional package cuda-bindings, which PyTorch's CUDA builds install. Only host calls use the driver's library directly, because
cuda.bindings 12.9 and 13.0 pass a wrapper to cuLaunchHostFunc instead of the function (13.5 does not). The wrapper needs Python's global
lock, and data that lives for one call only, so in a graph only the first replay is known to reach the function (NVIDIA/cuda-python,
"cudaLaunchHostFunc doesn't work with CUDA Graph").

All partitions come from one split of the device. Splitting the device once per partition, as torch.cuda.green_contexts does, gives
partitions that overlap. A partition's context is never destroyed, because its streams, and the graphs captured on them, may be used as long
as the process lives.

No two streams in use share a queue. PyTorch has a pool of 32 streams per priority and hands them out in turn, so the 33rd is the first one
again. Its priorities end at −3, although the driver may have more. Streams created by the driver fill both gaps. A stream is in use as long
as its object lives. Then its queue is reused, so that a thousand programs need no more queues than the largest of them.
"""

import ctypes
import weakref
from functools import cache
from types import ModuleType
from typing import Any

import torch

from executors.cuda.driver import Partition
from traces.errors import SchedcastError


class DriverApi:
    """The functions of `cuda.bindings.driver`, with errors raised as SchedcastError. `names`: the module itself, for its constants."""

    def __init__(self, names: ModuleType):
        self.names = names

    def __call__(self, function: str, *args: Any) -> Any:
        """Call one function. Returns its only output, or a tuple of its outputs. Raises SchedcastError if it fails or does not exist."""
        try:
            code, *outputs = getattr(self.names, function)(*args)
        except AttributeError as error:
            raise SchedcastError(f"cuda-bindings has no {function} ({error}); install a newer one: pip install -U cuda-bindings") from error
        except RuntimeError as error:  # cuda.bindings looks the function up in libcuda at the first call
            raise SchedcastError(f"the GPU driver has no {function} ({first_line(error)}); update the driver") from error
        if int(code) != 0:
            raise SchedcastError(f"{function} failed with {code.name}; see the CUDA driver's documentation of that error")
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def find_driver_api() -> DriverApi | None:
    """The driver's functions; None if the package cuda-bindings is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    return DriverApi(driver)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


#: Streams per priority in PyTorch's pool (c10/cuda/CUDAStream.cpp, kStreamsPerPool).
POOLED = 32


class _Use:
    """What a stream in use refers to, so that both end together. `twin`: another object for the stream's queue.

    PyTorch 2.11 frees a stream without telling weak references to it, which then lead to freed memory (pytorch/pytorch#183403).
    """

    def __init__(self, twin: torch.cuda.Stream):
        self.twin = twin


class Streams:
    """The streams of one GPU. A process must not have two such objects for one GPU, because they would hand out the same streams."""

    def __init__(self, device: torch.device, api: DriverApi | None):
        self._device, self._api = device, api
        self._used: weakref.WeakValueDictionary[int, _Use] = weakref.WeakValueDictionary()
        self._spare: dict[tuple[object, int], list[int]] = {}
        least, greatest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]  # a static method
        self._pooled_levels = least - greatest + 1
        self.levels = self._pooled_levels
        if api is not None:
            with torch.cuda.device(device):
                least, greatest = api("cuCtxGetStreamPriorityRange")
            self.levels = least - greatest + 1

    def open(self, priority: int, partition: Partition | None = None) -> torch.cuda.Stream:
        """A stream with a separate queue. Raises SchedcastError if all of PyTorch's are in use and cuda.bindings is not installed."""
        priority = min(0, max(1 - self.levels, priority))
        if partition is None and priority > -self._pooled_levels:
            for _ in range(POOLED):
                pooled = torch.cuda.Stream(self._device, priority=priority)
                if pooled.cuda_stream not in self._used:
                    self._lend(pooled)
                    return pooled
        if self._api is None:
            raise SchedcastError(
                f"PyTorch has only {POOLED} distinct streams of priority {priority}; install the package cuda-bindings to get more, "
                "or run a plan with fewer lanes"
            )
        return self._driver_stream(self._api, priority, partition)

    def in_use(self) -> list[torch.cuda.Stream]:
        """The queues of the streams that have been opened and are still in use."""
        return [use.twin for use in self._used.values()]

    def _lend(self, stream: torch.cuda.Stream) -> _Use:
        """Note that the stream is in use, as long as it lives."""
        use = _Use(torch.cuda.ExternalStream(stream.cuda_stream, device=self._device))
        stream.__dict__["use"] = self._used[stream.cuda_stream] = use
        return use

    def _driver_stream(self, api: DriverApi, priority: int, partition: Partition | None) -> torch.cuda.Stream:
        """A stream created by the driver, or one that is not in use any more."""
        spare = self._spare.setdefault((partition, priority), [])
        if spare:
            handle = spare.pop()
        elif partition is not None:
            handle = open_stream(api, partition, priority)
        else:
            with torch.cuda.device(self._device):  # the driver creates a stream in the current context
                handle = int(api("cuStreamCreateWithPriority", int(api.names.CUstream_flags.CU_STREAM_NON_BLOCKING), priority))
        stream = torch.cuda.ExternalStream(handle, device=self._device)
        weakref.finalize(self._lend(stream), spare.append, handle).atexit = False
        return stream


#: The first CUDA version that has cuGreenCtxStreamCreate.
OLDEST_CUDA = 12050


_INSTEAD = "use the whole GPU as one device instead"


def split(api: DriverApi | None, index: int, count: int) -> tuple[Partition, ...]:
    """Split GPU `index` into `count` disjoint partitions of equal size. SMs that alignment leaves over stay unused.

    The primary context must exist. Raises SchedcastError with the reason if the GPU cannot be split.
    """
    if api is None:
        raise SchedcastError(f"partitions need the package cuda-bindings, which is not installed; install it, or {_INSTEAD}")
    if count < 1:
        raise SchedcastError(f"cannot split a GPU into {count} partitions; expected 1 or more")
    version = api("cuDriverGetVersion")
    if version < OLDEST_CUDA:
        raise SchedcastError(
            f"partitions need a GPU driver for CUDA 12.5 or newer, this one is for {version // 1000}.{version % 1000 // 10}; "
            f"update the driver, or {_INSTEAD}"
        )
    sm = api.names.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    device = api("cuDeviceGet", index)
    whole = api("cuDeviceGetDevResource", device, sm)
    smallest, step = granularity(api, device, whole.sm)
    size = whole.sm.smCount // count // step * step
    if size < smallest:
        raise SchedcastError(
            f"{whole.sm.smCount} SMs cannot be split into {count} partitions: each must have at least {smallest} SMs, in steps of {step}; "
            f"ask for fewer, or {_INSTEAD}"
        )
    groups, group_count, _rest = api("cuDevSmResourceSplitByCount", count, whole, 0, size)
    if group_count < count:
        raise SchedcastError(f"the driver made only {group_count} of {count} partitions of {size} SMs; ask for fewer, or {_INSTEAD}")
    partitions = []
    for number, group in enumerate(groups[:count]):
        description = api("cuDevResourceGenerateDesc", [group], 1)
        context = api("cuGreenCtxCreate", description, device, int(api.names.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM))
        partitions.append(Partition(number, int(api("cuGreenCtxGetDevResource", context, sm).sm.smCount), context))
    if len({partition.sms for partition in partitions}) > 1:
        sizes = ", ".join(str(partition.sms) for partition in partitions)
        raise SchedcastError(f"the driver made partitions of unequal size ({sizes} SMs); {_INSTEAD}")
    return tuple(partitions)


def granularity(api: DriverApi, device: object, resource: object) -> tuple[int, int]:
    """(fewest SMs of a partition, step between sizes), as the driver reports them.

    Before CUDA 13 the driver does not report them, and they follow from the compute capability.
    """
    least, step = getattr(resource, "minSmPartitionSize", 0), getattr(resource, "smCoscheduledAlignment", 0)
    if least and step:
        return int(least), int(step)
    major = api("cuDeviceGetAttribute", api.names.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    return (8, 8) if major >= 9 else (4, 2) if major >= 8 else (2, 2)  # CUDA Driver API, Green Contexts: "SM partition size"


def open_stream(api: DriverApi, partition: Partition, priority: int) -> int:
    """The handle of a new stream whose kernels stay on the partition's SMs, also in the replay of a graph captured on it."""
    flags = int(api.names.CUstream_flags.CU_STREAM_NON_BLOCKING)
    return int(api("cuGreenCtxStreamCreate", partition.handle, flags, priority))


#: The largest value of useconds_t, the type of usleep's argument. A larger one would be truncated to 32 bits.
_MOST_US = 2**32 - 1


_LIBRARY = "libcuda.so.1"


def call_host(stream: int, duration_s: float) -> None:
    """Let the stream with this handle call a function that sleeps for `duration_s`, rounded to microseconds; 0 returns at once.

    The system's timers usually end the sleep about 50 us late. Raises SchedcastError if the duration is out of range or the call fails.
    """
    microseconds = round(duration_s * 1e6)
    if not 0 <= microseconds <= _MOST_US:
        raise SchedcastError(f"a stream of a GPU cannot call the host for {duration_s} s; expected 0 to {_MOST_US // 10**6} s")
    driver = _driver()
    code = driver.cuLaunchHostFunc(stream, _function("usleep" if microseconds else "labs"), microseconds)
    if code:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(name))  # leaves it empty if the driver does not know the error
        error = name.value.decode() if name.value else f"error {code}"
        raise SchedcastError(f"cuLaunchHostFunc failed with {error}; see the CUDA driver's documentation of that error")


@cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL(_LIBRARY)
        driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
    except (OSError, AttributeError) as error:
        raise SchedcastError(
            f"streams cannot call the host: {_LIBRARY} or its cuLaunchHostFunc is missing; update the GPU driver"
        ) from error
    return driver


@cache
def _function(name: str) -> int:
    """The address of a C library function with one integer argument. Such a function needs neither Python nor its global lock."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert address is not None, "a function has an address"
    return address
