"""CUDA graphs: a capture notes what is issued instead of running it, a replay runs it again on the very same tensors.

Ops do run while they are captured, since shapes come from running; when the capture ends, what they mutated is put back and what they made
is poisoned, so that nothing can come to depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from tests.fake_gpu.calls import Call, tensors_in
from tests.fake_gpu.errors import FakeGpuError
from tests.fake_gpu.memory import Memory, Region
from tests.fake_gpu.races import Order, Ticks
from tests.fake_gpu.streams import FakeEvent, FakeStream, Mark, Ran

if TYPE_CHECKING:
    from tests.fake_gpu.driver import FakeGpu, Work


#: What the timeline calls a host call.
HOST_CALL = "host call"


@dataclass(frozen=True, eq=False)
class Node:
    """A kernel (`work`), the record of an external event or, without either, a host call of `call_s` seconds, after other nodes."""

    stream: FakeStream
    after: frozenset[int]
    work: Work | None = None
    args: tuple = ()
    kwargs: Any = None
    results: Any = None
    made: tuple[Tensor, ...] = ()  # those of the results that are the graph's own memory
    event: FakeEvent | None = None
    call_s: float = 0.0


class Capture:
    """A capture that is going on, from `origin`."""

    def __init__(self, gpu: FakeGpu, origin: FakeStream):
        self.gpu, self.origin = gpu, origin
        self.order = Order(gpu.races)
        self.nodes: list[Node] = []
        self.ends: dict[FakeStream, frozenset[int]] = {origin: frozenset()}  # by stream of the capture, what its next node comes after
        self.open = True
        self.invalid: str | None = None
        self._saved: dict[Memory, tuple[Tensor, Tensor]] = {}
        self._allocated: list[Tensor] = []
        self._generator_state = torch.get_rng_state()

    def check_stream(self, stream: FakeStream) -> None:
        """Refuse a stream that does not take part."""
        if stream not in self.ends:
            self.fail(f"stream {stream.index} is used in a capture from stream {self.origin.index} without waiting for an event of it")

    def check_call(self, call: Call) -> None:
        """Refuse what cannot be captured."""
        if call.synchronizes:
            self.fail(f"{call.name} makes the host wait, which a capture does not permit")
        if call.kwargs.get("generator") is not None:
            self.fail(f"{call.name} draws from a generator that is not the graph's")

    def fail(self, message: str) -> None:
        """CUDA would refuse this, and end the capture without a graph."""
        self.invalid = message
        raise FakeGpuError(message)

    def save(self, call: Call) -> None:
        """Remember what the op is about to overwrite in memory that was there before the capture."""
        for tensor in call.writes:
            memory = self.gpu.memories.of(tensor)
            if memory.capture is not self and memory not in self._saved:
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self._saved[memory] = (whole, whole.clone())
                memory.held = True

    def add_kernel(self, stream: FakeStream, call: Call, work: Work) -> None:
        """The op becomes a node."""
        self.check_stream(stream)
        hold = self.gpu.memories.hold
        args, kwargs, results = tree_map_only(Tensor, hold, (call.args, call.kwargs, call.results))
        made_ids = {id(t) for t in call.made}
        made = [kept for kept, given in zip(tensors_in(results), tensors_in(call.results), strict=True) if id(given) in made_ids]
        self._add(Node(stream, self.ends[stream], work, args, kwargs, results, tuple(made)))

    def add_host_call(self, stream: FakeStream, seconds: float) -> None:
        """The call becomes a node that takes so long."""
        self.check_stream(stream)
        self._add(Node(stream, self.ends[stream], call_s=seconds))
        self.order.op(HOST_CALL, stream.index, ())

    def add_allocation(self, stream: FakeStream, call: Call) -> None:
        """The memory that an op without a kernel made becomes the graph's."""
        if call.made:
            self.check_stream(stream)
        self._allocated.extend(self.gpu.memories.hold(t) for t in call.made)

    def record(self, stream: FakeStream, event: FakeEvent) -> None:
        """Mark a place, or make it a node if the event is external."""
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
        self.ends[stream] = self.ends.get(stream, frozenset()) | event.mark.nodes
        self.order.join(stream.index, event.mark.ticks)

    def end(self) -> None:
        """Nothing was executed: put contents back, poison what was made, and check that all streams were joined."""
        self.undo()
        if self.invalid:
            raise FakeGpuError(f"the capture was invalidated: {self.invalid}")
        joined = self.order.stream(self.origin.index)
        for stream in self.ends:
            if joined.get(stream.index, 0) < self.order.stream(stream.index).get(stream.index, 0):
                self.invalid = f"stream {stream.index} was not joined to stream {self.origin.index} at the end of the capture"
                raise FakeGpuError(self.invalid)

    def undo(self) -> None:
        """Take back what running the captured ops did."""
        self.open = False
        for whole, contents in self._saved.values():
            whole.copy_(contents)
        self._saved.clear()
        for tensor in self._allocated:
            _poison(tensor)
        for node in self.nodes:
            for tensor in node.made:
                _poison(tensor)
        torch.set_rng_state(self._generator_state)

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        self.ends[node.stream] = frozenset({len(self.nodes) - 1})


