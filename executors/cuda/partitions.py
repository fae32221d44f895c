"""Checks what the GPU's partitions can do: that no SM runs kernels of two of them, and whether one CUDA graph can contain them all."""

import logging
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch

from executors.cuda.bindings import first_line
from executors.cuda.driver import Driver, Partition
from executors.cuda.issue import fork, join
from simulator.engine.simulation import EAGER, GRAPH
from traces.errors import SchedcastError

log = logging.getLogger("schedcast")

#: By driver and number of partitions, what `one_graph_refusal` found.
_refusals: WeakKeyDictionary[Driver, dict[int, str]] = WeakKeyDictionary()


def check_disjoint(driver: Driver, partitions: Sequence[Partition]) -> bool:
    """Run a probe kernel on every partition. Returns False, and logs a warning, if the kernel cannot be compiled.

    Raises SchedcastError if two partitions share an SM, or if one uses more SMs than it has.
    """
    for replayed in (False, True):
        try:
            sms = [driver.sm_ids(driver.stream(partition=partition), replayed) for partition in partitions]
        except SchedcastError as error:
            log.warning("the GPU's partitions could not be checked to be disjoint: %s", error)
            return False
        overlap = _overlap(partitions, sms, "in a graph" if replayed else "eagerly")
        if overlap:
            raise SchedcastError(f"{overlap}; leave --partition out")
    return True


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
            f"the GPU's partitions cannot wait for each other's events ({first_line(error)}); update the driver, or leave --partition out"
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


def runnable_mode(driver: Driver, mode: str, count: int) -> tuple[str, str]:
    """The mode in which plans over `count` partitions run, and why it is not the `mode` asked for (an empty string if it is).

    A partition's streams belong to a context of their own, and CUDA does not document whether one capture may contain streams of several
    contexts. So this is tried out once per number of partitions. If the driver refuses, all plans run eagerly: with one graph per partition
    the host would have to wait wherever a task of one partition depends on another's.
    """
    if mode != GRAPH or count < 2:
        return mode, ""
    known = _refusals.setdefault(driver, {})
    if count not in known:
        known[count] = one_graph_refusal(driver, driver.partitions(count))
        if known[count]:
            log.warning("%s", known[count])
    return (EAGER, known[count]) if known[count] else (GRAPH, "")


def one_graph_refusal(driver: Driver, partitions: Sequence[Partition]) -> str:
    """Why one CUDA graph cannot contain work of all partitions; an empty string if it can.

    The graph must be captured, replay every partition's work, and keep it on the partition's SMs.
    """
    streams = [driver.stream(partition=partition) for partition in partitions]
    try:
        counts = _replayed_together(driver, streams)
        reason = "" if counts == [2] * len(streams) else "its replay does not run the work of all partitions"
    except RuntimeError as error:
        reason = first_line(error)
    if not reason:
        try:
            reason = _overlap(partitions, driver.sm_ids_in_one_graph(streams), "in one graph")
        except SchedcastError as error:
            log.warning("the GPU's partitions could not be checked to be disjoint in one graph: %s", error)
    if not reason:
        return ""
    return f"mode graph runs eagerly: one CUDA graph cannot contain the work of {len(partitions)} partitions ({reason})"


def _replayed_together(driver: Driver, streams: Sequence) -> list[int]:
    """Add 1 to a counter on each stream, eagerly and in one graph that is captured from the first stream. Returns the counters."""
    first = streams[0]
    driver.use(first)
    counters = [torch.zeros(1, device=driver.device) for _ in streams]
    driver.synchronize()

    def add() -> None:
        for stream, counter in zip(streams, counters, strict=True):
            driver.use(stream)
            counter.add_(1)
        driver.use(first)

    add()  # a capture does not load kernels
    driver.synchronize()
    with driver.capture(first) as graph:
        fork(driver, first, streams)
        add()
        join(driver, streams, first)
    driver.use(first)
    graph.replay()
    driver.synchronize()
    return [int(counter) for counter in counters]
