"""Checks what the GPU's partitions can do: that no SM runs kernels of two of them, and whether one CUDA graph can contain them all.

A kernel whose blocks record the SM that they run on finds the SMs of a stream.
"""

import logging
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch

from executors.cuda.driver import Driver, Partition, Place
from executors.cuda.driver_api import first_line
from executors.cuda.issue import fork, join
from executors.kernels.nvrtc import compiled
from simulator.engine.scenario import EAGER, GRAPH
from traces.errors import SchedcastError

#: Length of the table of SMs, larger than the SM count of any GPU because the numbers of SMs may have gaps.
_ROOM = 1024
_THREADS = 1024
#: Blocks launched per SM of the whole GPU. At most two blocks of 1024 threads fit on an SM at a time, so this fills every SM.
_BLOCKS_PER_SM = 4
#: How long a block spins: about 20 us at 2 GHz, so that every SM gets a block before any SM gets a later one.
_SPIN_CYCLES = 40_000
_SOURCE = """
extern "C" __global__ void schedcast_sm_probe(int* seen, int room, int cycles)
{
    unsigned int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    long long begin = clock64();
    while (clock64() - begin < cycles) { }
    if (threadIdx.x == 0 && sm < room) { seen[sm] = 1; }
}
"""


class Probe:
    """The compiled probe kernel. Raises SchedcastError if NVRTC cannot compile it."""

    def __init__(self):
        self._kernel = compiled(_SOURCE, "schedcast_sm_probe")

    def sm_ids(self, driver: Driver, stream: torch.cuda.Stream, replayed: bool) -> frozenset[int]:
        """The SMs that the blocks of one launch on `stream` ran on. With `replayed`, the launch is part of a replayed graph."""
        if replayed:
            return self.sm_ids_in_one_graph(driver, [stream])[0]
        return _marked(self._launched(driver, [stream])[0])

    def sm_ids_in_one_graph(self, driver: Driver, streams: Sequence[torch.cuda.Stream]) -> list[frozenset[int]]:
        """The SMs of one launch on each stream, with all launches in one graph, which is captured from the first stream."""
        seen = self._launched(driver, streams)  # also loads the kernel, which a capture does not allow
        first = streams[0]
        with driver.capture(first) as graph:
            fork(driver, first, streams)
            for stream, table in zip(streams, seen, strict=True):
                self._launch(driver, stream, table)
            join(driver, streams, first)
        for table in seen:
            table.zero_()
        driver.synchronize()
        with torch.cuda.stream(first):
            graph.replay()
        driver.synchronize()
        return [_marked(table) for table in seen]

    def _launched(self, driver: Driver, streams: Sequence[torch.cuda.Stream]) -> list[torch.Tensor]:
        """The tables of one eager launch on each stream."""
        seen = [torch.zeros(_ROOM, dtype=torch.int32, device=driver.device) for _ in streams]
        driver.synchronize()
        for stream, table in zip(streams, seen, strict=True):
            self._launch(driver, stream, table)
        driver.synchronize()
        return seen

    def _launch(self, driver: Driver, stream: torch.cuda.Stream, seen: torch.Tensor) -> None:
        """Raises SchedcastError if the driver refuses the launch, for example because kernel and stream belong to different contexts."""
        grid = (driver.facts.sms * _BLOCKS_PER_SM, 1, 1)
        try:
            with torch.cuda.stream(stream):
                self._kernel(grid=grid, block=(_THREADS, 1, 1), args=[seen, _ROOM, _SPIN_CYCLES], stream=stream)
        except RuntimeError as error:
            raise SchedcastError(f"the kernel that finds a stream's SMs cannot be launched: {first_line(error)}") from error


def _marked(seen: torch.Tensor) -> frozenset[int]:
    return frozenset(seen.nonzero().flatten().tolist())


log = logging.getLogger("schedcast")

#: By driver and number of partitions, what `one_graph_refusal` found.
_refusals: WeakKeyDictionary[Driver, dict[int, str]] = WeakKeyDictionary()


def check_disjoint(driver: Driver, partitions: Sequence[Partition]) -> None:
    """Run a probe kernel on every partition. Only logs a warning if the kernel cannot be compiled.

    Raises SchedcastError if two partitions share an SM, or if one uses more SMs than it has.
    """
    for replayed in (False, True):
        try:
            sms = [driver.sm_ids(driver.stream(partition=partition), replayed) for partition in partitions]
        except SchedcastError as error:
            log.warning("the GPU's partitions could not be checked to be disjoint: %s", error)
            return
        overlap = _overlap(partitions, sms, "in a graph" if replayed else "eagerly")
        if overlap:
            raise SchedcastError(f"{overlap}; drop --partition")


