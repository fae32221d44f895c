"""Traces of a job that waits for its data loader, for a time of its own in every step. Times are microseconds."""

from collections.abc import Sequence
from pathlib import Path

from simulator.replay.whatif.loader import WorkerCosts
from tests.support.kineto_traces import Trace

#: What worker processes cost, fitted on one pair of the shared traces each (`simulator.replay.whatif.loader`): the hand-over of a batch,
#: per byte to unmap and to touch it, and the share by which the host is slower.
OF_PAIR = {"b": WorkerCosts(1.1e-3, 0.119e-9, 0.061e-9, 0.021), "c": WorkerCosts(0.94e-3, 0.109e-9, 0.067e-9, 0.046)}
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def write_loader_trace(path: Path, loading: Sequence[float]) -> Path:
    """Write a step for each time of loading: the loader, then 20 in which a kernel of 100 is launched, which starts after 10 of them."""
    trace, at = Trace(), 0.0
    trace.kernel("start", at, at + 10, 100)
    at += 20
    for number, length in enumerate(loading):
        begin = at
        trace.op(LOADER, at, length, cat="user_annotation")
        trace.op("aten::stack", at + 1, 0.3 * length)
        at += length
        trace.op("aten::cudnn_convolution", at, 10)
        trace.kernel("volta_sgemm_64x64_nt", at, at + 10, 100)
        at += 20
        trace.annotate(f"ProfilerStep#{number}", begin, at - begin)
    return trace.save(path)
