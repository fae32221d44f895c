"""Reads traces of torch.profiler (Kineto), plain or gzip, in the schemas since PyTorch 1.8.

Four kinds of events are used: device work (kernels, copies, sets), calls of the CUDA runtime and driver, operators, and annotations
(profiler steps, optimizer steps). Python frames and flow arrows are skipped while streaming, because correlation ids join work to launches.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from traces.errors import UnusableFileError
from traces.formats.collected import DAY_NS, LONGEST_NUMBER, STEP, Collected, RawCall, RawWork, category_of, integer, volume
from traces.formats.json_stream import items
from traces.formats.recording import (
    CATEGORIES,
    GRAPH_LAUNCH,
    KERNEL,
    MEMCPY,
    MEMORY,
    MEMSET,
    MODULE,
    MOST_OPERATORS,
    RawOperator,
    Recording,
    Sync,
    Work,
    memory_change,
    shapes_of,
    types_of,
)

_DEVICE = {"kernel": KERNEL, "gpu_memcpy": MEMCPY, "memcpy": MEMCPY, "gpu_memset": MEMSET, "memset": MEMSET}
#: How the categories of host calls end: cuda_runtime, cuda_driver, hip_runtime, xpu_runtime, privateuse1_runtime, ...
_HOST = ("runtime", "_driver")
#: Parts of the names of calls that launch a kernel or a graph.
_LAUNCH = re.compile(f"LaunchKernel|KernelLaunch|{GRAPH_LAUNCH}")
#: The reader checks after so many events whether there are too many. Characters of a time with nanoseconds that fits 64 bits.
_CHECKED, _SHORT_NUMBER = 4096, 19
#: No clock of microseconds says more than this (the year 5138), and no recording has this many launches that all take longer than this:
#: such times are nanoseconds.
_LATEST_US, _LAUNCHES, _LONGEST_LAUNCH_NS = 1e17, 10, 1_000_000


def load_trace(path: Path | str) -> Recording:
    """Read the trace of one rank.

    Raises UnusableFileError if the file is missing, damaged, not a profiler trace, or without device work.
    """
    reader = _Events()
    for number, (key, item) in enumerate(items(path, "traceEvents", "trace", reader.ends_early)):
        reader.add(key, item)
        if number % _CHECKED == 0:
            reader.check(path)
    reader.check(path)
    if not reader.events:
        raise UnusableFileError(f"{path} is not a profiler trace (no traceEvents in it); export one with torch.profiler")
    if reader.in_nanoseconds():
        raise UnusableFileError(f"trace {path} has times in nanoseconds; the format has microseconds: divide ts and dur by 1000")
    if not reader.works:
        raise UnusableFileError(f"trace {path} has {reader.events} events but no GPU work; {reader.without_work()}")
    return reader.recording(str(path))


class _Events(Collected):
    def __init__(self):
        super().__init__()
        self.events = self._begins = 0
        self._latest_us = 0.0

    def ends_early(self, events: int) -> None:
        """Note that the file lacks what follows its events."""
        self.notes.append(f"the file lacks its end: its {events:,} whole events were read, and what followed them is not known")

    def in_nanoseconds(self) -> bool:
        """Whether the times can be no microseconds."""
        launches_ns = [call.end_ns - call.start_ns for call in self.calls if _LAUNCH.search(call.name)]
        return (not self.works and self._latest_us > _LATEST_US) or (
            len(launches_ns) >= _LAUNCHES and min(launches_ns) > _LONGEST_LAUNCH_NS
        )

    def without_work(self) -> str:
        """What to do about a trace without GPU work, from what else it has."""
        launches = sum(_LAUNCH.search(call.name) is not None for call in self.calls)
        if launches:
            return (
                f"its {launches:,} launches show that a GPU ran, but that the profiler was not allowed to record it: only one profiler may"
                " use CUPTI at a time, and containers and WSL may need permission; record again where kernels are in the trace"
            )
        if self._begins:
            return f"{self._begins:,} are begins (ph B) of pairs; expected torch.profiler's complete events (ph X)"
        return "record with ProfilerActivity.CUDA (XPU, ...), on a machine with a GPU"

    def add(self, key: str, item: Any) -> None:
        """Add a top-level entry, or an event."""
        if key == "traceEvents":
            if isinstance(item, dict):
                self.events += 1
                if item.get("ph") == "X":
                    self._event(item)
                elif item.get("ph") == "B":
                    self._begins += 1
                elif item.get("name") == MEMORY:
                    self._memory_changed(item)
        elif key == "baseTimeNanoseconds":
            self.base_ns = integer(item, 0)
        elif key == "distributedInfo" and isinstance(item, dict):
            self.rank, self.world = integer(item.get("rank"), 0), max(1, integer(item.get("world_size"), 1))
        elif key == "deviceProperties" and isinstance(item, list):
            self.properties = {integer(gpu.get("id"), 0): gpu for gpu in item if isinstance(gpu, dict)}

    def _memory_changed(self, event: dict) -> None:
        at, change = _nanoseconds(event.get("ts")), memory_change(event.get("args"))
        if at is not None and change is not None and len(self.memory) < MOST_OPERATORS:
            self.memory.append((at, change))

    def _event(self, event: dict) -> None:
        category, name = event.get("cat") or "", event.get("name")
        if not isinstance(name, str) or not isinstance(category, str):
            return
        category, on_device, on_host, is_operator = _kind(category)
        is_module = category == "python_function" and name.startswith(MODULE)
        if not (on_device or on_host or is_operator or is_module or category == "cuda_sync" or STEP.match(name)):
            return
        name = self.name(name)
        start, length = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur", 0))
        if start is None or length is None or not 0 <= length <= DAY_NS:
            self._latest_us = max(self._latest_us, _number(event.get("ts")))
            self.damaged += 1
            return
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        correlation = integer(args.get("correlation"), -1)
        if on_device:
            self.works.append(RawWork(_work(event, args, name, on_device), correlation, start, start + length))
            return
        external = integer(args.get("External id", args.get("external id")), -1)
        thread = (_label(event.get("pid")), _label(event.get("tid")))
        if is_operator:
            shapes, types = shapes_of(args.get("Input Dims")), types_of(args.get("Input type"))
            sequence = integer(args.get("Sequence number"), -1)
            self.operators.append(
                RawOperator(
                    name, thread, start_ns=start, end_ns=start + length, shapes=shapes, external=external, types=types, sequence=sequence
                )
            )
        elif is_module and len(self.modules) < MOST_OPERATORS:
            self.modules.append(RawOperator(name.removeprefix(MODULE), thread, start, start + length, None, -1))
        if on_host:
            self.calls.append(RawCall(name, thread, correlation, start, start + length, external))
        elif category == "cuda_sync":
            numbers = (integer(args.get(key), -1) for key in ("stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id"))
            self.syncs[correlation] = Sync(*numbers)
        elif not category.startswith("gpu"):  # copies of annotations on the device do not describe the host
            self.annotate(name, start, start + length)


@lru_cache(maxsize=256)
def _kind(category: str) -> tuple[str, str, bool, bool]:
    """The category in lower case, that of the device work, and whether an event is a call of the host or an operator."""
    category = category.lower()
    return category, _DEVICE.get(category, ""), category.endswith(_HOST), category in CATEGORIES


def _work(event: dict, args: dict, name: str, category: str) -> Work:
    """The work of an event, without its times and its call, which are known after all events are read."""
    device = integer(args.get("device", event.get("pid")), 0)
    stream = integer(args.get("stream", event.get("tid")), 0)
    return Work(
        name,
        category=category_of(name) if category == KERNEL else category,
        device=device,
        stream=max(0, stream),
        start_s=0.0,
        end_s=0.0,
        bytes=float(max(0, integer(args.get("bytes"), 0))),
        grid=volume(args.get("grid")),
        block=volume(args.get("block")),
        registers=max(0, integer(args.get("registers per thread"), 0)),
        shared_bytes=max(0, integer(args.get("shared memory"), 0)),
    )


def _label(number: Any) -> int | str:
    """The number or name of a process or thread; "" if it is neither."""
    return number[:LONGEST_NUMBER] if isinstance(number, str) else number if isinstance(number, int) else ""


def _number(content: Any) -> float:
    """The number in `content`; 0 for anything else."""
    try:
        return float(content) if isinstance(content, int | str) else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _nanoseconds(microseconds: Any) -> int | None:
    """Converts microseconds (an integer, or text with a fraction) to whole nanoseconds of at most 64 bits; None for anything else."""
    value = None
    if isinstance(microseconds, str) and microseconds[-4:-3] == "." and len(microseconds) <= _SHORT_NUMBER:
        digits = microseconds[:-4] + microseconds[-3:]
        if digits.isdecimal():
            return int(digits)
    if isinstance(microseconds, int) and not isinstance(microseconds, bool):
        value = microseconds * 1000
    elif isinstance(microseconds, str) and len(microseconds) <= LONGEST_NUMBER:
        whole, _, fraction = microseconds.strip().partition(".")
        digits = whole.removeprefix("-")
        if digits.isdecimal() and (not fraction or fraction.isdecimal()):
            value = int(digits) * 1000 + int((fraction + "000")[:3])
            value = -value if whole.startswith("-") else value
        else:
            try:
                value = round(float(microseconds) * 1e3)
            except (ValueError, OverflowError):
                return None
    return value if value is not None and abs(value) < 2**63 else None
