"""The driver of a real GPU: PyTorch's streams, events, graphs, allocator and precision, and the CUDA driver for what PyTorch lacks.

It waits for the GPU so that Ctrl-C works, and so that a GPU that never finishes is reported instead of waited for in silence. PyTorch's
synchronize blocks within the driver, where Python handles no signal. Kernels whose blocks wait for each other need all of their SMs at
once, and may not get them while other work runs: cuDNN's persistent batch-norm for channels-last tensors stalls while collectives run
(pytorch/pytorch#80259). PyTorch's own channels-last batch-norm does not wait: its last block finishes the sum.
"""

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import Any

import torch

from executors.cuda import driver_api, profiled
from executors.cuda.capture import Workspaces, captured, pool_on
from executors.cuda.driver import Event, GpuFacts, Kernel, Partition
from executors.cuda.driver_api import DriverApi, Streams, find_driver_api, first_line
from executors.cuda.partitions import Probe
from traces.errors import Code, SchedcastError

log = logging.getLogger("schedcast")

#: Seconds after which the wait is reported for the first time. A chunk of steps rarely takes that long.
PATIENCE_S = 60.0
#: The GPU is asked without pause for the first millisecond, and then with pauses that are short compared with the wait.
SPIN_S, PAUSE_S = 1e-3, 20e-6


