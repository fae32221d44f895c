"""A recorded run: device work, the host calls that launched it or waited for it, the annotations around them, and PyTorch's operators.

Times are seconds since `Recording.origin_ns`, so that nanoseconds are not lost. Recordings of several ranks have origins on one clock.

Operators are calls of PyTorch's ops on the host, as a tree. PyTorch writes them as events of the category `cpu_op` (`Operator` before
1.12), and named ranges as `user_annotation`. An operator is the child of the innermost operator of its thread that encloses it. Shapes
are recorded with `record_shapes=True` only.
"""

import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

Shape = tuple[int, ...]
#: An operator covers a stretch of time if it lasts for at least this share of it.
COVERED = 0.5
#: The prefixes of names that cover whole steps: the profiler's steps, and ranges of Nsight Systems that are steps.
_STEP, STEP_RANGE = "ProfilerStep#", "NVTX "
#: PyTorch annotates `enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`; Lightning and others write the words differently.
_LOADING = re.compile(r"data_?load", re.IGNORECASE)
#: The names of PyTorch's ops, and of the nodes of autograd; annotations have others.
_OP = re.compile(r"::|Backward")


@lru_cache(maxsize=4096)
def is_loading(op: str) -> bool:
    """Whether an op or annotation of this name gets the next batch from a data loader."""
    return _LOADING.search(op) is not None


#: What the names of calls that launch a graph contain, of CUDA and of HIP.
GRAPH_LAUNCH = "GraphLaunch"
_ALLOCATION = re.compile(
    r"^(cuda|hip|cu|ur|ze)[A-Z]?\w*?([Aa]lloc|Free|Mem(Create|Release|Map|Unmap|SetAccess|AddressReserve)|Host(Reg|Unreg)ister)"
)


@lru_cache(maxsize=4096)
def is_allocation(call: str) -> bool:
    """Whether a call of this name of a runtime or driver takes or returns memory."""
    return _ALLOCATION.search(call) is not None


class Operator(NamedTuple):
    """One call of an op on the host, in seconds since the recording's origin.

    `shapes`: those of its arguments, () for an argument that is no tensor or a scalar; None if not recorded. `parent`: the index of the
    operator that called it, -1 if there is none. `types`: the arguments' types, as PyTorch writes them; () if not recorded.
    `sequence`: autograd's number, which a forward op and its backward share; -1 if not recorded.
    """

    name: str
    thread: int
    start_s: float
    end_s: float
    shapes: tuple[Shape, ...] | None
    parent: int
    types: tuple[str, ...] = ()
    sequence: int = -1


