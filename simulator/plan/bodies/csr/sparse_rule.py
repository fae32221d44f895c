"""What the rules of ops with a sparse Jacobian have in common, and the checks of their geometry."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from simulator.plan.task import Task

if TYPE_CHECKING:
    from simulator.plan.bodies.csr.mask import Mask
    from simulator.plan.bodies.csr.patterns import Pattern


# A cache of computed patterns and products, bounded by their bytes.


#: All patterns and products of VGG-11 pruned to 3 % fit.
MOST_BYTES = 2**30


class Store:
    """Results by recipe; each result states its size in `bytes`. Drops the least recently used; never stores one over `most_bytes`."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self.most_bytes, self.bytes = most_bytes, 0
        self._results: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def get(self, recipe: Hashable, compute: Callable[[], Any]) -> Any:
        """The stored result of `recipe`, or that of `compute()` if there is none."""
        with self._lock:
            if recipe in self._results:
                self._results.move_to_end(recipe)
                return self._results[recipe]
        result = compute()
        with self._lock:
            if recipe not in self._results and result.bytes <= self.most_bytes:
                self._results[recipe] = result
                self.bytes += result.bytes
                while self.bytes > self.most_bytes:
                    _, dropped = self._results.popitem(last=False)
                    self.bytes -= dropped.bytes
        return result


store = Store()


#: Indices are int32.
MOST_ENTRIES = 2**31 - 1


class SparseRule:
    """A rule for the transposed Jacobian [rows, cols] of one sample. A rule is a frozen dataclass of plain data with a tag `of`.

    Elements of a sample are numbered as in a contiguous tensor: channel, then row, then column. The Jacobian of a linear layer without a
    mask is a full matrix; all others are stored as CSR values [nnz, V], V = 1 if all samples share them, else V = B.
    """

    __slots__ = ()

    of: str
    #: Of the rules of weights.
    mask: "Mask | None"
    #: Whether all samples have the same values.
    shared: ClassVar[bool]
    #: Kernels on CUDA, and op calls on a CPU, to compute the values.
    launches: ClassVar[int] = 1
    calls: ClassVar[int] = 1

    if TYPE_CHECKING:  # a rule has fields or properties

        @property
        def rows(self) -> int:
            """Elements of an input sample."""

        @property
        def cols(self) -> int:
            """Elements of an output sample."""

        @property
        def nnz(self) -> int:
            """Entries that may differ from zero."""

        @property
        def key(self) -> str:
            """The rule's part of a cost key."""

    def flops(self, task: Task) -> float:
        """FLOPs of the values. Raises ValueError if the task's operands do not fit the rule."""
        raise NotImplementedError

    def pattern(self) -> "Pattern":
        """Which entries may differ from zero. Patterns are cached in a store of bounded size."""
        raise NotImplementedError

    def check_operands(self, task: Task, *elements: int) -> None:
        """Raise ValueError unless the task reads operands of `elements` elements per sample and writes the rule's values.

        Reads are checked before `nnz` is used, which may draw a mask: a mask is drawn only for a weight of the right size.
        """
        (write,) = task.writes
        full = task.body.full or (self.of == "linear" and self.mask is None)
        samples = 1 if self.shared else write.shape[0] if full and len(write.shape) == 3 else 1 if full else write.shape[-1]
        if len(task.reads) != len(elements) or any(o.elements != n * samples for o, n in zip(task.reads, elements, strict=True)):
            raise ValueError(f"{self.key} reads {elements} elements per sample of {samples}, not {[o.shape for o in task.reads]}")
        matrix = (self.rows, self.cols)
        expected = (matrix if samples == 1 else (samples, *matrix)) if full else (self.nnz, samples)
        if write.shape != expected:
            raise ValueError(f"the values of {self.key} are {expected}, but {write.value} is {write.shape}")


class WindowRule(SparseRule):
    """The rule of an op that slides windows over planes of `height` x `width`; pairs are (vertical, horizontal)."""

    __slots__ = ()

    channels: int
    height: int
    width: int
    #: Of the windows, unless they are bins of nearly equal size.
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    if TYPE_CHECKING:

        @property
        def out(self) -> tuple[int, int]:
            """Height and width of the output."""

    @property
    def rows(self) -> int:
        """Elements of an input sample."""
        return self.channels * self.height * self.width

    def axes(self) -> tuple["Pattern", "Pattern"]:
        """The patterns of the vertical and of the horizontal axis: which places each window covers."""
        from simulator.plan.bodies.csr import patterns

        extents = zip((self.height, self.width), self.out, strict=True)
        dilation = getattr(self, "dilation", (1, 1))
        geometry = zip(self.kernel, self.stride, self.padding, dilation, strict=True)
        height, width = (patterns.axis(extent, out, *axis) for (extent, out), axis in zip(extents, geometry, strict=True))
        return height, width


def check_geometry(op: str, positive: tuple[int, ...], entries: tuple[int, ...]) -> None:
    """Raise ValueError if an extent of `positive` is below 1, or if int32 cannot number as many items as one of `entries`."""
    if min(positive) < 1:
        raise ValueError(f"a {op} has an extent of {min(positive)}; expected at least 1")
    if max(entries) > MOST_ENTRIES:
        raise ValueError(f"the transposed Jacobian of a {op} has up to {max(entries)} entries; expected at most {MOST_ENTRIES}")


# The Jacobian of element-wise ops.


#: Element-wise backward ops: they take a gradient and `ElementwiseRule.args`, and multiply every element of the gradient by a factor.
ELEMENTWISE = frozenset(
    f"aten.{name}.default"
    for name in (
        "threshold_backward", "tanh_backward", "sigmoid_backward", "hardtanh_backward", "leaky_relu_backward", "gelu_backward",
        "silu_backward", "mish_backward", "hardswish_backward", "hardsigmoid_backward", "elu_backward", "softplus_backward",
        "log_sigmoid_backward", "hardshrink_backward", "softshrink_backward", "native_dropout_backward",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ElementwiseRule(SparseRule):
    """An op whose output element i depends on input element i alone. The Jacobian is the diagonal that its backward op makes of ones.

    `target` is the backward op. `args` and `kwargs` are the JSON texts of its arguments after the gradient, where `{"$": i}` stands for
    the task's operand i. Reads: the tensors that the forward op saved, [B, ...]. Values [elements, B].
    """

    elements: int
    target: str
    args: str = "[]"
    kwargs: str = "{}"
    of: Literal["elementwise"] = "elementwise"

    launches: ClassVar[int] = 2
    calls: ClassVar[int] = 2
    shared: ClassVar[bool] = False

    def __post_init__(self):
        """Raise ValueError for an op that is not element-wise."""
        check_geometry("element-wise op", (self.elements,), (self.elements,))
        if self.target not in ELEMENTWISE:
            raise ValueError(f"{self.target!r} is not an element-wise backward op; expected one of {', '.join(sorted(ELEMENTWISE))}")

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
        """The length of the diagonal."""
        return self.elements

    @property
    def key(self) -> str:
        """Op, size and arguments."""
        return f"{self.target}.{self.elements}{self.args}{'' if self.kwargs == '{}' else self.kwargs}"

    def flops(self, task: Task) -> float:
        """One per entry."""
        self.check_operands(task, *[self.elements] * len(task.reads))
        return float(task.writes[0].elements)

    def pattern(self) -> "Pattern":
        """The diagonal."""
        from simulator.plan.bodies.csr.patterns import identity

        return store.get(self.elements, lambda: identity(self.elements))
