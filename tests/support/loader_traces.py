"""Traces of a job that waits for its data loader, for a time of its own in every step. Times are microseconds."""

from collections.abc import Sequence
from pathlib import Path

from tests.support.kineto_traces import Trace

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