@dataclass(frozen=True)
class Operators:
    """The operators of a recording: parents before children, otherwise in order of start. `of_call`: the operator of each launching call.

    `properties`: what the trace says of each GPU, by number. `modules`: calls of `nn.Module`s, which `with_stack=True` records, as a tree.
    """

    all: tuple[Operator, ...] = ()
    of_call: Mapping[int, int] = field(default_factory=dict)
    properties: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    modules: tuple[Operator, ...] = ()

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """The operators that an operator called, in order of start; those of -1 were called by none."""
        children: dict[int, list[int]] = {}
        for index, operator in enumerate(self.all):
            children.setdefault(operator.parent, []).append(index)
        return children

    @cached_property
    def _starts_s(self) -> list[float]:
        return [operator.start_s for operator in self.all]

    @cached_property
    def _outermost(self) -> dict[int, list[int]]:
        """The operators of each thread that were called by none, in order of start."""
        return _by_thread(self.all, self.children.get(-1, ()))

    def outermost(self) -> Iterator[list[Operator]]:
        """Yield what nothing else called, in order of start: the calls of modules of each thread, then its operators and annotations."""
        for members in self._modules_of.values():
            yield [self.modules[index] for index in members if self.modules[index].parent < 0]
        for members in self._outermost.values():
            yield [self.all[index] for index in members]

    def launching(self, call: int) -> str:
        """The name of the innermost operator that made a launch, by the launch's index among the calls; "" if there is none."""
        return self.all[self.of_call[call]].name if call in self.of_call else ""

    def callers(self, call: int) -> str:
        """The names of the operators around a launch, the outermost first, without profiler steps; "" if no op made it."""
        if not _OP.search(self.launching(call)):
            return ""
        names = (self.all[index].name for index in self.ancestors(self.of_call[call]))
        return " > ".join(reversed([name for name in names if not name.startswith(_STEP)]))

    def covering(self, thread: int, start_s: float, end_s: float) -> str:
        """The name of the innermost operator that covers a thread's time from `start_s` to `end_s`; "" if none but a profiler step does."""
        name, inside = "", self._outermost.get(thread, [])
        while inside:
            first = max(0, bisect_right(inside, start_s, key=self._starts_s.__getitem__) - 1)
            last = bisect_right(inside, end_s, first, key=self._starts_s.__getitem__)
            longest, covered_s = -1, COVERED * (end_s - start_s)
            for index in inside[first:last]:
                own_s = min(end_s, self.all[index].end_s) - max(start_s, self.all[index].start_s)
                if own_s > covered_s or (own_s == covered_s and longest < 0):
                    longest, covered_s = index, own_s
            if longest < 0:
                break
            name = name if self.all[longest].name.startswith(_STEP) else self.all[longest].name
            inside = self.children.get(longest, [])
        return name

    @cached_property
    def _loading(self) -> dict[int, list[Operator]]:
        """By thread, the operators that load data and that no other such operator called, in order of start."""
        by_thread: dict[int, list[Operator]] = {}
        reached: dict[int, float] = {}
        for operator in self.all:
            if is_loading(operator.name) and operator.start_s >= reached.get(operator.thread, float("-inf")):
                by_thread.setdefault(operator.thread, []).append(operator)
                reached[operator.thread] = operator.end_s
        return by_thread

    def stretches(self, thread: int, start_s: float, end_s: float) -> Iterator[tuple[float, str]]:
        """Cut a thread's time from `start_s` to `end_s` where a data loader begins and ends. Yields each end, and what covers the part."""
        loading = self._loading.get(thread, ())
        for operator in loading[bisect_right(loading, start_s, key=lambda operator: operator.end_s) :]:
            if operator.start_s >= end_s:
                break
            if operator.start_s > start_s:
                yield operator.start_s, self.covering(thread, start_s, operator.start_s)
            start_s = min(operator.end_s, end_s)
            yield start_s, operator.name
        if start_s < end_s:
            yield end_s, self.covering(thread, start_s, end_s)

    @cached_property
    def _modules_of(self) -> dict[int, list[int]]:
        """The calls of modules of each thread, in order of start."""
        return _by_thread(self.modules, range(len(self.modules)))

    def module_at(self, thread: int, time_s: float) -> str:
        """The innermost module that a thread is in at a time; "" if none was recorded."""
        members = self._modules_of.get(thread, [])
        at = bisect_right(members, time_s, key=lambda index: self.modules[index].start_s) - 1
        index = members[at] if at >= 0 else -1
        while index >= 0 and self.modules[index].end_s < time_s:
            index = self.modules[index].parent
        return self.modules[index].name if index >= 0 else ""

    def ancestors(self, index: int) -> Iterable[int]:
        """The operator, its caller, and so on outward."""
        while index >= 0:
            yield index
            index = self.all[index].parent


def _by_thread(operators: Sequence[Operator], indices: Iterable[int]) -> dict[int, list[int]]:
    by_thread: dict[int, list[int]] = {}
    for index in indices:
        by_thread.setdefault(operators[index].thread, []).append(index)
    return by_thread


KERNEL, MEMCPY, MEMSET, COLLECTIVE = "kernel", "memcpy", "memset", "collective"

#: NCCL, RCCL and MSCCL++; the custom all-reduces of serving engines and PyTorch's symmetric memory; FlashInfer's and TensorRT-LLM's fused
#: collectives; NVSHMEM (its kernels of host calls end in `_on_stream_kernel`) and rocSHMEM; DeepEP, whose namespace is `dpsk::ep` in traces
#: of its authors, and MORI's port of it. A kernel whose own name begins with a collective's is one. Compiled kernels name what they are
#: fused with behind an underscore, and reductions within a block or a warp are not between devices.
_COMMUNICATION = re.compile(
    r"nccl|rccl|mscclpp|(one|two)shot_?all_?reduce|cross_device_reduce|all_?reduce_?kernel|multimem_|moe_?all_?to_?all"
    r"|(?<![a-z0-9_])(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"
    r"|nvshmem|rocshmem|_on_stream_kernel|deep_ep|\bep::(inter|intra)node|\bep(dispatch|combine)(inter|intra)node",
    re.IGNORECASE,
)


