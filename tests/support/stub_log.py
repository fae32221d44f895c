"""Finds faults in what the CUDA library of `cuda_stub` has logged: calls that a capture forbids, streams that were not joined, races.

The log has one line per call, in order. `stub_process` adds what the library cannot see: `task NAME` before a task and `task` after it,
`op ID STREAM NAME` before an op and `uses ID r:PLACE w:PLACE ...` after it, and PyTorch's blocks: `alloc ADDRESS STREAM` and
`release ADDRESS`. A stream is a number, or `host` for what the host itself reads and writes.

Two uses of the same bytes, one of them a write, must be ordered by events, by a stream, or by the host, which has waited for the first
before it issued the second. An allocation counts as a write, so memory may be given out again only after its last use. In a capture,
order is looked at within the capture. Each launch of its graph then counts as one op that uses all that the graph uses.
`torch.cuda._sanitizer` looks for races too, but forgets a tensor when it is freed, and knows no captures.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.fake_gpu.memory import Region
from tests.fake_gpu.races import Order, Race, Ticks

#: What is not part of a task.
BETWEEN = "work between tasks"
#: Uses are kept by page, because a list of all of them would be long.
_PAGE_BYTES = 4096
#: The smallest block of PyTorch's allocator.
_BLOCK_BYTES = 512


def _bytes(address: int, size: int) -> Region:
    return Region(address, address + size, (size,), (1,), 1)


def _place(text: str) -> Region:
    """A tensor's place, as ADDRESS:BYTES PER ELEMENT:SHAPE:STRIDES, the last two separated by x."""
    address, item, *extents = text.split(":")
    shape, strides = (tuple(map(int, extent.split("x"))) if extent else () for extent in extents)
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return Region(int(address), int(address) + (last + 1) * int(item), shape, strides, int(item))


class Capture:
    """A capture, and later its graph."""

    def __init__(self, name: str, blocks: int):
        """`blocks`: how many blocks had been allocated before."""
        self.name, self.blocks_before = name, blocks
        self.races: list[Race] = []
        self.order = Order(self.races)
        self.streams: set[int] = set()
        self.external: list[str] = []  # the events that each launch records
        self.blocks: dict[int, str] = {}  # the blocks that it uses, and an op that does


