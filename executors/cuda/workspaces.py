"""The workspaces that PyTorch keeps for cuBLAS: one per stream that has run a matrix product, 32 MiB each on Hopper.

They come from PyTorch's allocator, so they count as allocated memory, and they are kept as long as the process lives. A graph replays with
the workspaces that it was captured with. So every lane's products run eagerly before a capture (the workspace would otherwise come from the
graph's own pool, and stay there for later eager products), and nothing is freed while a graph exists.
"""

from collections.abc import Callable
from weakref import WeakSet

import torch

#: Edge of the square matrices of the product that shows how large a workspace is.
_EDGE = 64


class Workspaces:
    """The workspaces of one GPU. `new_stream` opens a stream with a queue of its own."""

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
        """What a stream's first matrix product leaves allocated, measured once. 0 as long as graphs exist that keep it from being seen."""
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
