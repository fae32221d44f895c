"""Capturing a CUDA graph, and leaving PyTorch usable when a capture fails.

When the driver refuses to end a capture (an illegal call within, a stream that was not joined), PyTorch's capture_end stops half way. What
it leaves undone differs between versions; up to 2.11 the allocator goes on serving the graph's pool, and the default generator goes on
believing that it is being captured. All of it is undone here.
"""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

#: Since then CUDAGraph.reset gives the pool of a failed capture back (pytorch/pytorch#190348); a second time would be an error.
_RESET_RELEASES = torch.__version__ >= (2, 14)
#: Failed graphs stay alive: PyTorch's allocator of pinned memory may still hold a pointer to them.
_failed: list[torch.cuda.CUDAGraph] = []


@contextmanager
def captured(device: torch.device, stream: torch.cuda.Stream) -> Iterator[torch.cuda.CUDAGraph]:
    """Capture what is issued to `stream` within. The graph keeps its memory pool; after an error it is empty and cannot be replayed."""
    torch.cuda.synchronize(device)
    gc.collect()  # as torch.cuda.graph can: dead cycles would hold memory that the pool could have, and free it during the capture
    torch.cuda.empty_cache()
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    with torch.cuda.stream(stream):
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            yield graph
            torch.cuda.set_stream(stream)  # a capture ends on the stream it began on, whichever was used last
            graph.capture_end()
        except BaseException:
            torch.cuda.set_stream(stream)
            _abandon(graph, pool, device)
            raise


def _abandon(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], device: torch.device) -> None:
    """End a failed capture, one way or the other; the error that led here is the one to report."""
    with warnings.catch_warnings(action="ignore"):  # such as: the graph is empty
        with suppress(RuntimeError):
            graph.capture_end()
        ended = _has_ended(graph)
        with suppress(RuntimeError):
            graph.reset()
        if not ended:
            _finish_ending(graph, pool, device)


def _has_ended(graph: torch.cuda.CUDAGraph) -> bool:
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


def _finish_ending(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], device: torch.device) -> None:
    """What capture_end did not come to. Each step fails, and is passed over, where it is already done."""
    _failed.append(graph)
    # Private names, used nowhere else; torch.cuda.use_mem_pool ends with the same two.
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index, pool)
    if not _RESET_RELEASES:
        with suppress(RuntimeError):
            torch._C._cuda_releasePool(device.index, pool)
    with suppress(RuntimeError), torch.cuda.stream(torch.cuda.Stream(device)):
        empty = torch.cuda.CUDAGraph()  # the generator leaves capture mode at the end of the next capture that succeeds
        empty.capture_begin(capture_error_mode="thread_local")
        empty.capture_end()
        empty.reset()
