"""Launches the hand-written CUDA kernels of scans, each compiled for one width and dtype when a task that uses it is compiled.

`scan_level.cu` runs a whole level in one launch, `jacobian_values.cu` computes the Jacobians of all steps of a recurrent layer in one.
They are used on CUDA for float32 and float64 up to `simulator.plan.bodies.scan.FUSED_WIDTH` units. Otherwise PyTorch's batched
products compute the same results; tests compare the two.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch
from torch import Tensor

from executors.binding import Binding
from executors.kernels import nvrtc
from simulator.plan.bodies.scan import FUSED_WIDTH, RnnSteps, Rule
from simulator.plan.task import Task
from traces.errors import SchedcastError

#: CUDA C++ types by dtype.
C_TYPES = {"float32": "float", "float64": "double"}
_log = logging.getLogger("schedcast")


def source(file: str, defines: Mapping[str, int | str]) -> str:
    """The text of a kernel file, preceded by its constants."""
    constants = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return constants + (Path(__file__).parent / file).read_text()


def cuda_type(task: Task, binding: Binding) -> str | None:
    """The CUDA C++ type of a task's hand-written kernel; None if the task must run with PyTorch's ops."""
    width = task.writes[0].shape[-1]
    dtypes = {operand.dtype for operand in (*task.inputs, *task.writes)}
    usable = binding.forms.cuda and binding.device(task.device).type == "cuda" and width <= FUSED_WIDTH and len(dtypes) == 1
    return C_TYPES.get(dtypes.pop()) if usable else None


def kernel(text: str, name: str) -> nvrtc.Kernel | None:
    """The compiled kernel for the current GPU. Logs a warning and returns None if it cannot be compiled; then PyTorch's ops run instead."""
    return _compiled(text, name, torch.cuda.current_device() if torch.cuda.is_available() else -1)


@cache
def _compiled(text: str, name: str, device: int) -> nvrtc.Kernel | None:
    """Compiles once per GPU, because a CUDA module belongs to the context that it is loaded in."""
    try:
        compiled = nvrtc.compiled(text, name)
    except SchedcastError as error:
        _log.warning("scans run as PyTorch's batched products, with several kernels instead of one: %s", error)
        return None
    _log.debug("compiled %s", name)
    return compiled


STEP_THREADS, STEP_MATRICES = 128, 8


def jacobian_source(width: int, c_type: str) -> str:
    return source("jacobian_values.cu", {"REAL": c_type, "H": width, "THREADS": STEP_THREADS, "MATRICES": STEP_MATRICES})