def wait_until(
    done: Callable[[], bool],
    in_flight: Callable[[], str] | None = None,
    now_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return when `done` does. Logs a warning with what is `in_flight` after `PATIENCE_S`, and each time the wait has doubled."""
    begin_s = now_s()
    report_s = begin_s + PATIENCE_S
    while not done():
        waited_s = now_s() - begin_s
        if begin_s + waited_s >= report_s:
            what = in_flight() if in_flight is not None else "no plan"
            log.warning("the GPU has not finished after %.0f s, with %s in flight; Ctrl-C ends the wait", waited_s, what)
            report_s = begin_s + 2 * waited_s
        if waited_s > SPIN_S:
            pause(PAUSE_S)


def set_precision(precision: str) -> dict[str, object]:
    """Allow TF32 in matrix products, convolutions and recurrent layers if `precision` is "tf32", and forbid it otherwise.

    With "default", PyTorch's own setting, it is allowed in all of cuDNN (convolutions and recurrent layers) and forbidden in products.

    Also turns autotuning off. Returns the current flags.

    PyTorch has old flags (allow_tf32) and new ones (fp32_precision), and reading an old one raises if the two disagree. When an old one is
    turned off, the new one inherits the setting of a level above, which may be TF32. So this function sets both, the old ones first.
    """
    backends: Any = torch.backends  # has attributes that its type does not list
    matmul, cudnn = backends.cuda.matmul, backends.cudnn
    products, convolutions = precision == "tf32", precision in ("tf32", "default")
    matmul.allow_tf32 = products
    cudnn.allow_tf32 = convolutions
    for backend, on in ((matmul, products), (cudnn.conv, convolutions), (cudnn.rnn, convolutions)):
        backend.fp32_precision = "tf32" if on else "ieee"
    cudnn.benchmark = False  # autotuning may choose another kernel in the next process
    return {
        "matmul_tf32": matmul.allow_tf32,
        "cudnn_tf32": cudnn.allow_tf32,
        "cudnn_enabled": cudnn.enabled,
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_deterministic": cudnn.deterministic,
        "fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "fp16_accumulation": matmul.allow_fp16_accumulation,
    }


#: Hardware queues between host and GPU. With CUDA's default of 8, more than 8 streams share queues and wait for each other needlessly.
CONNECTIONS = "32"
_CONNECTIONS_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
#: Resident blocks per SM by compute capability (CUDA C++ Programming Guide, technical specifications). Used without cuda.bindings.
_BLOCKS_PER_SM = {(7, 0): 32, (7, 5): 16, (8, 0): 32, (8, 6): 16, (8, 7): 16, (8, 9): 24, (9, 0): 32, (10, 0): 32, (12, 0): 24}


class TorchDriver:
    """GPU `index` of this machine. Creating a driver starts CUDA and makes the GPU PyTorch's current device.

    Get drivers from `gpu`: a second driver of the same GPU would hand out the streams of the first one, and split the GPU again.

    `uuid`: the GPU's name for NVML. `connections`: the number of hardware queues, or a sentence if CUDA had started before it was set.
    """

    def __init__(self, index: int = 0):
        """Raises SchedcastError with the reason if this GPU does not exist or cannot be used."""
        self.connections = _set_connections()
        _require_gpu(index)
        self.device = torch.device("cuda", index)
        try:
            torch.cuda.set_device(self.device)
            torch.cuda.synchronize(self.device)  # creates the context, which the driver's functions below need
        except RuntimeError as error:
            raise SchedcastError(f"GPU {index} cannot be used ({first_line(error)}); see nvidia-smi for what holds it") from error
        self._api = find_driver_api()
        self._streams = Streams(self.device, self._api)
        self._workspaces = Workspaces(self.device, self.stream)
        self._splits: dict[int, tuple[Partition, ...]] = {}
        properties = torch.cuda.get_device_properties(self.device)
        self.uuid = str(properties.uuid)
        self.facts = _facts(properties, self._api, index, self._streams.levels)

    def software(self) -> dict[str, str]:
        """See Driver. Includes `max_connections`."""
        versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "max_connections": self.connections}
        versions["driver"] = _gpu_driver_version()
        cudnn = torch.backends.cudnn.version()
        versions["cudnn"] = str(cudnn) if cudnn else None
        with suppress(AttributeError):  # a build without NCCL
            versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        return {name: value for name, value in versions.items() if value}

    def set_precision(self, precision: str) -> dict[str, object]:
        return set_precision(precision)

    def stream(self, priority: int = 0, partition: Partition | None = None) -> torch.cuda.Stream:
        return self._streams.open(priority, partition)

    def use(self, stream: Any) -> None:
        torch.cuda.set_stream(stream)

    def event(self, timing: bool = False, external: bool = False) -> torch.cuda.Event:
        """See Driver. Events that fork or join streams in a capture must not be external: external events make no edge in the graph."""
        return torch.cuda.Event(enable_timing=timing, external=external)

    @contextmanager
    def capture(self, stream: Any, others: Sequence[Any] = ()) -> Iterator[torch.cuda.CUDAGraph]:
        """See Driver. After an error within the context, the graph is empty, the GPU is usable, and the error is raised."""
        with ExitStack() as stack:
            pools = [stack.enter_context(pool_on(other.device)) for other in others]
            graph = stack.enter_context(captured(self.device, stream))
            graph.__dict__["pools"] = pools
            for driver in (self, *others):
                driver._workspaces.keep_for(graph)
            yield graph

    def call_host(self, duration_s: float) -> None:
        driver_api.call_host(torch.cuda.current_stream(self.device).cuda_stream, duration_s)

    def synchronize(self, in_flight: Callable[[], str] | None = None) -> None:
        streams = [torch.cuda.default_stream(self.device), *self._streams.in_use()]
        wait_until(lambda: all(stream.query() for stream in streams), in_flight)
        torch.cuda.synchronize(self.device)  # for streams that are not ours

    def wait_for(self, event: Event, in_flight: Callable[[], str] | None = None) -> None:
        wait_until(event.query, in_flight)

    def now_s(self) -> float:
        return time.perf_counter()

    def seed(self, value: int) -> None:
        torch.cuda.default_generators[self.device.index].manual_seed(value)

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.device)

    def peak_bytes(self, reset: bool = False) -> int:
        """See Driver. The peak is read before it is reset."""
        peak = torch.cuda.max_memory_allocated(self.device)
        if reset:
            torch.cuda.reset_peak_memory_stats(self.device)
        return peak

    def workspace_bytes(self) -> int:
        return self._workspaces.bytes_per_stream()

    def free_workspaces(self) -> int:
        return self._workspaces.free()

    def host_tensor(self, size_bytes: int, pinned: bool) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=pinned)

    def kernels(self, works: Sequence[Callable[[], object]]) -> list[list[Kernel]] | None:
        return profiled.kernels(works, self.device)

    def partitions(self, count: int) -> tuple[Partition, ...]:
        """See Driver. The same count returns the same partitions, whose contexts live as long as the process."""
        if count not in self._splits:
            self._splits[count] = driver_api.split(self._api, self.device.index, count)
        return self._splits[count]

    def peers(self) -> "tuple[TorchDriver, ...]":
        """See Driver. Starts CUDA on each of them. This GPU is PyTorch's current device afterwards."""
        drivers = []
        try:
            for index in range(torch.cuda.device_count()):
                if index != self.device.index and torch.cuda.get_device_properties(index).name == self.facts.name:
                    with suppress(SchedcastError):  # another process uses this GPU
                        drivers.append(gpu(index))
        finally:
            torch.cuda.set_device(self.device)
        return tuple(drivers)

    def sm_ids(self, stream: Any, replayed: bool = False) -> frozenset[int]:
        return self._probe.sm_ids(self, stream, replayed)

    def sm_ids_in_one_graph(self, streams: Sequence[Any]) -> list[frozenset[int]]:
        return self._probe.sm_ids_in_one_graph(self, streams)

    @cached_property
    def _probe(self) -> Probe:
        return Probe()


_drivers: dict[int, TorchDriver] = {}


def gpu(index: int = 0) -> TorchDriver:
    """The process's driver of GPU `index`, created at the first call. Raises SchedcastError if there is no such GPU."""
    if index not in _drivers:
        _drivers[index] = TorchDriver(index)
    return _drivers[index]


def several_gpus(count: int) -> tuple[TorchDriver, ...]:
    """The drivers of the first `count` GPUs. The first GPU is PyTorch's current device afterwards.

    Raises SchedcastError if there are fewer, or if they are of several kinds, because costs are measured on the first one.
    """
    first, visible = gpu(0), visible_gpus()
    if visible < count:
        raise SchedcastError(
            f"--devices {count}: this process sees {visible} GPU{'s' if visible > 1 else ''} (see nvidia-smi and CUDA_VISIBLE_DEVICES);"
            f" choose at most {visible}, split one with --partition {count}, or predict with --machine",
            Code.DEVICES,
        )
    drivers = tuple(gpu(index) for index in range(count))
    names = list(dict.fromkeys(driver.facts.name for driver in drivers))
    torch.cuda.set_device(first.device)
    if len(names) > 1:
        raise SchedcastError(
            f"--devices {count}: the first {count} GPUs are {' and '.join(names)}, and plans expect equal ones; choose equal ones with"
            " CUDA_VISIBLE_DEVICES",
            Code.DEVICES,
        )
    return drivers


def visible_gpus() -> int:
    """The number of GPUs that this process may use; 0 without a driver."""
    _set_connections()  # counting may start CUDA
    return torch.cuda.device_count()


def _set_connections() -> str:
    """Set the number of hardware queues, unless the user has. Returns `connections`. CUDA reads the variable once, when it starts."""
    if _CONNECTIONS_VARIABLE not in os.environ:
        if torch.cuda.is_initialized():
            return f"default: CUDA had started before {CONNECTIONS} could be set"
        os.environ[_CONNECTIONS_VARIABLE] = CONNECTIONS
    return os.environ[_CONNECTIONS_VARIABLE]


def _require_gpu(index: int) -> None:
    if torch.version.cuda is None and torch.version.hip is not None:
        raise SchedcastError(
            f"PyTorch {torch.__version__} is built for AMD GPUs, and plans run on NVIDIA GPUs only; use the device cpu, predict with"
            " --machine, or replay a recording of this GPU",
            Code.DEVICES,
        )
    if torch.version.cuda is None:
        raise SchedcastError(
            f"PyTorch {torch.__version__} is built without CUDA; install a CUDA build, or use the device cpu", Code.DEVICES
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        reason = str(caught[-1].message).splitlines()[0] if caught else "no NVIDIA GPU or driver found"
        raise SchedcastError(f"PyTorch can use no GPU ({reason}); check that nvidia-smi lists one, or use the device cpu", Code.DEVICES)
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise SchedcastError(f"no GPU {index}; expected one of 0 to {count - 1} (see nvidia-smi and CUDA_VISIBLE_DEVICES)", Code.DEVICES)


def _facts(properties, api: DriverApi | None, index: int, levels: int) -> GpuFacts:
    capability = (properties.major, properties.minor)
    if api is None:
        blocks = _BLOCKS_PER_SM.get(capability, 32)
    else:
        attribute = api.names.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR
        blocks = api("cuDeviceGetAttribute", attribute, api("cuDeviceGet", index))
    return GpuFacts(
        name=properties.name,
        sms=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        cache_bytes=properties.L2_cache_size,
        capability=capability,
        threads_per_sm=properties.max_threads_per_multi_processor,
        blocks_per_sm=blocks,
        registers_per_sm=properties.regs_per_multiprocessor,
        shared_bytes_per_sm=properties.shared_memory_per_multiprocessor,
        priority_levels=levels,
    )


def _gpu_driver_version() -> str | None:
    """The version of the GPU's driver, such as 580.65.06; None if NVML does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