def is_communication(kernel: str) -> bool:
    """Whether a kernel of this name moves data between devices of a job, or waits for other devices to do so."""
    return _COMMUNICATION.search(kernel) is not None


class CallKind(StrEnum):
    """What a host call means for the order of device work."""

    LAUNCH = "launch"  # submits work and returns immediately
    STREAM_WAIT = "stream wait"  # later work of a stream waits for an event
    EVENT_RECORD = "event record"
    STREAM_SYNC = "stream sync"  # the host waits for one stream
    EVENT_SYNC = "event sync"  # the host waits for an event
    DEVICE_SYNC = "device sync"  # the host waits for all streams
    ALLOCATION = "allocation"  # takes or returns memory, and waits for nothing


class Work(NamedTuple):
    """One kernel, copy, set or collective on a device. `call` is the index of the call that launched it, -1 if that was not recorded.

    `grid` counts blocks, `block` threads per block, `registers` registers per thread, `shared_bytes` shared memory per block; 0 if not
    recorded.
    """

    name: str
    category: str
    device: int
    stream: int
    start_s: float
    end_s: float
    bytes: float = 0.0
    grid: int = 0
    call: int = -1
    block: int = 0
    registers: int = 0
    shared_bytes: int = 0

    @property
    def lane(self) -> tuple[int, int]:
        """(device, stream)."""
        return (self.device, self.stream)

    @property
    def duration_s(self) -> float:
        """Duration, rounded to the picosecond."""
        return round(self.end_s - self.start_s, 12)


class Call(NamedTuple):
    """One call of the CUDA runtime or driver that launches or orders work, or allocates. Threads are numbered by first appearance."""

    name: str
    kind: CallKind
    thread: int
    start_s: float
    end_s: float
    correlation: int = -1


class Sync(NamedTuple):
    """What a synchronizing call refers to, as the profiler recorded it; -1 if unknown."""

    stream: int = -1
    wait_on_stream: int = -1
    record_correlation: int = -1


class Annotation(NamedTuple):
    """A named range on a host thread."""

    name: str
    start_s: float
    end_s: float


class MemoryChange(NamedTuple):
    """A GPU's allocator takes or returns `bytes`. `allocated`, `reserved`: its bytes after that; None in traces before PyTorch 1.10.

    Recorded with `profile_memory=True`.
    """

    device: int
    bytes: int
    allocated: int | None
    reserved: int | None


#: What the profiler calls a call of a module, before its class and its number.
MODULE = "nn.Module: "
#: What the profiler calls a change of memory, and how it numbers the kind of device that is a GPU.
MEMORY, _GPU = "[memory]", 1


def memory_change(args: Any) -> MemoryChange | None:
    """The change that the arguments of an event describe; None if they describe none of a GPU's memory."""
    if not isinstance(args, dict) or args.get("Device Type") != _GPU:
        return None
    size, *others = (args.get(key) for key in ("Bytes", "Device Id", "Total Allocated", "Total Reserved"))
    device, allocated, reserved = (each if isinstance(each, int) and 0 <= each < 2**63 else None for each in others)
    if not isinstance(size, int) or abs(size) >= 2**63:
        return None
    return MemoryChange(device or 0, size, allocated, reserved)


@dataclass(frozen=True, slots=True)
class Recording:
    """The trace of one rank. `works` are in order of (start, device, stream), `calls` in order of start.

    `syncs` are by index of the call. `world_size` is the number of ranks of the job, 1 if unknown. `notes` are one line each. `operators`:
    the ops that the host called. `memory`: the changes of GPUs' memories, in order of time. `lost_s`: when kernels were launched that the
    trace does not have, or not with a usable time.
    """

    source: str
    works: tuple[Work, ...]
    calls: tuple[Call, ...]
    syncs: dict[int, Sync]
    annotations: tuple[Annotation, ...]
    origin_ns: int = 0
    rank: int = 0
    world_size: int = 1
    notes: tuple[str, ...] = ()
    operators: Operators = field(default_factory=Operators)
    memory: tuple[MemoryChange, ...] = ()
    lost_s: tuple[float, ...] = ()

    @property
    def unmatched(self) -> int:
        """How many works have no recorded launch."""
        return sum(work.call < 0 for work in self.works)

    @property
    def streams(self) -> int:
        """How many streams have work."""
        return len({work.lane for work in self.works})

    @property
    def begin_s(self) -> float:
        return min([self.works[0].start_s, *(call.start_s for call in self.calls[:1])])


