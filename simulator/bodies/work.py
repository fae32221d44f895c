"""What a task asks of the hardware, and how operands are written in a cost key."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..plan import Operand, Task


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs and bytes of a task. `op_class` groups tasks that reach similar efficiency."""

    op_class: str
    flops: float
    bytes: float


class Body(Protocol):
    """What every body offers. It is a frozen dataclass of plain data."""

    kind: str
    launches: int

    def key(self, task: "Task") -> str:
        """The body's part of the cost key: two tasks with one key take the same time."""

    def work(self, task: "Task") -> Work:
        """FLOPs and bytes, for the roofline."""


_SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "b1",
}  # fmt: skip


def geometry(operand: "Operand") -> str:
    """Dtype, shape and, when not contiguous, strides of an operand, as a short text: `f32[16,64,8,8]`."""
    text = f"{_SHORT.get(operand.dtype, operand.dtype)}[{','.join(map(str, operand.shape))}]"
    expected = 1
    for extent, stride in zip(reversed(operand.shape), reversed(operand.strides), strict=True):
        if extent != 1 and stride != expected:
            return f"{text}({','.join(map(str, operand.strides))})"
        expected *= extent
    return text
