"""Captures CUDA graphs, leaves PyTorch usable when a capture fails, and frees the workspaces that no graph uses.

If the driver refuses to end a capture (because of an illegal call, or of a stream that was not joined), PyTorch's capture_end stops half
way. The state that it leaves behind differs between versions: up to 2.11 the allocator still allocates from the graph's pool, and the
default generator is still in capture mode. This module resets both.

PyTorch keeps a workspace for cuBLAS per stream that has run a matrix product, 32 MiB each on Hopper. They come from PyTorch's allocator, so
they count as allocated memory, and they stay allocated as long as the process lives. A graph replays with the workspaces that it was
captured with. So every lane's products run eagerly before a capture (the workspace would otherwise come from the graph's own pool, and stay
there for later eager products), and nothing is freed while a graph exists.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakSet

import torch

#: Edge of the square matrices of the product that shows how large a workspace is.
_EDGE = 64


class Workspaces:
    """The workspaces of one GPU. `new_stream` opens a stream with a separate queue."""

    def __init__(self, device: torch.device, new_stream: Callable[[], torch.cuda.Stream]):
        self._device, self._new_stream = device, new_stream
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._bytes_per_stream: int | None = None

    def keep_for(self, graph: torch.cuda.CUDAGraph) -> None:
        """Free nothing as long as the graph exists."""
        self._graphs.add(graph)

    def free(self) -> int:
        """Free all workspaces of an idle GPU. Returns their bytes: 0 if a graph exists, because its replays would use freed memory."""
        if self._graphs:
            return 0
        before = torch.cuda.memory_allocated(self._device)
        torch._C._cuda_clearCublasWorkspaces()  # a private function, the same in PyTorch 2.11 and 2.13, named only here
        return max(0, before - torch.cuda.memory_allocated(self._device))

    def bytes_per_stream(self) -> int:
        """What a stream's first matrix product leaves allocated, measured once. 0 as long as graphs exist, which make it invisible."""
        if self._bytes_per_stream:
            return self._bytes_per_stream
        self.free()
        stream = self._new_stream()
        matrix = torch.ones(_EDGE, _EDGE, device=self._device)
        result = torch.empty_like(matrix)
        torch.cuda.synchronize(self._device)
        before = torch.cuda.memory_allocated(self._device)
        with torch.cuda.stream(stream):
            torch.mm(matrix, matrix, out=result)
        torch.cuda.synchronize(self._device)
        self._bytes_per_stream = max(0, torch.cuda.memory_allocated(self._device) - before)
        return self._bytes_per_stream


#: From this version on CUDAGraph.reset releases the pool of a failed capture (pytorch/pytorch#190348). Releasing it twice is an error.
_RESET_RELEASES = torch.__version__ >= (2, 14)  # type: ignore[operator]  # declared for strings only
#: Failed graphs, kept alive because PyTorch's allocator of pinned memory may still point to them.
_failed: list[torch.cuda.CUDAGraph] = []


@contextmanager
def captured(device: torch.device, stream: torch.cuda.Stream) -> Iterator[torch.cuda.CUDAGraph]:
    """Capture the work that is issued to `stream` within the context.

    The graph keeps its memory pool. After an error the graph is empty and cannot be replayed.
    """
    torch.cuda.synchronize(device)
    gc.collect()  # as torch.cuda.graph does: reference cycles would occupy memory that the pool could use, and free it during the capture
    torch.cuda.empty_cache()
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    with torch.cuda.stream(stream):
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            yield graph
            torch.cuda.set_stream(stream)  # a capture must end on the stream that it began on
            graph.capture_end()
        except BaseException:
            torch.cuda.set_stream(stream)
            _abandon(graph, pool, device)
            raise


@contextmanager
def pool_on(device: torch.device) -> Iterator[torch.cuda.MemPool]:
    """A pool of its own for what is allocated on `device` within the context. The memory returns to PyTorch when the pool is deleted.

    A capture makes such a pool only for the GPU on which it begins.
    """
    with torch.cuda.device(device):
        pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool, device):
        yield pool


def _abandon(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], device: torch.device) -> None:
    """End a failed capture. Errors on the way are ignored, because the error that made the capture fail is the one to report."""
    with warnings.catch_warnings(action="ignore"):  # such as that the graph is empty
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
    """Do the remaining steps of capture_end. A step that has already been done fails, which is ignored."""
    _failed.append(graph)
    # Private functions, named only here. torch.cuda.use_mem_pool ends with the same two calls.
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index, pool)
    if not _RESET_RELEASES:
        with suppress(RuntimeError):
            torch._C._cuda_releasePool(device.index, pool)
    with suppress(RuntimeError):
        torch.cuda.synchronize(device)  # a capture begins by writing the generator's state, here on another stream
    with suppress(RuntimeError), torch.cuda.stream(torch.cuda.Stream(device)):
        empty = torch.cuda.CUDAGraph()  # the generator leaves capture mode when the next successful capture ends
        empty.capture_begin(capture_error_mode="thread_local")
        empty.capture_end()
        empty.reset()