def by_lane(works: Sequence[Work]) -> dict[tuple[int, int], list[int]]:
    """Indices of the works of each stream, in order of start."""
    lanes: dict[tuple[int, int], list[int]] = {}
    for index, work in enumerate(works):
        lanes.setdefault(work.lane, []).append(index)
    return lanes


CATEGORIES = frozenset({"cpu_op", "operator", "user_annotation"})
#: Operators of a recording at most: a step of a large model has some 50,000.
MOST_OPERATORS = 2_000_000
#: Shapes of an operator, and extents of a shape, at most; longer lists are those of no tensor op.
_MOST_SHAPES, _MOST_EXTENTS = 4096, 16
#: Characters of a type's name that count.
_LONGEST_TYPE = 40
#: Starts and lengths are rounded to microseconds each, so that an operator may seem to outlast its caller.
_ROUNDED_NS = 2000


class RawOperator(NamedTuple):
    """An operator as the trace has it. `shapes`: None if they were not recorded. `external`: the id that its launches may name."""

    name: str
    thread: tuple[int | str, int | str]
    start_ns: int
    end_ns: int
    shapes: tuple[Shape, ...] | None
    external: int
    types: tuple[str, ...] = ()
    sequence: int = -1


def shapes_of(argument: Any) -> tuple[Shape, ...] | None:
    """The shapes in "Input Dims"; None if there are none. Lists of tensors, as foreach ops take them, count as no tensor."""
    if not isinstance(argument, list) or len(argument) > _MOST_SHAPES:
        return None
    return tuple([tuple(shape) if shape and _is_shape(shape) else () for shape in argument])


def types_of(argument: Any) -> tuple[str, ...]:
    """The types in "Input type"; () if there are none."""
    if not isinstance(argument, list) or len(argument) > _MOST_SHAPES:
        return ()
    return tuple([sys.intern(kind[:_LONGEST_TYPE]) if isinstance(kind, str) else "" for kind in argument])


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) <= _MOST_EXTENTS and all(isinstance(x, int) and 0 <= x < 2**63 for x in shape)


def operator_tree(
    raw: list[RawOperator],
    threads: dict[tuple[int | str, int | str], int],
    calls: Sequence[Call],
    external_of_call: Sequence[int],
    origin_ns: int,
    properties: Mapping[int, Mapping[str, Any]],
    modules: list[RawOperator],
) -> Operators:
    """Nest the operators, and find the one that made each launch: the innermost around it, else the one that it names by its id.

    `modules` are nested separately.
    """
    called = operator_tree(modules, threads, (), external_of_call=(), origin_ns=origin_ns, properties={}, modules=[]).all if modules else ()
    raw.sort(key=lambda operator: (operator.start_ns, -operator.end_ns))
    open_by_thread: dict[int, list[int]] = {}
    operators: list[Operator] = []
    events = [(operator.start_ns, 0, index) for index, operator in enumerate(raw)]
    events += [(round(call.start_s * 1e9) + origin_ns, 1, n) for n, call in enumerate(calls) if call.kind is CallKind.LAUNCH]
    by_external = {operator.external: index for index, operator in reversed([*enumerate(raw)]) if operator.external > 0}
    of_call: dict[int, int] = {}
    for start_ns, is_call, index in sorted(events):
        thread = calls[index].thread if is_call else threads.setdefault(raw[index].thread, len(threads))
        opened = open_by_thread.setdefault(thread, [])
        while opened and raw[opened[-1]].end_ns <= start_ns and not (is_call and raw[opened[-1]].end_ns == start_ns):
            opened.pop()
        while not is_call and opened and raw[index].end_ns > raw[opened[-1]].end_ns + _ROUNDED_NS:
            opened.pop()  # it overlaps, but is not inside
        if is_call:
            around = opened[-1] if opened else by_external.get(external_of_call[index], -1)
            if around >= 0:
                of_call[index] = around
            continue
        one = raw[index]
        span = ((one.start_ns - origin_ns) / 1e9, (one.end_ns - origin_ns) / 1e9)
        parent = opened[-1] if opened else -1
        operators.append(Operator(one.name, thread, *span, shapes=one.shapes, parent=parent, types=one.types, sequence=one.sequence))
        opened.append(index)
    return Operators(tuple(operators), of_call, properties, called)
