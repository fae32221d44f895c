"""Splits a GPU into partitions with disjoint SMs: green contexts, all from one split of the device.

Splitting the device once per partition, as torch.cuda.green_contexts does, gives partitions that overlap. A partition's context is never
destroyed, because its streams, and the graphs captured on them, may be used as long as the process lives.
"""

from executors.cuda.bindings import DriverApi
from executors.cuda.driver import Partition
from traces.errors import SchedcastError

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
