"""CUDA graphs: a capture records the issued work, and a replay runs it on the same tensors.

Ops do run while they are captured, because their results' shapes are needed. When the capture ends, the tensors that they mutated are
restored and the tensors that they allocated are poisoned, so that no code can depend on their values.
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tests.fake_gpu.calls import Call, tensors_in
from tests.fake_gpu.errors import FakeGpuError
from tests.fake_gpu.memory import Memories, Memory, Region
from tests.fake_gpu.races import Order, Race, Ticks
from tests.fake_gpu.streams import Clock, FakeEvent, FakeStream, KernelRun, Mark
from tests.fake_gpu.times import Times

#: The name of a host call in the timeline.
HOST_CALL = "host call"


@dataclass(frozen=True, eq=False)
class Work:
    """The part of an op that determines its kernel's time and its entry in a profile."""

    func: Callable
    name: str
    elements: int
    reads: list[tuple[Memory, int]]
    writes: list[tuple[Memory, int]]
    link: str | None  # "pinned" or "pageable": a copy between host and device; "peer": one between two GPUs
    kind: str = ""  # the op and the type of its first operand: `aten.mm of bfloat16`
    route: tuple[int, int] | None = None  # of a copy between two GPUs: their numbers


class Gpu(Protocol):
    """The parts of the simulated GPU that captures and graphs use."""

    times: Times
    clock: Clock
    order: Order
    memories: Memories
    races: list[Race]
    timeline: list[KernelRun]
    current: FakeStream
    joint_captures: bool
    stalls: Collection[str]
    stalls_beside: Collection[str]
    stalled: bool
    capture_now: "Capture | None"

    def _outside(self) -> AbstractContextManager[None]: ...

    def _run(self, func: Callable, args: tuple, kwargs: dict) -> object: ...

    def _seconds(self, work: Work, stream: FakeStream, at_s: float) -> float: ...

    def _profile(self, work: Work, seconds: float) -> None: ...


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a graph: a kernel (`work`), the record of an external event (`event`), or without either a host call of `call_s` seconds.

    `after`: the nodes that it waits for.
    """

    stream: FakeStream
    after: frozenset[int]
    work: Work | None = None
    args: tuple = ()
    kwargs: Any = None
    results: Any = None
    allocated: tuple[tuple[int, Tensor], ...] = ()  # the results that are in the graph's own memory, and their positions among all results
    event: FakeEvent | None = None
    call_s: float = 0.0


class Capture:
    """A capture in progress, which began on the stream `origin`."""

    def __init__(self, gpu: Gpu, origin: FakeStream, gpus: Collection[Gpu]):
        """`gpus`: whose streams may take part."""
        self.gpu, self.origin, self.gpus = gpu, origin, gpus
        self.order = Order(gpu.races)
        self.nodes: list[Node] = []
        self.ends: dict[FakeStream, frozenset[int]] = {origin: frozenset()}  # by stream, the nodes that its next node waits for
        self.open = True
        self.invalid: str | None = None
        self._saved: dict[Memory, tuple[Tensor, Tensor]] = {}
        self._allocated: list[Tensor] = []
        self._generator_state = torch.get_rng_state()

    def check_stream(self, stream: FakeStream) -> None:
        """Raise FakeGpuError for a stream that does not take part in the capture."""
        if stream not in self.ends:
            self.fail(f"stream {stream.index} is used in a capture from stream {self.origin.index} without waiting for an event of it")

    def check_call(self, call: Call) -> None:
        """Raise FakeGpuError for an op that cannot be captured."""
        if call.synchronizes:
            self.fail(f"{call.name} makes the host wait, which a capture does not permit")
        if call.kwargs.get("generator") is not None:
            self.fail(f"{call.name} draws from a generator that is not the graph's")

    def fail(self, message: str) -> None:
        """Raise FakeGpuError for a call that CUDA would refuse, and let the capture end without a graph."""
        self.invalid = message
        raise FakeGpuError(message)

    def save(self, call: Call) -> None:
        """Save the contents that the op is about to overwrite in memory that existed before the capture."""
        for tensor in call.writes:
            memory = self.gpu.memories.of(tensor)
            if memory.capture is not self and memory not in self._saved:
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self._saved[memory] = (whole, whole.clone())
                memory.held = True

    def add_kernel(self, stream: FakeStream, call: Call, work: Work) -> None:
        """Add a node for the op's kernel."""
        self.check_stream(stream)
        hold = self.gpu.memories.hold
        args, kwargs, results = (_with_tensors(hold, tree) for tree in (call.args, call.kwargs, call.results))
        new_ids = {id(t) for t in call.allocated}
        pairs = zip(tensors_in(results), tensors_in(call.results), strict=True)
        allocated = [(position, held) for position, (held, result) in enumerate(pairs) if id(result) in new_ids]
        self._add(Node(stream, self.ends[stream], work, args, kwargs, results, tuple(allocated)))

    def add_host_call(self, stream: FakeStream, seconds: float) -> None:
        """Add a node for a call of the host that takes `seconds`."""
        self.check_stream(stream)
        self._add(Node(stream, self.ends[stream], call_s=seconds))
        self.order.op(HOST_CALL, stream.index, ())

    def add_allocation(self, stream: FakeStream, call: Call) -> None:
        """Make the memory that an op without a kernel allocated part of the graph."""
        if call.allocated:
            self.check_stream(stream)
        self._allocated.extend(self.gpu.memories.hold(t) for t in call.allocated)

    def record(self, stream: FakeStream, event: FakeEvent) -> None:
        """Mark a point of the capture, or add a node if the event is external."""
        self.check_stream(stream)
        if event.external:
            self._add(Node(stream, self.ends[stream], event=event))
            self.order.tick(stream.index)
            event.mark = Mark(None, {}, self)
        else:
            event.mark = Mark(None, self.order.mark(stream.index), self, self.ends[stream])

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        """Fork a stream into the capture, or join streams."""
        if event.mark is None:
            return
        if event.external:
            self.fail("wait in a capture for an external event, which orders nothing in the graph: fork and join by plain events")
        if event.mark.capture is not self:
            self.fail("wait in a capture for an event that was recorded outside of it")
        if stream.gpu not in self.gpus:
            self.fail(f"stream {stream.index} is of a GPU whose allocations the graph does not keep")
        if not self.gpu.joint_captures and (stream.gpu, stream.partition) != (self.origin.gpu, self.origin.partition):
            self.fail("operation not permitted when stream is capturing: the stream belongs to another context")
        self.ends[stream] = self.ends.get(stream, frozenset()) | event.mark.nodes
        self.order.join(stream.index, event.mark.ticks)

    def end(self) -> None:
        """End the capture: undo the effects of the captured ops, and check that all streams were joined."""
        self.undo()
        if self.invalid:
            raise FakeGpuError(f"the capture was invalidated: {self.invalid}")
        joined = self.order.stream(self.origin.index)
        for stream in self.ends:
            if joined.get(stream.index, 0) < self.order.stream(stream.index).get(stream.index, 0):
                self.invalid = f"stream {stream.index} was not joined to stream {self.origin.index} at the end of the capture"
                raise FakeGpuError(self.invalid)

    def undo(self) -> None:
        """Restore the mutated tensors and the generator, and poison the allocated tensors."""
        self.open = False
        for whole, contents in self._saved.values():
            whole.copy_(contents)
        self._saved.clear()
        for tensor in self._allocated:
            _poison(tensor)
        for node in self.nodes:
            for _, tensor in node.allocated:
                _poison(tensor)
        torch.set_rng_state(self._generator_state)

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        self.ends[node.stream] = frozenset({len(self.nodes) - 1})