def fused_steps(rule: Rule, places: Sequence[int], c_type: str, width: int, device: torch.device) -> Callable[..., Tensor] | None:
    """A function from the task's reads to the Jacobians [m, B, H, H], like the batched functions of `executors.kernels.jacobians`.

    `places`: the step of each Jacobian. Returns None if the kernel cannot be compiled.
    """
    launch = kernel(jacobian_source(width, c_type), f"schedcast_{rule.of}_jacobians")
    if launch is None:
        return None
    table = torch.tensor(places, dtype=torch.int32, device=device)
    flags = [int(rule.nonlinearity == "relu")] if isinstance(rule, RnnSteps) else []

    def run(*reads: Tensor) -> Tensor:
        first, samples = reads[0], reads[0].shape[1]
        jacobians = first.new_empty(len(places), samples, width, width)
        count = len(places) * samples
        grid = (-(-count // STEP_MATRICES), -(-width * width // STEP_THREADS), 1)
        launch(grid, (STEP_THREADS, 1, 1), [*(tensor.contiguous() for tensor in reads), table, jacobians, count, samples, *flags])
        return jacobians

    return run


#: Results per thread of a matrix product; ROWS in the source.
_ROWS = 4
_PRODUCT_THREADS, _THREADS, _COPIES = 256, 128, 4
#: Matrix elements in the shared memory of a block of matrix-vector products.
_BLOCK_ELEMENTS = 2048
#: Bytes of the tiles that one stage of a linear level loads, and the largest number of these tiles.
_STAGE_BYTES, _MOST_AHEAD = 16384, 8


@dataclass(frozen=True)
class Shape:
    """How the work on matrices of `width` units is divided among blocks. Names are as in the source. `c_type`: float or double."""

    width: int
    c_type: str

    @property
    def tile(self) -> int:
        """Edge of a tile, the square block of a matrix that a thread block loads at a time."""
        return min(self.width, 32)

    @property
    def tiles(self) -> int:
        """Tiles along an edge of a matrix."""
        return -(-self.width // self.tile)

    @property
    def pairs(self) -> int:
        return max(1, _PRODUCT_THREADS // self._threads_per_product)

    @property
    def up_threads(self) -> int:
        """Threads of a block of matrix products."""
        return self.pairs * self._threads_per_product

    @property
    def _threads_per_product(self) -> int:
        return -(-self.tile // _ROWS) * self.tile

    @property
    def vectors(self) -> int:
        return max(1, min(_THREADS // self.tile, _BLOCK_ELEMENTS // self.tile**2))

    @property
    def ahead(self) -> int:
        """Tiles that a linear level loads ahead."""
        tile_bytes = self.tile * (self.tile | 1) * (8 if self.c_type == "double" else 4)
        return max(1, min(_MOST_AHEAD, _STAGE_BYTES // tile_bytes))

    def defines(self) -> dict[str, int | str]:
        return {
            "REAL": self.c_type, "H": self.width, "TILE": self.tile, "PAIRS": self.pairs, "VECTORS": self.vectors,
            "UP_THREADS": self.up_threads, "THREADS": _THREADS, "COPIES": _COPIES, "AHEAD": self.ahead,
        }  # fmt: skip

    @cached_property
    def text(self) -> str:
        return source("scan_level.cu", self.defines())

    def product_blocks(self, count: int) -> int:
        return -(-count // self.pairs) * self.tiles**2

    def vector_blocks(self, count: int) -> int:
        return -(-count // self.vectors) * self.tiles

    def copy_blocks(self, vectors: int) -> int:
        return -(-vectors * self.width // (_THREADS * _COPIES))


def up(shape: Shape, elements: int, leftmost: bool) -> Callable[[Tensor, Tensor | None], tuple[Tensor | None, Tensor | None]] | None:
    """A function with the results of `executors.kernels.scan_level.up`, in one launch; None if the kernel cannot be compiled."""
    launch = kernel(shape.text, "schedcast_scan_up")
    if launch is None:
        return None
    pairs = elements // 2
    product_count = pairs - leftmost

    def run(jacobians: Tensor, gradient: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        samples = jacobians.shape[1]
        products = jacobians.new_empty(product_count, *jacobians.shape[1:]) if product_count else None
        first = None if gradient is None else torch.empty_like(gradient, memory_format=torch.contiguous_format)
        jacobians = jacobians.contiguous()
        blocks = shape.product_blocks(product_count * samples) + (shape.vector_blocks(samples) if leftmost else 0)
        vector = jacobians if gradient is None else gradient.contiguous()  # not read without a gradient
        results = (first if products is None else products, products if first is None else first)
        args = [jacobians, vector, *results, product_count * samples, (elements - pairs) * samples, samples]
        launch((blocks, 1, 1), (shape.up_threads, 1, 1), args)
        return products, first

    return run


def down(shape: Shape, elements: int) -> Callable[[Tensor | None, Tensor, Tensor | None], Tensor] | None:
    """A function with the results of `executors.kernels.scan_level.down`, in one launch; None if the kernel cannot be compiled."""
    launch = kernel(shape.text, "schedcast_scan_down")
    if launch is None:
        return None
    paired = elements % 2 == 0

    def run(jacobians: Tensor | None, above: Tensor, gradient: Tensor | None) -> Tensor:
        samples, leftmost, products = above.shape[1], int(gradient is not None), 0 if jacobians is None else len(jacobians)
        prefixes = above.new_empty(len(above) + leftmost + products, *above.shape[1:])
        above = above.contiguous()
        matrices = above if jacobians is None else jacobians.contiguous()
        vector = above if gradient is None else gradient.contiguous()
        count, moved, first, last = (n * samples for n in (products, len(above) - paired, leftmost, int(paired)))
        blocks = shape.vector_blocks(count) + shape.copy_blocks(moved + first + last)
        launch((blocks, 1, 1), (_THREADS, 1, 1), [matrices, above, vector, prefixes, count, moved, first, last])
        return prefixes

    return run


def linear(
    shape: Shape, sequence: list[int], places: list[int], device: torch.device
) -> Callable[[Tensor, Tensor], Tensor] | None:  # fmt: skip
    """A function with the results of `executors.kernels.scan_level.linear`, in one launch with a block per sample.

    `sequence`: the position of each successive element's Jacobian in its batch. `places`: the position of each successive prefix in the
    result. Returns None if the kernel cannot be compiled.
    """
    launch = kernel(shape.text, "schedcast_scan_linear")
    if launch is None:
        return None
    table = torch.tensor([*sequence, *places], dtype=torch.int32, device=device)

    def run(jacobians: Tensor, gradient: Tensor) -> Tensor:
        prefixes = gradient.new_empty(len(places), *gradient.shape)
        args = [jacobians.contiguous(), gradient.contiguous(), table, prefixes, len(sequence), len(gradient)]
        launch((len(gradient), 1, 1), (_THREADS, 1, 1), args)
        return prefixes

    return run
