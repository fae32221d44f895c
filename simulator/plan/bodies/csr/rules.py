"""The transposed Jacobians with a static pattern: those of pooling ops, and those of convolutions and linear layers.

The entries of the former are constants or mark maxima, those of the latter are weights. Those of element-wise ops are in `sparse_rule`.
"""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from simulator.plan.bodies.csr.mask import Mask
from simulator.plan.bodies.csr.sparse_rule import ElementwiseRule, SparseRule, WindowRule, check_geometry, store
from simulator.plan.task import Task

if TYPE_CHECKING:
    import numpy as np

    from simulator.plan.bodies.csr.patterns import Pattern


class _Pooling(WindowRule):
    """Pooling of [channels, height, width] to [channels, *out], each channel separately."""

    __slots__ = ()

    @property
    def cols(self) -> int:
        """Elements of an output sample."""
        return self.channels * prod(self.out)

    @property
    def nnz(self) -> int:
        """Pairs of an output element and an input element in its window."""
        height, width = self.axes()
        return self.channels * height.nnz * width.nnz

    @property
    def key(self) -> str:
        """Geometry."""
        windows = "/".join(",".join(map(str, pair)) for pair in (self.out, *_window(self)))
        return f"{self.of}.{self.channels}x{self.height}x{self.width}>{windows}"

    def pattern(self) -> "Pattern":
        """Every place of every window, whatever its value."""
        from simulator.plan.bodies.csr import patterns

        return store.get(self, lambda: patterns.pooling(self.channels, *self.axes(), getattr(self, "kernel", (1, 1))))

    def check(self, *extents: int) -> None:
        """Raise ValueError for an extent below 1, here or among `extents`, and for a Jacobian with too many entries for int32 indices."""
        check_geometry(self.of, (self.channels, self.height, self.width, *self.out, *extents), (0,))
        covered = prod(self.kernel) if hasattr(self, "kernel") else self.height * self.width
        check_geometry(self.of, (1,), (self.rows, self.cols, self.cols * covered))


@dataclass(frozen=True, slots=True)
class MaxPoolRule(_Pooling):
    """Max-pooling of [channels, height, width] to [channels, *out].

    Reads [B, channels, *out]: for each output element, the flat position of its maximum in its channel, as PyTorch's op returns it. Values
    [nnz, B]: 1 at the maximum, and 0 in the rest of the window.
    """

    channels: int
    height: int
    width: int
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    of: Literal["max-pool"] = "max-pool"

    launches: ClassVar[int] = 3
    calls: ClassVar[int] = 3
    shared: ClassVar[bool] = False

    def __post_init__(self):
        """Raise ValueError for an impossible geometry."""
        self.check(*self.kernel, *self.stride, *self.dilation)

    def flops(self, task: Task) -> float:
        """One comparison per entry."""
        self.check_operands(task, self.cols)
        return float(task.writes[0].elements)


@dataclass(frozen=True, slots=True)
class AveragePoolRule(_Pooling):
    """Average-pooling of [channels, height, width] to [channels, *out]. Reads nothing. Values [nnz, 1]: constants.

    A window's sum is divided by its number of elements, which includes padding if `count_padding`, or by `divisor` if there is one.
    """

    channels: int
    height: int
    width: int
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    count_padding: bool = True
    divisor: int | None = None
    of: Literal["average-pool"] = "average-pool"

    shared: ClassVar[bool] = True

    def __post_init__(self):
        """Raise ValueError for an impossible geometry."""
        self.check(*self.kernel, *self.stride)
        if self.divisor == 0:
            raise ValueError("an average-pool has divisor 0; expected another number, or none")

    def flops(self, task: Task) -> float:
        """0: constants are copied."""
        self.check_operands(task)
        return 0.0

    def values(self) -> "np.ndarray":
        """The constants [nnz], float64."""
        import numpy as np

        sizes = []
        for extent, out, kernel, stride, padding in zip(
            (self.height, self.width), self.out, self.kernel, self.stride, self.padding, strict=True
        ):
            begin = np.arange(out) * stride - padding
            end = np.minimum(begin + kernel, extent + padding)
            sizes.append(end - begin if self.count_padding else np.minimum(end, extent) - np.maximum(begin, 0))
        areas = np.outer(*sizes).reshape(-1) if self.divisor is None else np.full(prod(self.out), self.divisor)
        return 1.0 / areas[self.pattern().indices % prod(self.out)]


@dataclass(frozen=True, slots=True)
class AdaptiveAveragePoolRule(_Pooling):
    """Average-pooling of [channels, height, width] to [channels, *out] in bins of nearly equal size. Reads nothing. Values [nnz, 1]."""

    channels: int
    height: int
    width: int
    out: tuple[int, int]
    of: Literal["adaptive-average-pool"] = "adaptive-average-pool"

    shared: ClassVar[bool] = True

    def __post_init__(self):
        """Raise ValueError for an impossible geometry."""
        self.check()

    def axes(self) -> tuple["Pattern", "Pattern"]:
        """The patterns of the vertical and the horizontal axis: which places each bin covers."""
        from simulator.plan.bodies.csr import patterns

        vertical, horizontal = self.out
        return patterns.adaptive_axis(self.height, vertical), patterns.adaptive_axis(self.width, horizontal)

    def flops(self, task: Task) -> float:
        """0: constants are copied."""
        self.check_operands(task)
        return 0.0

    def values(self) -> "np.ndarray":
        """The constants [nnz], float64."""
        import numpy as np

        height, width = (np.bincount(axis.indices) for axis in self.axes())
        return 1.0 / np.outer(height, width).reshape(-1)[self.pattern().indices % prod(self.out)]