class Checker:
    """Reads a log line by line. `counts`: the lines by their first word."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._faults: dict[str, None] = {}
        self._races: list[Race] = []
        self._order = Order(self._races)  # of all work that is not captured
        self._streams = {0}
        self._within: dict[int, Capture] = {}  # the captures that streams are in
        self._captures: dict[str, Capture] = {}
        self._events: dict[str, tuple[Capture | None, Ticks]] = {}
        self._ops: dict[str, tuple[str, str]] = {}
        self._segments: list[tuple[int, int]] = []  # memory of the device, and pinned memory
        self._blocks: dict[int, int] = {}  # by start, the numbers of the blocks that are not released
        self._starts: list[int] = []  # of these blocks, in order
        self._block_count = 0
        self._launched: set[str] = set()
        self._case, self._now = "", BETWEEN

    def read(self, lines: Iterable[str]) -> "Checker":
        for line in lines:
            word, *fields = line.split()
            self.counts[word] += 1
            handler = getattr(self, f"_read_{word}", None)
            if handler is not None:
                handler(*fields)
        return self

    @property
    def faults(self) -> list[str]:
        """What has been found, each once."""
        return list(self._faults)

    def _fault(self, text: str) -> None:
        self._faults[self._case + text] = None

    def _read_case(self, *name: str) -> None:
        self._case, self._now = f"{' '.join(name)}: ", BETWEEN

    def _read_task(self, *name: str) -> None:
        self._now = " ".join(name) or BETWEEN

    # Order.

    def _order_of(self, stream: int) -> Order:
        capture = self._within.get(stream)
        (capture.streams if capture else self._streams).add(stream)
        return capture.order if capture else self._order

    def _read_record(self, stream: str, event: str, external: str = "") -> None:
        number, capture = int(stream), self._within.get(int(stream))
        order = self._order_of(number)
        order.tick(number)
        if external:
            capture.external.append(event)
        else:
            self._events[event] = (capture, order.mark(number))

    def _read_wait(self, stream: str, event: str) -> None:
        if event not in self._events:
            self._read_unrecorded(stream)
            return
        capture, mark = self._events[event]
        if capture is not None:
            self._within.setdefault(int(stream), capture)
        self._order_of(int(stream)).join(int(stream), mark)

    def _read_unrecorded(self, stream: str) -> None:
        self._fault(f"{self._now}: stream {stream} waits for an event that was never recorded")

    def _read_destroy_event(self, event: str) -> None:
        self._events.pop(event, None)

    def _read_sync(self, stream: str) -> None:
        self._order.host_waits([int(stream)])

    def _read_sync_event(self, event: str) -> None:
        if event in self._events:
            self._order.host_reached(self._events[event][1])

    def _read_sync_device(self) -> None:
        self._order.host_waits(self._streams)

    # Captures.

    def _read_begin(self, stream: str, capture: str, mode: str) -> None:
        self._captures[capture] = self._within[int(stream)] = Capture(capture, self._block_count)

    def _read_end(self, stream: str, name: str, graph: str) -> None:
        capture = self._captures[name]
        joined = capture.order.stream(int(stream))
        for other in sorted(capture.streams):
            if joined.get(other, 0) < capture.order.stream(other).get(other, 0):
                self._fault(f"capture {name} ends on stream {stream}, and stream {other} is not joined to it")
        self._within = {other: within for other, within in self._within.items() if within is not capture}
        self._captures[graph] = capture

    def _read_graph(self, stream: str, graph: str) -> None:
        capture = self._captures[graph]
        touched = [(page, use.region, use.write) for page, uses in capture.order.accesses.items() for use in uses]
        allocated = set(self._blocks.values())
        freed = {op for block, op in capture.blocks.items() if block not in allocated}
        freed |= {use.op for uses in capture.order.accesses.values() for use in uses if not self._is_memory(use.region.first)}
        for op in sorted(freed):
            self._fault(f"graph {capture.name} is launched after memory was freed that {op} uses")
        self._order_of(int(stream)).op(f"a launch of graph {capture.name}", int(stream), touched)
        self._report(self._races)
        for event in capture.external:
            self._events[event] = (None, self._order.mark(int(stream)))

    def _read_refused(self, function: str, error: str) -> None:
        self._fault(f"{self._now}: {function} is refused with {error}")

    # Work.

    def _read_launch(self, stream: str, kernel: str) -> None:
        if int(stream) in self._within and kernel not in self._launched and self._now != BETWEEN:
            self._fault(f"{self._now}: kernel {kernel} is launched for the first time, in a capture")
        self._launched.add(kernel)
        self._order_of(int(stream)).tick(int(stream))

    def _read_op(self, number: str, stream: str, name: str) -> None:
        self._ops[number] = (stream, f"{name} of {self._now}")

    def _read_uses(self, number: str, *uses: str) -> None:
        stream, name = self._ops.pop(number)
        self._use(stream, name, [(_place(use[2:]), use[0] == "w") for use in uses])

    def _read_workspace(self, stream: str, address: str, size: str) -> None:
        # Few products use all of it, and whoever gets the memory next begins at its start.
        self._use(stream, f"a product's workspace of {self._now}", [(_bytes(int(address, 16), min(int(size), _PAGE_BYTES)), True)])

    def _read_copy(self, stream: str, target: str, source: str, size: str) -> None:
        uses = [(_bytes(int(source, 16), int(size)), False), (_bytes(int(target, 16), int(size)), True)]
        self._use(stream, f"a copy of {self._now}", uses)

    def _read_fill(self, stream: str, target: str, size: str) -> None:
        self._use(stream, f"a fill of {self._now}", [(_bytes(int(target, 16), int(size)), True)])

    def _use(self, stream: str, name: str, uses: list[tuple[Region, bool]]) -> None:
        touched = [(page, region, write) for region, write in uses for page in self._pages(region)]
        if stream == "host":
            self._order.by_host(name, touched)
            self._report(self._races)
            return
        capture = self._within.get(int(stream))
        self._order_of(int(stream)).op(name, int(stream), touched)
        self._report(capture.races if capture else self._races, f"in capture {capture.name}, " if capture else "")
        if capture:
            blocks = {self._block_of(region.first) for region, _ in uses}
            capture.blocks = {block: name for block in blocks if 0 < block <= capture.blocks_before} | capture.blocks

    def _report(self, races: list[Race], where: str = "") -> None:
        for race in races:
            self._fault(f"{where}{race}")
        races.clear()

    # Memory.

    def _read_malloc(self, address: str, size: str) -> None:
        insort(self._segments, (int(address, 16), int(address, 16) + int(size)))

    def _read_free(self, address: str, size: str) -> None:
        segment = (int(address, 16), int(address, 16) + int(size))
        for page in self._pages(_bytes(segment[0], int(size))):
            self._order.accesses.pop(page, None)
        self._segments.remove(segment)

    _read_malloc_host, _read_free_host = _read_malloc, _read_free

    def _is_memory(self, address: int) -> bool:
        at = bisect_right(self._segments, (address, 1 << 64)) - 1
        return at >= 0 and address < self._segments[at][1]

    def _pages(self, region: Region) -> Iterator[int]:
        if region.first < region.end and self._is_memory(region.first):
            yield from range(region.first // _PAGE_BYTES, -(-region.end // _PAGE_BYTES))

    def _read_alloc(self, address: str, stream: str) -> None:
        start = int(address)
        self._read_release(address)
        insort(self._starts, start)
        self._block_count += 1
        self._blocks[start] = self._block_count
        # Whoever gets memory may write it at once. How much it gets is not known.
        self._use(stream, f"an allocation of {self._now}", [(_bytes(start, _BLOCK_BYTES), True)])

    def _read_release(self, address: str) -> None:
        if self._blocks.pop(int(address), None):
            del self._starts[bisect_left(self._starts, int(address))]

    def _block_of(self, address: int) -> int:
        at = bisect_right(self._starts, address) - 1
        return self._blocks[self._starts[at]] if at >= 0 else 0