class FakeGraph:
    """A captured graph."""

    def __init__(self, gpu: FakeGpu):
        self.gpu = gpu
        self.replays = 0
        self.nodes: list[Node] | None = None
        self._touched: list[tuple[Memory, Region, bool]] = []
        self._own: Capture | None = None
        self._end_s = 0.0
        self._end_ticks: Ticks = {}

    def finish(self, capture: Capture) -> None:
        """Take over a capture that has ended well."""
        self.nodes, self._own = capture.nodes, capture
        self._touched = [(memory, a.region, a.write) for memory, accesses in capture.order.accesses.items() for a in accesses]

    def replay(self) -> None:
        """Launch it on the current stream."""
        gpu, stream = self.gpu, self.gpu.current
        if gpu.capture_now is not None:
            gpu.capture_now.fail("replay of a graph during a capture")
        if self.nodes is None:
            raise FakeGpuError("replay of a graph whose capture did not end well")
        for memory, _, _ in self._touched:
            if memory.released and memory.capture is not self._own:
                op = self._own.order.accesses[memory][0].op
                raise FakeGpuError(f"replay of a graph after memory that it does not own was freed: {memory.bytes} bytes that {op} uses")
        with gpu._outside():
            for node in self.nodes:
                if node.work is not None:
                    _run(node)
            gpu.order.join(stream.index, self._end_ticks)
            gpu.order.op("graph", stream.index, self._touched)
        self._end_ticks = gpu.order.mark(stream.index)
        self._time(stream)
        self.replays += 1

    def _time(self, stream: FakeStream) -> None:
        """One launch; nodes start after those they wait for, the stream's earlier work and the graph's previous replay."""
        gpu, times = self.gpu, self.gpu.times
        gpu.clock.spend(times.replay_s)
        gpu.clock.make_room(stream)
        begin_s = max(gpu.clock.now_s, stream.tail_s, self._end_s)
        ends: list[float] = []
        several = len({node.stream for node in self.nodes if node.work is not None}) > 1
        for node in self.nodes:
            gaps = ((ends[i], 0.0 if self.nodes[i].stream is node.stream else times.cross_gap_s) for i in node.after)
            start_s = max([begin_s, *(end + times.gap_s + more for end, more in gaps)])
            end_s = start_s
            if node.work is not None:
                end_s += gpu._seconds(node.work, node.stream) * (times.beside.get(node.work.name, 1.0) if several else 1.0)
                gpu.timeline.append(Ran(node.work.name, node.stream.index, start_s, end_s))
                gpu._profile(node.work, end_s - start_s)
            elif node.event is not None:
                node.event.mark = Mark(end_s, self._end_ticks)
            else:
                end_s += node.call_s
                gpu.timeline.append(Ran(HOST_CALL, node.stream.index, start_s, end_s))
            ends.append(end_s)
        self._end_s = stream.tail_s = max(ends, default=begin_s)
        stream.outstanding.append(stream.tail_s)


def _run(node: Node) -> None:
    """The op again on the same memory; what it makes goes where the capture's results lie."""
    results = node.work.func(*node.args, **node.kwargs)
    made = {id(t) for t in node.made}
    for kept, new in zip(tensors_in(node.results), tensors_in(results), strict=True):
        if id(kept) in made:
            kept.copy_(new)


def _poison(tensor: Tensor) -> None:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)