class FakeGraph:
    """A captured graph."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        self.replays = 0
        self.nodes: list[Node] | None = None
        self._touched: list[tuple[Memory, Region, bool]] = []
        self._foreign: list[Memory] = []  # memories that the graph uses and does not own
        self._on_several_streams = False
        self._capture: Capture | None = None
        self._end_s = 0.0
        self._end_ticks: Ticks = {}

    def finish(self, capture: Capture) -> None:
        """Take the nodes of a capture that ended without an error."""
        self.nodes, self._capture = capture.nodes, capture
        self._touched = [(memory, a.region, a.write) for memory, accesses in capture.order.accesses.items() for a in accesses]
        self._foreign = [memory for memory in capture.order.accesses if memory.capture is not capture]
        self._on_several_streams = len({node.stream for node in self.nodes if node.work is not None}) > 1

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        gpu, stream = self.gpu, self.gpu.current
        if gpu.capture_now is not None:
            gpu.capture_now.fail("replay of a graph during a capture")
        if self.nodes is None:
            raise FakeGpuError("replay of a graph whose capture did not end well")
        for memory in self._foreign:
            if memory.released:
                op = self._capture.order.accesses[memory][0].op
                raise FakeGpuError(f"replay of a graph after memory that it does not own was freed: {memory.bytes} bytes that {op} uses")
        with gpu._outside():
            for node in self.nodes:
                if node.work is not None:
                    _run(gpu, node)
            gpu.order.join(stream.index, self._end_ticks)
            gpu.order.op("graph", stream.index, self._touched)
        self._end_ticks = gpu.order.mark(stream.index)
        self._time(stream)
        self.replays += 1

    def _time(self, stream: FakeStream) -> None:
        """Time one launch. A node starts after those it waits for, the stream's earlier work and the graph's previous replay."""
        gpu, times = self.gpu, self.gpu.times
        branches = len({node.stream for node in self.nodes})
        gpu.clock.spend(times.replay_s + times.graph_node_s * len(self.nodes) + times.graph_branch_s * max(0, branches - 1))
        gpu.clock.make_room(stream)
        begin_s = max(gpu.clock.now_s, stream.tail_s, self._end_s)
        ends: list[float] = []
        free_s: dict[tuple[int, int], float] = {}  # by route between two GPUs, when earlier copies have ended
        nodes, several, gap_s = self.nodes, self._on_several_streams, times.gap_s
        if endless := {*gpu.stalls, *(gpu.stalls_beside if several else ())}:
            gpu.stalled = gpu.stalled or any(node.work is not None and node.work.name in endless for node in nodes)
        for node in nodes:
            start_s = begin_s
            for i in node.after:
                cross_s = 0.0 if nodes[i].stream is node.stream else times.cross_gap_s
                start_s = max(start_s, ends[i] + gap_s + cross_s)
            end_s = start_s
            if node.work is not None:
                slow_down = times.beside.get(node.work.kind, times.beside.get(node.work.name, 1.0)) if several else 1.0
                if node.work.route is not None:
                    start_s = end_s = max(start_s, free_s.get(node.work.route, 0.0))
                end_s += node.stream.gpu._seconds(node.work, node.stream, start_s) * slow_down
                if node.work.route is not None:
                    free_s[node.work.route] = end_s
                gpu.timeline.append(KernelRun(node.work.name, node.stream.index, start_s, end_s))
                gpu._profile(node.work, end_s - start_s)
            elif node.event is not None:
                node.event.mark = Mark(end_s, self._end_ticks)
            else:
                end_s += node.call_s
                gpu.timeline.append(KernelRun(HOST_CALL, node.stream.index, start_s, end_s))
            ends.append(end_s)
        self._end_s = stream.tail_s = max(ends, default=begin_s)
        stream.outstanding.append(stream.tail_s)


def _with_tensors(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The same arguments or results with changed tensors."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, list | tuple):
        return type(tree)([_with_tensors(change, item) for item in tree])
    if isinstance(tree, dict):
        return {key: _with_tensors(change, item) for key, item in tree.items()}
    return tree


def _run(gpu: Gpu, node: Node) -> None:
    """Run the op again on the same memory, and copy its new results to the memory of the capture's results."""
    results = gpu._run(node.work.func, node.args, node.kwargs)
    if node.allocated:
        new = tensors_in(results)
        for position, captured in node.allocated:
            captured.copy_(new[position])


def _poison(tensor: Tensor) -> None:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)
