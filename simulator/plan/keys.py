"""Cost keys: the names under which a profile stores the costs of tasks."""

import re

from simulator.machine.machine import Machine
from simulator.plan.task import Operand, Task
from simulator.plan.tensors import contiguous

#: Names of data types in keys.
SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "b1",
}  # fmt: skip


def geometry(operand: Operand) -> str:
    """Dtype, shape and, when not contiguous, strides of an operand, as a short text: `f32[16,64,8,8]`."""
    text = f"{SHORT.get(operand.dtype, operand.dtype)}[{','.join(map(str, operand.shape))}]"
    expected = 1
    for extent, stride in zip(reversed(operand.shape), reversed(operand.strides), strict=True):
        if extent != 1 and stride != expected:
            return f"{text}({','.join(map(str, operand.strides))})"
        expected *= extent
    return text


_LONG = {short: dtype for dtype, short in SHORT.items()}
_GEOMETRY = re.compile(r"(\w+)\[([\d,]*)\](?:\(([\d,]*)\))?")


def read_geometry(text: str) -> Operand | None:
    """The operand of a `geometry`, which does not say its name; None for any other text.

    >>> read_geometry("bf16[8,4]"), geometry(read_geometry("f32[8,4](1,8)"))
    (Operand(value='', shape=(8, 4), strides=(4, 1), dtype='bfloat16', views=()), 'f32[8,4](1,8)')
    """
    match = _GEOMETRY.fullmatch(text)
    if match is None:
        return None
    dtype, shape, strides = match[1], _numbers(match[2]), match[3]
    return Operand("", shape, contiguous(shape) if strides is None else _numbers(strides), _LONG.get(dtype, dtype))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def cost_key(task: Task, machine: Machine) -> str:
    """The name under which a profile stores the task's cost: body, operand geometry, and the SMs (or threads) that run it."""
    return keyed(task.body.key(task), task, machine)


def keyed(body_key: str, task: Task, machine: Machine) -> str:
    """The `cost_key` of a task whose body has this part of it."""
    return f"{body_key}@{machine.device(task.device).share_name}"