def _window(rule: _Pooling) -> tuple[tuple[int, ...], ...]:
    """The parts of a pooling's key after its extents."""
    if isinstance(rule, MaxPoolRule):
        return rule.kernel, rule.stride, rule.padding, rule.dilation
    if isinstance(rule, AveragePoolRule):
        return rule.kernel, rule.stride, rule.padding, (int(rule.count_padding), rule.divisor or 0)
    return ()


@dataclass(frozen=True, slots=True)
class ConvolutionRule(WindowRule):
    """A convolution of [channels, height, width] to [out_channels, *out]; pairs are (vertical, horizontal).

    Reads the weight [out_channels, channels / groups, *kernel]. Values [nnz, 1]: its elements, each repeated for every place where it is
    used.
    """

    channels: int
    height: int
    width: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    mask: Mask | None = None
    of: Literal["convolution"] = "convolution"

    shared: ClassVar[bool] = True

    def __post_init__(self):
        """Raise ValueError for an impossible geometry, and for a Jacobian with too many entries for int32 indices."""
        windows = (*self.kernel, *self.stride, *self.dilation)
        check_geometry("convolution", (self.channels, self.height, self.width, self.out_channels, self.groups, *windows), (0,))
        if self.channels % self.groups or self.out_channels % self.groups:
            raise ValueError(f"{self.channels} and {self.out_channels} channels cannot be split into {self.groups} groups")
        if min(self.padding) < 0 or min(self.out) < 1:
            raise ValueError(f"a kernel {self.kernel} padded by {self.padding} does not fit into {self.height}x{self.width}")
        weight = self.out_channels * self.channels // self.groups * prod(self.kernel)
        # Every output element depends on at most one whole window. This bound needs no loop over the places.
        check_geometry("convolution", self.out, (self.rows, self.cols, weight, weight * prod(self.out)))

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the output."""
        pairs = zip((self.height, self.width), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        height, width = ((extent + 2 * p - d * (k - 1) - 1) // s + 1 for extent, k, s, p, d in pairs)
        return height, width

    @property
    def cols(self) -> int:
        """Elements of an output sample."""
        return self.out_channels * prod(self.out)

    @property
    def nnz(self) -> int:
        """Pairs of an input element and an output element, each counted once per unmasked weight between them."""
        if self.mask is not None:
            return self.pattern().nnz
        height, width = self.axes()
        return self.out_channels * self.channels // self.groups * height.nnz * width.nnz

    @property
    def key(self) -> str:
        """Geometry and mask."""
        windows = "/".join(",".join(map(str, pair)) for pair in (self.kernel, self.stride, self.padding, self.dilation))
        mask = "" if self.mask is None else f".{self.mask.key}"
        return f"conv.{self.channels}x{self.height}x{self.width}>{self.out_channels}.{windows}/g{self.groups}{mask}"

    def flops(self, task: Task) -> float:
        """0: weights are copied."""
        self.check_operands(task, self.out_channels * self.channels // self.groups * prod(self.kernel))
        return 0.0

    def pattern(self) -> "Pattern":
        """The entries of unmasked weights; `source` is an entry's flat position in the weight."""
        from simulator.plan.bodies.csr import patterns

        geometry, mask = (self.channels, self.out_channels, self.groups, *self.axes(), self.kernel), self.mask
        if mask is None:
            return store.get(self, lambda: patterns.convolution(*geometry))
        return store.get(self, lambda: patterns.masked_convolution(*geometry, mask))


@dataclass(frozen=True, slots=True)
class LinearRule(SparseRule):
    """y = W x + b with W [cols, rows]. Reads W. Values [nnz, 1] with a mask; without one, the full matrix W^T [rows, cols]."""

    rows: int
    cols: int
    mask: Mask | None = None
    of: Literal["linear"] = "linear"

    shared: ClassVar[bool] = True

    def __post_init__(self):
        """Raise ValueError for a weight that is empty or too large."""
        check_geometry("linear layer", (self.rows, self.cols), (self.rows * self.cols,))

    @property
    def nnz(self) -> int:
        """Unmasked weights."""
        elements = self.rows * self.cols
        return elements if self.mask is None else round(self.mask.keep * elements)

    @property
    def key(self) -> str:
        """Geometry and mask."""
        return f"linear.{self.rows}>{self.cols}{'' if self.mask is None else f'.{self.mask.key}'}"

    def flops(self, task: Task) -> float:
        """0: weights are copied."""
        self.check_operands(task, self.rows * self.cols)
        return 0.0

    def pattern(self) -> "Pattern":
        """The unmasked weights; `source` is an entry's flat position in W."""
        from simulator.plan.bodies.csr import patterns

        if (mask := self.mask) is None:
            return store.get(self, lambda: patterns.blocks(1, self.rows, self.cols))
        return store.get(self, lambda: patterns.linear(self.rows, self.cols, mask))


Rule = ConvolutionRule | ElementwiseRule | MaxPoolRule | AveragePoolRule | AdaptiveAveragePoolRule | LinearRule
