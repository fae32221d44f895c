"""Simulated GPUs, which implement `Driver` and receive every aten op while they are active."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType, TracebackType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import adadelta, adam, rmsprop
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from executors.cuda.driver import GpuFacts, Kernel, Partition
from executors.cuda.profiled import turned_off
from simulator.model.ops.rms_norm import as_one_op
from tests.fake_gpu.calls import Call, is_simulated, tensors_in
from tests.fake_gpu.cuda_results import as_on_cuda
from tests.fake_gpu.errors import FakeGpuError
from tests.fake_gpu.graphs import HOST_CALL, Capture, FakeGraph, Work
from tests.fake_gpu.memory import Memories, Memory, Region
from tests.fake_gpu.races import Order, Race
from tests.fake_gpu.streams import Clock, FakeEvent, FakeStream, KernelRun, Mark
from tests.fake_gpu.times import KernelTimes, Times
from traces.errors import SchedcastError

FACTS = GpuFacts("Fake GPU", 132, 8 << 30, 4 << 20, (9, 0), 2048, 32, 65536, 228 << 10, 6)

#: Ops that keep a workspace for their stream.
_PRODUCTS = frozenset({"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm"})

#: Partitions have a multiple of this number of SMs.
_GROUP = 8

Launch = Callable[[str, int], tuple[int, int, int, int]]

#: Modules of torch.optim that refuse their capturable forms on CPU tensors. While the simulation is active, they accept them.
_CAPTURABLE: tuple[ModuleType, ...] = (adam, rmsprop, adadelta)


def default_launch(op: str, elements: int) -> tuple[int, int, int, int]:
    """Grid, block, registers per thread and shared bytes per block of an op's kernel."""
    return -(-elements // 1024), 128, 32, 0


class Box:
    """What the simulated GPUs of one process share: the host's clock, the order of ops, and all memories.

    `current`: the current GPU. `timeline` lists the kernels and host calls that ran, and `races` the races found.
    """

    def __init__(self, times: Times):
        self.gpus: list[FakeGpu] = []
        self.races: list[Race] = []
        self.timeline: list[KernelRun] = []
        self.clock = Clock(times.queue_depth, times.launch_gap_s)
        self.order = Order(self.races)
        self.memories = Memories(self._released)
        self.capture_now: Capture | None = None
        self.streams = 0  # how many there are
        self.peers_free_s: dict[tuple[int, int], float] = {}  # by (source, target), when the copies between the two have ended
        self.current: FakeGpu

    def issue(self, func: Callable, args: tuple, kwargs: dict) -> object:
        """Issue an op to the GPU that runs it: as in PyTorch that of its operands, else the device it names, else the current one."""
        if len(self.gpus) == 1 or not is_simulated(args, kwargs):
            return self.current._issue(func, args, kwargs)
        named = None if kwargs.get("device") is None else torch.device(kwargs["device"]).index
        memories = [self.memories.find(tensor) for tensor in tensors_in(args, kwargs)]
        if memories and all(memory is not None and memory.host == "pageable" for memory in memories) and named is None:
            return self._run_on_host(func, args, kwargs)
        of = list(dict.fromkeys(memory.gpu for memory in memories if memory is not None and memory.gpu is not None))
        name = str(func.overloadpacket)
        if name == "aten._to_copy" and of and named not in (None, *of):
            return self.gpus[of[0]]._issue_copy(self.gpus[named], func, args, kwargs)
        if name == "aten.copy_" and len(of) == 2:
            return self.gpus[of[1]]._issue_copy(self.gpus[of[0]], func, args, kwargs)
        if len(of) > 1:
            raise FakeGpuError(f"{name} reads memory of GPUs {sorted(of)}, and runs on one: copy it there first")
        number = of[0] if of else named
        to_host = name == "aten._to_copy" and kwargs.get("device") is not None and named is None
        return (self.current if number is None else self.gpus[number])._issue(func, args, kwargs, to_host)

    def _run_on_host(self, func: Callable, args: tuple, kwargs: dict) -> object:
        """Run an op of the CPU, whose operands and results are in the host's memory."""
        with _disable_current_modes(), torch.no_grad():
            results = func(*args, **kwargs)
        for tensor in tensors_in(results):
            self.memories.of(tensor).host = "pageable"
        return results

    def _released(self, memory: Memory) -> None:
        capture = memory.capture
        if capture is None:
            if memory.owner is not None:
                self.order.release(memory)
            self.order.accesses.pop(memory, None)
        elif capture.open:  # after the capture the memory belongs to the graph
            capture.order.release(memory)


class FakeGpu:
    """A `Driver` on CPU tensors in virtual time. `times.Times` has the durations.

    `profiler=False`: `kernels` returns None. `partitionable=False`, `compiler=False`, `callbacks=False`: `partitions`, `sm_ids` and
    `call_host` raise SchedcastError. `joint_captures=False`: a capture refuses streams of two partitions. `streams`: how many streams there
    are. `round_bytes`: the allocator's granularity. `workspace_bytes`: kept for each stream that has run a matrix product. `varying`: by
    op, the relative standard deviation of its results, which differ from run to run. `stalls`: ops whose kernels never end, and
    `stalls_beside`: those that never end in a graph with several streams; then a wait calls `in_flight`, as a very long one does.
    `timeline` and `races` are those of its box. `FakeGpus` makes several in one box.
    """

    def __init__(
        self,
        times: Times | None = None,
        facts: GpuFacts = FACTS,
        *,
        races_allowed: bool = False,
        profiler: bool = True,
        partitionable: bool = True,
        compiler: bool = True,
        callbacks: bool = True,
        joint_captures: bool = True,
        streams: int = 512,
        launch: Launch = default_launch,
        round_bytes: int = 1,
        workspace_bytes: int = 0,
        varying: Mapping[str, float] | None = None,
        stalls: Collection[str] = (),
        stalls_beside: Collection[str] = (),
        box: Box | None = None,
    ):
        self.times, self.facts = times or Times(), facts
        self.races_allowed, self.profiler, self.partitionable, self.compiler = races_allowed, profiler, partitionable, compiler
        self.callbacks, self.joint_captures = callbacks, joint_captures
        self.launch, self.round_bytes, self._stream_limit = launch, round_bytes, streams
        self._workspace_bytes, self._with_workspace = workspace_bytes, set()
        self._graphs: WeakSet[FakeGraph] = WeakSet()
        self.varying, self._variation = varying or {}, torch.Generator().manual_seed(0)
        self.stalls, self.stalls_beside, self.stalled = stalls, stalls_beside, False
        self.device = torch.device("cpu") if box is None else torch.device("cpu", len(box.gpus))
        self.box = box = box or Box(self.times)
        self.number = len(box.gpus)
        box.gpus.append(self)
        box.current = box.gpus[0]
        self.races, self.timeline, self.clock, self.order, self.memories = box.races, box.timeline, box.clock, box.order, box.memories
        self.kernel_times = KernelTimes(self.times, facts.cache_bytes)
        self.streams: list[FakeStream] = []
        self.current = self._new_stream(0, None)  # the default stream; streams of `stream` do not wait for it
        self._profiled: list[Kernel] | None = None
        self.host_factor = 1.0
        self._active: ExitStack | None = None

    # Activation

    def activate(self) -> None:
        """Issue the ops of this thread to the GPU from now on."""
        with ExitStack() as stack:
            stack.enter_context(_Mode(self.box))
            stack.enter_context(as_one_op())
            for module in _CAPTURABLE:
                stack.callback(setattr, module, "_get_capturable_supported_devices", module._get_capturable_supported_devices)
                module._get_capturable_supported_devices = lambda supports_xla=True: ["cpu", "cuda"]
            self._active = stack.pop_all()

    def deactivate(self) -> None:
        """Let torch run the ops of this thread again."""
        self._active.close()
        self._active = None

    def __enter__(self) -> "FakeGpu":
        """Activate the GPU."""
        self.activate()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        """Deactivate the GPU, and raise AssertionError if streams raced."""
        self.deactivate()
        if kind is None and self.races and not self.races_allowed:
            raise AssertionError("races on the simulated GPU:\n" + "\n".join(map(str, self.races)))

    # The Driver protocol

    def software(self) -> dict[str, str]:
        """See Driver. Without cuDNN and NCCL."""
        return {"driver": "fake", "cuda": "0.0", "torch": torch.__version__}

    def set_precision(self, precision: str) -> dict[str, object]:
        """See Driver. Returns the flags without setting them."""
        return {"matmul.allow_tf32": precision == "tf32", "cudnn.allow_tf32": precision == "tf32"}

    def stream(self, priority: int = 0, partition: Partition | None = None) -> FakeStream:
        """See Driver."""
        if len(self.streams) > self._stream_limit:
            raise SchedcastError(f"{self.facts.name} has {self._stream_limit} streams, and all are taken")
        return self._new_stream(min(0, max(priority, 1 - self.facts.priority_levels)), partition)

    def _new_stream(self, priority: int, partition: Partition | None) -> FakeStream:
        stream = FakeStream(self, self.box.streams, priority, partition)
        self.box.streams += 1
        self.streams.append(stream)
        return stream

    def use(self, stream: FakeStream) -> None:
        """See Driver."""
        self.clock.spend(self.times.switch_s)
        stream.gpu.current = stream
        self.box.current = stream.gpu

    @property
    def capture_now(self) -> Capture | None:
        """The capture in progress."""
        return self.box.capture_now

    @capture_now.setter
    def capture_now(self, capture: Capture | None) -> None:
        self.box.capture_now = capture

    def event(self, timing: bool = False, external: bool = False) -> FakeEvent:
        """See Driver."""
        return FakeEvent(self, timing, external)

    @contextmanager
    def capture(self, stream: FakeStream, others: Sequence["FakeGpu"] = ()) -> Iterator[FakeGraph]:
        """See Driver. `stream` is the current stream within the context."""
        if self.capture_now is not None:
            self.capture_now.fail("a capture during a capture")
        with self._outside():
            graph, capture, before = FakeGraph(self), Capture(self, stream, (self, *others)), self.current
        self.capture_now, self.current = capture, stream
        try:
            yield graph
        except BaseException:
            with self._outside():
                capture.undo()
            raise
        finally:
            self.capture_now, self.current = None, before
        with self._outside():
            capture.end()
        graph.finish(capture)
        for gpu in (self, *others):
            gpu._graphs.add(graph)

    def call_host(self, duration_s: float) -> None:
        """See Driver. The host is busy only while it issues the call. The call touches no memory."""
        if not self.callbacks:
            raise SchedcastError(f"streams of {self.facts.name} cannot call the host")
        self.clock.spend(self.times.call_s)
        stream, seconds = self.current, self.times.callback_s + duration_s
        if self.capture_now is not None:
            self.capture_now.add_host_call(stream, seconds)
        else:
            self.timeline.append(KernelRun(HOST_CALL, stream.index, *self.clock.launch(stream, seconds)))
            self.order.op(HOST_CALL, stream.index, ())

    def synchronize(self, in_flight: Callable[[], str] | None = None) -> None:
        """See Driver. Nothing takes very long in virtual time, unless a kernel never ends."""
        self._not_in_capture("synchronize")
        if self.stalled:
            raise FakeGpuError(f"the host waits for ever, with {in_flight() if in_flight is not None else 'no plan'} in flight")
        self._host_waits(self.streams)

    def wait_for(self, event: FakeEvent, in_flight: Callable[[], str] | None = None) -> None:
        """See Driver."""
        event.synchronize()

    def now_s(self) -> float:
        """The host's virtual time. Reading it takes no time, so a loop that only polls the clock never ends."""
        return self.clock.now_s

    def seed(self, value: int) -> None:
        """Seed torch's generator."""
        self._not_in_capture("seed")
        torch.default_generator.manual_seed(value)

    def allocated_bytes(self) -> int:
        """The bytes of the live storages that ops have allocated."""
        return self.memories.live_bytes[self.number]

    def peak_bytes(self, reset: bool = False) -> int:
        """See Driver."""
        peak = self.memories.peak_bytes[self.number]
        if reset:
            self.memories.peak_bytes[self.number] = self.memories.live_bytes[self.number]
        return peak

    def workspace_bytes(self) -> int:
        """See Driver."""
        return self._workspace_bytes

    def free_workspaces(self) -> int:
        """See Driver."""
        if self._graphs:
            return 0
        freed = self._workspace_bytes * len(self._with_workspace)
        self.memories.add_bytes(self.number, -freed)
        self._with_workspace.clear()
        return freed

    def _add_workspace(self, call: Call, stream: FakeStream) -> None:
        """Allocate the stream's workspace at its first matrix product. A capture must not contain that."""
        if call.name not in _PRODUCTS or stream.index in self._with_workspace:
            return
        if self.capture_now is not None and self._workspace_bytes:
            self.capture_now.fail(f"the first {call.name} of stream {stream.index} allocates a workspace in a capture: run it before")
        self._with_workspace.add(stream.index)
        self.memories.add_bytes(self.number, self._workspace_bytes)

    def host_tensor(self, size_bytes: int, pinned: bool) -> Tensor:
        """See Driver. `copy_` to or from it uses a link. The host waits for the copy, unless it is non-blocking and the memory pinned."""
        with self._outside():
            tensor = torch.zeros(size_bytes, dtype=torch.uint8)
        self.memories.of(tensor).host = "pinned" if pinned else "pageable"
        return tensor

    def kernels(self, works: Sequence[Callable[[], None]]) -> list[list[Kernel]] | None:
        """See Driver. Every op with a kernel has one; copies over a link have none."""
        if not self.profiler or turned_off():
            return None
        self.host_factor = self.times.after_profiler
        sessions = []
        for work in works:
            self._profiled = []
            try:
                work()
                self.synchronize()
                sessions.append(self._profiled)
            finally:
                self._profiled = None
        return sessions

    def partitions(self, count: int) -> tuple[Partition, ...]:
        """See Driver. `handle` is the range of the partition's SM ids. SMs that are left over belong to no partition."""
        if not self.partitionable:
            raise SchedcastError(f"{self.facts.name} cannot be partitioned")
        size = self.facts.sms // count // _GROUP * _GROUP
        if not size:
            raise SchedcastError(f"{self.facts.sms} SMs do not make {count} partitions of at least {_GROUP}")
        return tuple(Partition(i, size, range(i * size, (i + 1) * size)) for i in range(count))

    def peers(self) -> tuple["FakeGpu", ...]:
        """See Driver."""
        return tuple(gpu for gpu in self.box.gpus if gpu is not self)

    def sm_ids(self, stream: FakeStream, replayed: bool = False) -> frozenset[int]:
        """See Driver."""
        if not self.compiler:
            raise SchedcastError(f"no kernel can be compiled for {self.facts.name}")
        return frozenset(stream.partition.handle if stream.partition else range(self.facts.sms))

    def sm_ids_in_one_graph(self, streams: Sequence[FakeStream]) -> list[frozenset[int]]:
        """See Driver."""
        return [self.sm_ids(stream, replayed=True) for stream in streams]

    # Called by streams, events, graphs and the dispatch mode

    def _record(self, stream: FakeStream, event: FakeEvent) -> None:
        self.clock.spend(self.times.record_s)
        if self.capture_now is not None:
            self.capture_now.record(stream, event)
        else:
            event.mark = Mark(max(self.clock.now_s, stream.tail_s), self.order.mark(stream.index))

    def _wait(self, stream: FakeStream, event: FakeEvent) -> None:
        self.clock.spend(self.times.wait_s)
        if self.capture_now is not None:
            self.capture_now.wait(stream, event)
        elif event.mark is not None:  # CUDA ignores a wait for an event that was never recorded
            if event.mark.capture is not None and not event.external:
                raise FakeGpuError("wait outside of a capture for an event that was recorded in it")
            if event.mark.time_s is not None:
                stream.tail_s = max(stream.tail_s, event.mark.time_s)
                self.order.join(stream.index, event.mark.ticks)

    def _issue(self, func: Callable, args: tuple, kwargs: dict, to_host: bool = False) -> object:
        """Run one op, and record its time, memory and accesses. `to_host`: its result is in the host's memory."""
        if not is_simulated(args, kwargs):
            return func(*args, **kwargs)
        call, stream, capture = Call(func, args, kwargs), self.current, self.capture_now
        if call.has_kernel and self._runs_on_host(call):
            return self._run_on_host(call)
        link = "pageable" if to_host else self._link(call)
        blocking = call.synchronizes or (link is not None and not (link == "pinned" and call.non_blocking))
        if capture is not None:
            self._check_capturable(call, blocking)
            capture.save(call)
        self._add_workspace(call, stream)
        call.finish(self._run(func, args, kwargs))
        for tensor in call.allocated:
            if to_host:
                self.memories.of(tensor).host = "pageable"
            else:
                self._allocate(tensor, stream)
        for tensor in tensors_in(call.results):
            self.memories.of(tensor)
        if not call.has_kernel:
            self.clock.spend(self.times.op_s_by_name.get(call.name, self.times.view_s))
            if capture is not None:
                capture.add_allocation(stream, call)
            return call.results
        self.clock.spend(self.times.op_s_by_name.get(call.name, self.times.op_s) * self.host_factor)
        self._run_kernel(call, stream, link)
        if blocking:
            self._host_waits([stream])
        return call.results

    def _issue_copy(self, target: "FakeGpu", func: Callable, args: tuple, kwargs: dict) -> object:
        """Run a copy to another GPU as PyTorch does: see `Driver.use`."""
        call, ends = Call(func, args, kwargs), (self.current, target.current)
        if self.capture_now is not None:
            self.capture_now.save(call)
        self._let_wait(*reversed(ends))
        call.finish(self._run(func, args, kwargs))
        for tensor in call.allocated:
            target._allocate(tensor, target.current)
        for tensor in tensors_in(call.results):
            self.memories.of(tensor)
        self.clock.spend(self.times.op_s_by_name.get(call.name, self.times.op_s) * self.host_factor)
        self._run_kernel(call, self.current, "peer", target)
        self._let_wait(*ends)
        return call.results

    def _let_wait(self, first: FakeStream, second: FakeStream) -> None:
        """Let `second` wait for what was issued to `first`."""
        event = self.event()
        event.record(first)
        second.wait_event(event)

    def _allocate(self, tensor: Tensor, stream: FakeStream) -> None:
        """Count the memory of an op's result. Raises torch.OutOfMemoryError if the GPU has less."""
        self.memories.allocate(tensor, stream.index, self.number, self.capture_now, self.round_bytes)
        live_bytes = self.memories.live_bytes[self.number]
        if live_bytes > self.facts.memory_bytes:
            raise torch.OutOfMemoryError(f"{self.facts.name} out of memory: {live_bytes} of {self.facts.memory_bytes} bytes")

    def _run(self, func: Callable, args: tuple, kwargs: dict) -> object:
        """The op's results, as CUDA's kernel returns them."""
        results = as_on_cuda(func)(*args, **kwargs)
        if self.varying and (spread := self.varying.get(str(func.overloadpacket), 0.0)):
            for tensor in (t for t in tensors_in(results) if t.is_floating_point()):
                tensor.mul_(1.0 + spread * torch.randn((), generator=self._variation))
        return results

    def _run_kernel(self, call: Call, stream: FakeStream, link: str | None, target: "FakeGpu | None" = None) -> None:
        """`target`: of a copy to another GPU, which begins after earlier ones from this GPU to that one."""
        of = self.memories.of
        reads = [(of(t), t.numel() * t.element_size()) for t in call.reads]
        changed = [(of(t), t.numel() * t.element_size()) for t in call.writes]
        writes = changed + [(of(t), t.numel() * t.element_size()) for t in call.allocated]
        touched = [(memory, Region.of(t), False) for (memory, _), t in zip(reads, call.reads, strict=True)]
        touched += [(memory, Region.of(t), True) for (memory, _), t in zip(writes, (*call.writes, *call.allocated), strict=True)]
        route = None if target is None else (self.number, target.number)
        work = Work(call.func, call.name, call.elements, reads if call.overwrites else reads + changed, writes, link, call.kind, route)
        if self.capture_now is not None:
            self.capture_now.add_kernel(stream, call, work)
            self.capture_now.order.op(call.name, stream.index, touched)
            return
        if route is not None:
            stream.tail_s = max(stream.tail_s, self.box.peers_free_s.get(route, 0.0))
        seconds = self._seconds(work, stream, max(self.clock.now_s, stream.tail_s))
        if route is not None:
            self.box.peers_free_s[route] = max(self.clock.now_s, stream.tail_s) + seconds
        self.timeline.append(KernelRun(call.name, stream.index, *self.clock.launch(stream, seconds)))
        self._profile(work, seconds)
        self.stalled = self.stalled or call.name in self.stalls
        self.order.op(call.name, stream.index, touched)

    def _runs_on_host(self, call: Call) -> bool:
        """Whether the op is a copy within host memory. A tensor that no op of the GPU has allocated counts as host memory if it is copied
        to a host tensor. Raises FakeGpuError for any other op on host memory.
        """
        reads, writes = ([self.memories.find(t) for t in tensors] for tensors in (call.reads, call.writes))
        on_host = [memory is not None and memory.host is not None for memory in (*reads, *writes)]
        if call.name == "aten.copy_":
            from_gpu = any(memory is not None and memory.owner is not None for memory in reads)
            return all(on_host) or (on_host[-1] and not from_gpu)
        if any(on_host) and call.name != "aten._to_copy":
            raise FakeGpuError(f"{call.name} on memory of the host, which a GPU's kernel cannot access")
        return False

    def _run_on_host(self, call: Call) -> object:
        """Run the op on the host at once, independently of the GPU's streams and of a capture."""
        of = self.memories.of
        touched = [(of(t), Region.of(t), False) for t in call.reads] + [(of(t), Region.of(t), True) for t in call.writes]
        self.clock.spend(sum(t.numel() * t.element_size() for t in call.writes) / self.times.host_bytes_per_s)
        self.order.by_host(call.name, touched)
        with self._outside():
            return call.func(*call.args, **call.kwargs)

    def _check_capturable(self, call: Call, blocking: bool) -> None:
        capture = self.capture_now
        capture.check_call(call)
        if blocking:
            capture.fail(f"{call.name} between host and device makes the host wait, which a capture does not permit")

    def _link(self, call: Call) -> str | None:
        """The kind of host memory that a copy reads or writes; None if the op is no copy, or uses no host memory."""
        if call.name not in ("aten.copy_", "aten._to_copy"):
            return None
        memories = [self.memories.find(t) for t in (*call.reads, *call.writes)]
        return next((memory.host for memory in memories if memory is not None and memory.host), None)

    def _seconds(self, work: Work, stream: FakeStream, at_s: float) -> float:
        return self.kernel_times.seconds(work.name, work.reads, work.writes, stream.sms / self.facts.sms, work.link, at_s)

    def _profile(self, work: Work, seconds: float) -> None:
        if self._profiled is not None and work.link is None:
            self._profiled.append(Kernel(str(work.func), *self.launch(work.name, work.elements), seconds))

    def _host_waits(self, streams: list[FakeStream]) -> None:
        self.clock.wait_for(streams)
        self.order.host_waits(stream.index for stream in streams)

    def _host_waits_for(self, event: FakeEvent) -> None:
        self._not_in_capture("synchronize")
        if event.mark is not None and event.mark.time_s is not None:
            self.clock.now_s = max(self.clock.now_s, event.mark.time_s)
            self.order.host_reached(event.mark.ticks)

    def _not_in_capture(self, what: str) -> None:
        if self.capture_now is not None:
            self.capture_now.fail(f"{what} during a capture")

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """A context whose ops are not issued to the GPU."""
        with _disable_current_modes(), torch.no_grad():
            yield


class _Mode(TorchDispatchMode):
    """Passes every op of this thread to the GPUs of a box."""

    def __init__(self, box: Box):
        super().__init__()
        self.box = box

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No code that torch.compile compiled runs under the simulation: its guard before every op is not needed."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Issue the op."""
        return self.box.issue(func, args, kwargs or {})


class FakeGpus:
    """Simulated GPUs of one process, on one clock. `gpus[0]` is the driver of the first; `options`: as for each `FakeGpu`.

    with FakeGpus(2) as gpus:
        gpus[0].use(gpus[1].stream())  # later ops without operands run on the second GPU

    GPU k's device is `cpu:k`, so that ops may name it; tensors do not say where they are. As on real GPUs, only a copy may use memories of
    two of them: any other op raises FakeGpuError.
    """

    def __init__(self, count: int, times: Times | None = None, facts: GpuFacts = FACTS, **options: Any):
        box = Box(times or Times())
        self.gpus = tuple(FakeGpu(times, facts, box=box, **options) for _ in range(count))

    def __enter__(self) -> tuple[FakeGpu, ...]:
        """Activate the GPUs."""
        self.gpus[0].activate()
        return self.gpus

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        """Deactivate the GPUs, and raise AssertionError if streams raced."""
        self.gpus[0].__exit__(kind, value, traceback)