def check_events(driver: Driver, partitions: Sequence[Partition]) -> None:
    """Raise SchedcastError if streams of different partitions cannot wait for each other's events.

    PyTorch creates events in the primary context, and CUDA documents that an event and the stream that records it share a context.
    """
    streams = [driver.stream(partition=partition) for partition in partitions]
    try:
        fork(driver, streams[0], streams)
        join(driver, streams, streams[0])
        driver.synchronize()
    except RuntimeError as error:
        raise SchedcastError(
            f"the GPU's partitions cannot wait for each other's events ({first_line(error)}); update the driver, or drop --partition"
        ) from error


def _overlap(partitions: Sequence[Partition], sms: Sequence[frozenset[int]], how: str) -> str:
    """What is wrong with the SMs that each partition ran on; an empty string if nothing is."""
    owner: dict[int, int] = {}
    for partition, ids in zip(partitions, sms, strict=True):
        if len(ids) > partition.sms:
            return f"partition {partition.index} has {partition.sms} SMs and ran on {len(ids)} {how}"
        for sm in ids:
            if owner.setdefault(sm, partition.index) != partition.index:
                return f"partitions {owner[sm]} and {partition.index} both ran on SM {sm} {how}"
    return ""


def runnable_mode(driver: Driver, mode: str, count: int, others: Sequence[Driver] = ()) -> tuple[str, str]:
    """The mode in which plans over `count` partitions, or over the GPUs of `driver` and `others`, run.

    Also returns why it is not the requested `mode`: an empty string if it is.

    A partition's streams belong to a separate context, as a GPU's do, and CUDA does not document whether one capture may contain streams of
    several contexts. So this is tested once per number of partitions, or of GPUs. If the driver refuses, all plans run eagerly: with one
    graph for each the host would have to wait wherever a task of one depends on another's.
    """
    if mode != GRAPH or (count < 2 and not others):
        return mode, ""
    known = _refusals.setdefault(driver, {})
    number = -len(others) or count
    if number not in known:
        known[number] = one_graph_refusal(driver, () if others else driver.partitions(count), others)
        if known[number]:
            log.warning("%s", known[number])
    return (EAGER, known[number]) if known[number] else (GRAPH, "")


def one_graph_refusal(driver: Driver, partitions: Sequence[Partition], others: Sequence[Driver] = ()) -> str:
    """Why one CUDA graph cannot contain work of all partitions, or of the GPUs of `driver` and `others`; an empty string if it can.

    The graph must be captured, replay the work of all, and keep that of a partition on the partition's SMs.
    """
    places = [Place(driver, partition) for partition in partitions] or [Place(each) for each in (driver, *others)]
    what = f"{len(places)} {'partitions' if partitions else 'GPUs'}"
    streams = [place.stream() for place in places]
    try:
        counts = _replayed_together(driver, streams, others)
        reason = "" if counts == [2] * len(streams) else f"its replay does not run the work of all {what}"
    except RuntimeError as error:
        reason = first_line(error)
    if not reason and partitions:
        try:
            reason = _overlap(partitions, driver.sm_ids_in_one_graph(streams), "in one graph")
        except SchedcastError as error:
            log.warning("the GPU's partitions could not be checked to be disjoint in one graph: %s", error)
    if not reason:
        return ""
    return f"mode graph runs eagerly: one CUDA graph cannot contain the work of {what} ({reason})"


def _replayed_together(driver: Driver, streams: Sequence, others: Sequence[Driver]) -> list[int]:
    """Add 1 to a counter on each stream, eagerly and in one graph that is captured from the first stream. Returns the counters."""
    first = streams[0]
    driver.use(first)
    counters = [torch.zeros(1, device=stream.device) for stream in streams]

    def wait() -> None:
        for each in (driver, *others):
            each.synchronize()

    wait()

    def add() -> None:
        for stream, counter in zip(streams, counters, strict=True):
            driver.use(stream)
            counter.add_(1)
        driver.use(first)

    add()  # a capture does not load kernels
    wait()
    with driver.capture(first, others) as graph:
        fork(driver, first, streams)
        add()
        join(driver, streams, first)
    driver.use(first)
    graph.replay()
    wait()
    return [int(counter) for counter in counters]
