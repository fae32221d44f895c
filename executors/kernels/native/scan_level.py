"""Launches of `scan_level.cu`: a whole level of a scan as one kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from executors.kernels.native.compile import kernel, source

#: Results per thread of a product, as ROWS in the source.
_ROWS = 4
_PRODUCT_THREADS, _THREADS, _COPIES = 256, 128, 4
#: Numbers of matrices that a block of matrix-vector products holds; of the tiles of one stage of a linear level, bytes.
_HELD, _STAGE_BYTES, _MOST_AHEAD = 2048, 16384, 8


@dataclass(frozen=True)
class Shape:
    """How blocks share the work on matrices of `width` units; names as in the source."""

    width: int
    real: str

    @property
    def tile(self) -> int:
        """Edge of the part of a matrix that a block holds."""
        return min(self.width, 32)

    @property
    def tiles(self) -> int:
        """Along an edge."""
        return -(-self.width // self.tile)

    @property
    def pairs(self) -> int:
        """Products per block."""
        return max(1, _PRODUCT_THREADS // self._threads_per_product)

    @property
    def up_threads(self) -> int:
        """Of a block of products."""
        return self.pairs * self._threads_per_product

    @property
    def _threads_per_product(self) -> int:
        return -(-self.tile // _ROWS) * self.tile

    @property
    def vectors(self) -> int:
        """Matrix-vector products per block."""
        return max(1, min(_THREADS // self.tile, _HELD // self.tile**2))

    @property
    def ahead(self) -> int:
        """Tiles that a linear level reads ahead."""
        of_tile = self.tile * (self.tile | 1) * (8 if self.real == "double" else 4)
        return max(1, min(_MOST_AHEAD, _STAGE_BYTES // of_tile))

    def defines(self) -> dict[str, int | str]:
        """The source's constants."""
        return {
            "REAL": self.real, "H": self.width, "TILE": self.tile, "PAIRS": self.pairs, "VECTORS": self.vectors,
            "UP_THREADS": self.up_threads, "THREADS": _THREADS, "COPIES": _COPIES, "AHEAD": self.ahead,
        }  # fmt: skip

    @cached_property
    def text(self) -> str:
        """The source for this shape."""
        return source("scan_level.cu", self.defines())

    def product_blocks(self, count: int) -> int:
        """Blocks for so many products of matrices."""
        return -(-count // self.pairs) * self.tiles**2

    def vector_blocks(self, count: int) -> int:
        """Blocks for so many products with vectors."""
        return -(-count // self.vectors) * self.tiles

    def copy_blocks(self, vectors: int) -> int:
        """Blocks that copy so many vectors."""
        return -(-vectors * self.width // (_THREADS * _COPIES))


def up(shape: Shape, elements: int, leftmost: bool) -> Callable[[Tensor, Tensor | None], tuple[Tensor | None, Tensor | None]] | None:
    """What `scan_level.up` of the batched products gives of (jacobians, gradient), in one launch."""
    launch = kernel(shape.text, "stepcast_scan_up")
    pairs = elements // 2
    made = pairs - leftmost

    def run(jacobians: Tensor, gradient: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        samples = jacobians.shape[1]
        products = jacobians.new_empty(made, *jacobians.shape[1:]) if made else None
        first = None if gradient is None else torch.empty_like(gradient, memory_format=torch.contiguous_format)
        jacobians = jacobians.contiguous()
        blocks = shape.product_blocks(made * samples) + (shape.vector_blocks(samples) if leftmost else 0)
        vector = jacobians if gradient is None else gradient.contiguous()  # not looked at where there is none
        results = (first if products is None else products, products if first is None else first)
        args = [jacobians, vector, *results, made * samples, (elements - pairs) * samples, samples]
        launch((blocks, 1, 1), (shape.up_threads, 1, 1), args)
        return products, first

    return run if launch is not None else None


def down(shape: Shape, elements: int) -> Callable[[Tensor | None, Tensor, Tensor | None], Tensor] | None:
    """What `scan_level.down` of the batched products gives of (jacobians, above, gradient), in one launch."""
    launch = kernel(shape.text, "stepcast_scan_down")
    paired = elements % 2 == 0

    def run(jacobians: Tensor | None, above: Tensor, gradient: Tensor | None) -> Tensor:
        samples, leftmost, made = above.shape[1], int(gradient is not None), 0 if jacobians is None else len(jacobians)
        prefixes = above.new_empty(len(above) + leftmost + made, *above.shape[1:])
        above = above.contiguous()
        matrices = above if jacobians is None else jacobians.contiguous()
        vector = above if gradient is None else gradient.contiguous()
        count, moved, first, last = (n * samples for n in (made, len(above) - paired, leftmost, int(paired)))
        blocks = shape.vector_blocks(count) + shape.copy_blocks(moved + first + last)
        launch((blocks, 1, 1), (_THREADS, 1, 1), [matrices, above, vector, prefixes, count, moved, first, last])
        return prefixes

    return run if launch is not None else None


def linear(
    shape: Shape, sequence: list[int], places: list[int], device: torch.device
) -> Callable[[Tensor, Tensor], Tensor] | None:  # fmt: skip
    """What `scan_level.linear` of the batched products gives of (jacobians, gradient), in one launch of a block per sample.

    `sequence`, `places`: where each successive element's Jacobian lies, and where each successive prefix goes.
    """
    launch = kernel(shape.text, "stepcast_scan_linear")
    table = torch.tensor([*sequence, *places], dtype=torch.int32, device=device)

    def run(jacobians: Tensor, gradient: Tensor) -> Tensor:
        prefixes = gradient.new_empty(len(places), *gradient.shape)
        args = [jacobians.contiguous(), gradient.contiguous(), table, prefixes, len(sequence), len(gradient)]
        launch((len(gradient), 1, 1), (_THREADS, 1, 1), args)
        return prefixes

    return run if launch is not None else None
