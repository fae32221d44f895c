"""Ops whose transposed Jacobian [elements in, elements out] of one sample has a static pattern, as plain data.

Each rule has `rows`, `cols`, `nnz`, `pattern()` (kept in a bounded store), `shared` (all samples have the same values), and what every rule
of `jacobian_rules` has. Elements of a sample are numbered as in a contiguous tensor: channel, then row, then column.
"Reads" and "values" say what a `JacobianValues` task of the rule gets and writes.
"""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from .mask import Mask
from .store import store

if TYPE_CHECKING:
    import numpy as np

    from ...plan import Task
    from .pattern import Pattern

#: Indices are int32.
MOST_ENTRIES = 2**31 - 1
#: Element-wise backward ops: (gradient, what `ElementwiseRule.args` says) to the gradient times a factor per element.
ELEMENTWISE = frozenset(
    f"aten.{name}.default"
    for name in (
        "threshold_backward", "tanh_backward", "sigmoid_backward", "hardtanh_backward", "leaky_relu_backward", "gelu_backward",
        "silu_backward", "mish_backward", "hardswish_backward", "hardsigmoid_backward", "elu_backward", "softplus_backward",
        "log_sigmoid_backward", "hardshrink_backward", "softshrink_backward", "native_dropout_backward",
    )
)  # fmt: skip


def _fits(rule: "Rule", task: "Task", *elements: int) -> None:
    """Raise ValueError unless the task writes the rule's values, and reads operands of so many elements per sample (0: any)."""
    (write,) = task.writes
    full = isinstance(rule, LinearRule) and rule.mask is None
    expected = (rule.rows, rule.cols) if full else (rule.nnz, 1 if rule.shared else write.shape[-1])
    if write.shape != expected:
        raise ValueError(f"the values of {rule.key} are {expected}, but {write.value} is {write.shape}")
    samples = 1 if rule.shared else expected[1]
    if len(task.reads) < len(elements) or any(o.elements != n * samples for o, n in zip(task.reads, elements, strict=False)):
        raise ValueError(f"{rule.key} reads {elements} elements per sample of {samples}, not {[o.shape for o in task.reads]}")


def _check(rule: str, positive: tuple[int, ...], entries: tuple[int, ...]) -> None:
    if min(positive) < 1:
        raise ValueError(f"a {rule} has an extent of {min(positive)}; expected at least 1")
    if max(entries) > MOST_ENTRIES:
        raise ValueError(f"the transposed Jacobian of a {rule} has up to {max(entries)} entries; expected at most {MOST_ENTRIES}")


