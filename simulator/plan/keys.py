"""Cost keys: the names under which a profile stores the costs of tasks."""

from simulator.machine.machine import Machine
from simulator.plan.task import Operand, Task

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


def cost_key(task: Task, machine: Machine) -> str:
    """The name under which a profile stores the task's cost: body, operand geometry, and the SMs (or threads) that run it."""
    return keyed(task.body.key(task), task, machine)


def keyed(body_key: str, task: Task, machine: Machine) -> str:
    """The `cost_key` of a task whose body has this part of it."""
    return f"{body_key}@{machine.device(task.device).share_name}"
