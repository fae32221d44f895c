"""Stand-ins for torch.cuda and cuda.bindings.driver with the state of the real modules. They refuse the calls that the real ones refuse."""

import contextlib
import weakref
from enum import IntEnum
from itertools import count
from types import SimpleNamespace

import torch

POOLED = 32


class Result(IntEnum):
    """Error codes of the driver."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 914


class Context:
    """A green context and the SMs it may use."""

    def __init__(self, sms: frozenset[int]):
        self.sms = sms


class Bindings:
    """A stand-in for the module `cuda.bindings.driver`, with a GPU of `sms` SMs. Two splits of the device overlap, like real ones."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM="sm")
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR=32, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9
    )

    def __init__(self, sms: int = 132, version: int = 13000, reports: tuple[int, int] = (8, 8), most_groups: int = 99):
        self.sms, self.version, self.reports, self.most_groups = sms, version, reports, most_groups
        self.calls: list[str] = []
        self.current = True
        self.contexts: list[weakref.ref[Context]] = []
        self.on_stream: dict[int, tuple[Context, int]] = {}
        self.priorities: dict[int, int] = {}
        self._handles = count(0x9000)

    def _resource(self, sms: frozenset[int]):
        return SimpleNamespace(
            sm=SimpleNamespace(smCount=len(sms), minSmPartitionSize=self.reports[0], smCoscheduledAlignment=self.reports[1]), sms=sms
        )

    def cuDriverGetVersion(self):  # noqa: N802
        return Result(0), self.version

    def cuDeviceGet(self, ordinal):  # noqa: N802
        return Result(0), f"device {ordinal}"

    def cuDeviceGetAttribute(self, attribute, device):  # noqa: N802
        assert device.startswith("device")
        return Result(0), attribute

    def cuDeviceGetDevResource(self, device, kind):  # noqa: N802
        assert (device, kind) == ("device 0", "sm")
        self.calls.append("resource")
        return Result(0), self._resource(frozenset(range(self.sms)))

    def cuDevSmResourceSplitByCount(self, groups, resource, flags, least):  # noqa: N802
        self.calls.append(f"split {groups} x {least}")
        if flags or least > resource.sm.smCount or least % 8:
            return Result(1), [], 0, None
        count = min(groups, len(resource.sms) // least, self.most_groups)
        resources = [self._resource(frozenset(range(i * least, (i + 1) * least))) for i in range(count)]
        return Result(0), resources + [self._resource(frozenset())] * (groups - count), count, self._resource(frozenset())

    def cuDevResourceGenerateDesc(self, resources, number):  # noqa: N802
        assert len(resources) == number
        return Result(0), resources

    def cuGreenCtxCreate(self, description, device, flags):  # noqa: N802
        assert device == "device 0"
        (resource,) = description
        if flags != 1:
            return Result(1), None
        context = Context(resource.sms)
        self.contexts.append(weakref.ref(context))
        self.calls.append("context")
        return Result(0), context

    def cuGreenCtxGetDevResource(self, context, kind):  # noqa: N802
        assert kind == "sm"
        return Result(0), self._resource(context.sms)

    def cuGreenCtxStreamCreate(self, context, flags, priority):  # noqa: N802
        if flags != 1 or not isinstance(context, Context):
            return Result(1), None
        handle = next(self._handles)
        self.on_stream[handle], self.priorities[handle] = (context, priority), priority
        return Result(0), handle

    def cuCtxGetStreamPriorityRange(self):  # noqa: N802
        return (Result(0), 0, -5) if self.current else (Result(201), None, None)

    def cuStreamCreateWithPriority(self, flags, priority):  # noqa: N802
        if flags != 1 or not -5 <= priority <= 0:
            return Result(1), None
        handle = next(self._handles)
        self.priorities[handle] = priority
        return Result(0), handle


class Stream:
    """A stream from a pool of 32 per priority, handed out in turn, or a stream for an existing handle.

    It takes no weak references: those to PyTorch's streams outlive them.
    """

    __slots__ = ("__dict__", "cuda_stream", "priority")

    pools: dict[int, "count[int]"] = {}

    def __init__(self, device=None, priority: int = 0, handle: int | None = None):
        self.priority = max(-3, min(0, priority))
        self.cuda_stream = handle or 0x100 * (1 - self.priority) + next(Stream.pools.setdefault(self.priority, count())) % POOLED

    #: How often `query` still returns False, for all streams together.
    busy = 0

    def query(self) -> bool:
        Stream.busy = max(0, Stream.busy - 1)
        return not Stream.busy

    def wait_event(self, event: "Event") -> None:
        assert event.recorded, "waits for an event that was never recorded are ignored"

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -3


class Event:
    """An event, which is reached as soon as its stream is."""

    def __init__(self, enable_timing: bool = False, external: bool = False):
        self.recorded: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.recorded = stream

    def query(self) -> bool:
        return self.recorded is None or self.recorded.query()


class Torch:
    """The state of torch.cuda: the current stream, the memory pools that are being allocated from, and the generator's mode."""

    def __init__(self):
        self.log: list[str] = []
        self.current = self.default = Stream(handle=0x1)
        self.recording: set[tuple[int, int]] = set()
        self.pool_users: dict[tuple[int, int], int] = {}
        self.generator_capturing = False
        self.graph_in_capture: Graph | None = None
        self.unjoined = False
        self.reset_releases = False
        self.handles = count(1)
        Stream.pools, Stream.busy = {}, 0

    def install(self, monkeypatch) -> "Torch":
        """Replace the functions of torch.cuda that the driver uses."""

        class BoundGraph(Graph):
            cuda = self

        replaced = {
            "Stream": Stream,
            "Event": Event,
            "default_stream": lambda device=None: self.default,
            "ExternalStream": lambda handle, device=None: Stream(handle=handle),
            "CUDAGraph": BoundGraph,
            "graph_pool_handle": lambda: (0, next(self.handles)),
            "set_stream": lambda stream: setattr(self, "current", stream),
            "stream": self.on,
            "device": lambda device: contextlib.nullcontext(),
            "synchronize": lambda device=None: self.refuse_in_capture("synchronize"),
            "empty_cache": lambda: self.refuse_in_capture("empty_cache"),
            "is_available": lambda: True,
            "is_initialized": lambda: False,
            "device_count": lambda: 1,
            "set_device": lambda device: self.log.append(f"set_device {device}"),
            "get_device_properties": lambda device: PROPERTIES,
        }
        for name, stand_in in replaced.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_allocate, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", self.release, raising=False)
        return self

    @contextlib.contextmanager
    def on(self, stream):
        """torch.cuda.stream."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def refuse_in_capture(self, what: str) -> None:
        """Log a call, and raise an error during a capture."""
        self.log.append(what)
        if self.graph_in_capture is not None:
            raise RuntimeError(f"{what}: operation not permitted when stream is capturing")

    def end_allocate(self, device: int, pool: tuple[int, int]) -> None:
        """Stop allocating from the pool."""
        if pool not in self.recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording.remove(pool)

    def release(self, device: int, pool: tuple[int, int]) -> None:
        """Remove one user of the pool. The real function crashes if there is none."""
        self.pool_users[pool] -= 1
        assert self.pool_users[pool] >= 0


class Graph:
    """A stand-in for torch.cuda.CUDAGraph. Like in PyTorch 2.11, `capture_end` fails half way if the driver refuses."""

    cuda: Torch

    def __init__(self):
        self.ended, self._pool, self._stream = False, None, None

    def capture_begin(self, pool=None, capture_error_mode="global"):
        assert self.cuda.current is not self.cuda.default
        assert capture_error_mode == "thread_local"
        self._pool, self._stream = pool or (next(self.cuda.handles), 0), self.cuda.current
        self.cuda.recording.add(self._pool)
        self.cuda.pool_users[self._pool] = self.cuda.pool_users.get(self._pool, 0) + 1
        self.cuda.generator_capturing, self.cuda.graph_in_capture = True, self
        self.cuda.log.append("begin")

    def capture_end(self):
        self.cuda.log.append("end")
        if self.cuda.current is not self._stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if self.cuda.graph_in_capture is not self:
            raise RuntimeError("CUDA error: operation not permitted when not capturing")
        self.cuda.graph_in_capture = None
        if self.cuda.unjoined:
            self.cuda.unjoined = False
            raise RuntimeError("CUDA error: capturing stream has unjoined work")
        self.cuda.end_allocate(0, self._pool)
        self.cuda.generator_capturing, self.ended = False, True

    def pool(self):
        if not self.ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def reset(self):
        if self.ended or (self.cuda.reset_releases and self._pool):
            self.cuda.release(0, self._pool)
        self.ended, self._pool = False, None

    def replay(self):
        if not self.ended:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")


PROPERTIES = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=150_000_000_000,
    L2_cache_size=60 << 20,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_multiprocessor=233_472,
    uuid="01234567-89ab",
)