@dataclass(frozen=True, slots=True)
class ConvolutionRule:
    """A convolution of [channels, height, width] to `out_channels`; pairs are (vertical, horizontal).

    Reads: the weight [out_channels, channels / groups, *kernel]. Values [nnz, 1]: its elements, each as often as it is applied.
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

    launches: ClassVar[int] = 1
    shared: ClassVar[bool] = True

    def __post_init__(self):
        """Raise ValueError for a geometry that no convolution has, and for a Jacobian that int32 cannot index."""
        windows = (*self.kernel, *self.stride, *self.dilation)
        _check("convolution", (self.channels, self.height, self.width, self.out_channels, self.groups, *windows), (0,))
        if self.channels % self.groups or self.out_channels % self.groups:
            raise ValueError(f"{self.channels} and {self.out_channels} channels cannot be cut into {self.groups} groups")
        if min(self.padding) < 0 or min(self.out) < 1:
            raise ValueError(f"a kernel {self.kernel} padded by {self.padding} does not fit into {self.height}x{self.width}")
        weight = self.out_channels * self.channels // self.groups * prod(self.kernel)
        # Every output element is reached from at most a whole window: a bound that needs no loop over places.
        _check("convolution", self.out, (self.rows, self.cols, weight, weight * prod(self.out)))

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the output."""
        axes = zip((self.height, self.width), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((extent + 2 * p - d * (k - 1) - 1) // s + 1 for extent, k, s, p, d in axes)

    @property
    def rows(self) -> int:
        """Elements of an input sample."""
        return self.channels * self.height * self.width

    @property
    def cols(self) -> int:
        """Elements of an output sample."""
        return self.out_channels * prod(self.out)

    @property
    def nnz(self) -> int:
        """Pairs of an input and an output element that share a kept weight."""
        if self.mask is not None:
            return self.pattern().nnz
        height, width = _axes(self)
        return self.out_channels * self.channels // self.groups * height.nnz * width.nnz

    @property
    def key(self) -> str:
        """Geometry and mask."""
        windows = "/".join(",".join(map(str, pair)) for pair in (self.kernel, self.stride, self.padding, self.dilation))
        mask = "" if self.mask is None else f".{self.mask.key}"
        return f"conv.{self.channels}x{self.height}x{self.width}>{self.out_channels}.{windows}/g{self.groups}{mask}"

    def flops(self, task: "Task") -> float:
        """None: weights are put in place."""
        _fits(self, task, self.out_channels * self.channels // self.groups * prod(self.kernel))
        return 0.0

    def pattern(self) -> "Pattern":
        """The entries that some weights make different from zero; `source` is the flat position in the weight."""
        from . import windows

        geometry = (self.channels, self.out_channels, self.groups, *_axes(self), self.kernel)
        if self.mask is None:
            return store.get(self, lambda: windows.convolution(*geometry))
        return store.get(self, lambda: windows.masked_convolution(*geometry, self.mask))


@dataclass(frozen=True, slots=True)
class ElementwiseRule:
    """An op whose output element i depends on input element i alone: a diagonal, and what its backward op makes of ones.

    `target` is the backward op; `args` and `kwargs` are the JSON texts of its arguments after the gradient, in which `{"$": i}` stands for
    operand i of what is read: what the forward op saved, [B, ...]. Values [elements, B].
    """

    elements: int
    target: str
    args: str = "[]"
    kwargs: str = "{}"
    of: Literal["elementwise"] = "elementwise"

    launches: ClassVar[int] = 2
    shared: ClassVar[bool] = False

    def __post_init__(self):
        """Raise ValueError for an op that is not element-wise."""
        _check("element-wise op", (self.elements,), (self.elements,))
        if self.target not in ELEMENTWISE:
            raise ValueError(f"{self.target!r} is no element-wise backward op; expected one of {', '.join(sorted(ELEMENTWISE))}")

    @property
    def rows(self) -> int:
        """Elements of a sample."""
        return self.elements

    @property
    def cols(self) -> int:
        """Elements of a sample."""
        return self.elements

    @property
    def nnz(self) -> int:
        """The diagonal."""
        return self.elements

    @property
    def key(self) -> str:
        """Op, size and arguments."""
        return f"{self.target}.{self.elements}{self.args}{'' if self.kwargs == '{}' else self.kwargs}"

    def flops(self, task: "Task") -> float:
        """One per entry."""
        _fits(self, task, *[self.elements] * len(task.reads))
        return float(task.writes[0].elements)

    def pattern(self) -> "Pattern":
        """The diagonal."""
        from .pattern import identity

        return store.get(self.elements, lambda: identity(self.elements))


class _Pooling:
    """What windows over every channel by itself have in common."""

    __slots__ = ()

    launches: ClassVar[int] = 1

    @property
    def rows(self) -> int:
        """Elements of an input sample."""
        return self.channels * self.height * self.width

    @property
    def cols(self) -> int:
        """Elements of an output sample."""
        return self.channels * prod(self.out)

    @property
    def nnz(self) -> int:
        """Pairs of an output element and an input element in its window."""
        height, width = _axes(self)
        return self.channels * height.nnz * width.nnz

    @property
    def key(self) -> str:
        """Geometry."""
        windows = "/".join(",".join(map(str, pair)) for pair in (self.out, *_window(self)))
        return f"{self.of}.{self.channels}x{self.height}x{self.width}>{windows}"

    def pattern(self) -> "Pattern":
        """Every window's places, whatever they hold."""
        from . import windows

        return store.get(self, lambda: windows.pooling(self.channels, *_axes(self), getattr(self, "kernel", (1, 1))))

    def _check(self, *more: int) -> None:
        _check(self.of, (self.channels, self.height, self.width, *self.out, *more), (0,))
        covered = prod(self.kernel) if hasattr(self, "kernel") else self.height * self.width
        _check(self.of, (1,), (self.rows, self.cols, self.cols * covered))


@dataclass(frozen=True, slots=True)
class MaxPoolRule(_Pooling):
    """Max-pooling of [channels, height, width] to [channels, *out].

    Reads: the flat position in its plane of each output element's maximum [B, channels, *out], as PyTorch's op gives it. Values [nnz, B]: 1
    there, and 0 in the rest of the window.
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
    shared: ClassVar[bool] = False

    def __post_init__(self):
        """Raise ValueError for a geometry that cannot be."""
        self._check(*self.kernel, *self.stride, *self.dilation)

    def flops(self, task: "Task") -> float:
        """One comparison per entry."""
        _fits(self, task, self.cols)
        return float(task.writes[0].elements)


@dataclass(frozen=True, slots=True)
class AveragePoolRule(_Pooling):
    """Average-pooling of [channels, height, width] to [channels, *out]. Reads nothing. Values [nnz, 1]: constants.

    `count_padding`: padding counts among the elements that a window divides by. `divisor`: divide by this instead.
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
        """Raise ValueError for a geometry that cannot be."""
        self._check(*self.kernel, *self.stride)
        if self.divisor == 0:
            raise ValueError("an average-pool divides by 0; expected another divisor")

    def flops(self, task: "Task") -> float:
        """None: constants are copied."""
        _fits(self, task)
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
    """Average-pooling of [channels, height, width] to [channels, *out] in bins of equal size or nearly so; else as `AveragePoolRule`."""

    channels: int
    height: int
    width: int
    out: tuple[int, int]
    of: Literal["adaptive-average-pool"] = "adaptive-average-pool"

    shared: ClassVar[bool] = True

    def __post_init__(self):
        """Raise ValueError for a geometry that cannot be."""
        self._check()

    def flops(self, task: "Task") -> float:
        """None: constants are copied."""
        _fits(self, task)
        return 0.0

    def values(self) -> "np.ndarray":
        """The constants [nnz], float64."""
        import numpy as np

        height, width = (np.bincount(axis.indices) for axis in _axes(self))
        return 1.0 / np.outer(height, width).reshape(-1)[self.pattern().indices % prod(self.out)]


@dataclass(frozen=True, slots=True)
class LinearRule:
    """y = W x + b with W [cols, rows]. Reads: W. Values [nnz, 1], or where nothing is pruned the full matrix W^T [rows, cols]."""

    rows: int
    cols: int
    mask: Mask | None = None
    of: Literal["linear"] = "linear"

    launches: ClassVar[int] = 1
    shared: ClassVar[bool] = True

    def __post_init__(self):
        """Raise ValueError for an empty or a too large weight."""
        _check("linear layer", (self.rows, self.cols), (self.rows * self.cols,))

    @property
    def nnz(self) -> int:
        """Kept weights."""
        elements = self.rows * self.cols
        return elements if self.mask is None else round(self.mask.keep * elements)

    @property
    def key(self) -> str:
        """Geometry and mask."""
        return f"linear.{self.rows}>{self.cols}{'' if self.mask is None else f'.{self.mask.key}'}"

    def flops(self, task: "Task") -> float:
        """None: weights are put in place."""
        _fits(self, task, self.rows * self.cols)
        return 0.0

    def pattern(self) -> "Pattern":
        """The kept weights; `source` is the flat position in W."""
        from . import pattern, windows

        if self.mask is None:
            return store.get(self, lambda: pattern.blocks(1, self.rows, self.cols))
        return store.get(self, lambda: windows.linear(self.rows, self.cols, self.mask))


def _window(rule: "MaxPoolRule | AveragePoolRule | AdaptiveAveragePoolRule") -> tuple[tuple[int, ...], ...]:
    """All that a pooling's key says beside its extents."""
    if isinstance(rule, AdaptiveAveragePoolRule):
        return ()
    if isinstance(rule, MaxPoolRule):
        return rule.kernel, rule.stride, rule.padding, rule.dilation
    return rule.kernel, rule.stride, rule.padding, (int(rule.count_padding), rule.divisor or 0)


def _axes(rule) -> tuple["Pattern", "Pattern"]:
    """The patterns of the vertical and of the horizontal axis."""
    from . import windows

    extents = zip((rule.height, rule.width), rule.out, strict=True)
    if isinstance(rule, AdaptiveAveragePoolRule):
        return tuple(windows.adaptive_axis(extent, out) for extent, out in extents)
    dilation = getattr(rule, "dilation", (1, 1))
    rest = zip(rule.kernel, rule.stride, rule.padding, dilation, strict=True)
    return tuple(windows.axis(extent, out, *each) for (extent, out), each in zip(extents, rest, strict=True))


Rule = ConvolutionRule | ElementwiseRule | MaxPoolRule | AveragePoolRule | AdaptiveAveragePoolRule | LinearRule
