"""One operation: an aten op, or one of a recurrent layer."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from simulator.plan.bodies.drawn_part import DROPOUT, drawn_part, without_part
from simulator.plan.bodies.masked_backward import kernels
from simulator.plan.bodies.op_class import WITH_PRODUCTS, op_class, work_of
from simulator.plan.bodies.random_draws import is_random
from simulator.plan.keys import geometry
from simulator.plan.ops import OpName
from simulator.plan.task import Body, Task, Value, Work


@dataclass(frozen=True, slots=True)
class OpCall(Body):
    """Call `target` (such as `aten.mm.default`) with arguments given as JSON text.

    In `args` and `kwargs`, `{"$": i}` stands for operand i of the task's `reads + mutates`, and `{"dtype": "float32"}` and the like for
    values that JSON cannot express. `kwargs` may also name the part of a mask that the op draws (`drawn_part`). `outputs[k]` is the
    position of the k-th write among the op's results. `flops` and `launches` (kernels, or op calls on a CPU) are those counted at capture.
    `draw` is the number of the op's random draw among those of a step of plain PyTorch. So an op draws the same numbers in every order of
    issue, and ops that draw parts of one mask have one number.
    """

    target: OpName
    args: str = "[]"
    kwargs: str = "{}"
    outputs: tuple[int, ...] = (0,)
    flops: float = 0.0
    launches: int = 1
    draw: int = 0
    kind: Literal["op"] = "op"

    @property
    def op(self) -> str:
        """The op."""
        return self.target

    @property
    def is_copy(self) -> bool:
        """Whether it clones."""
        return self.target == "aten.clone.default"

    @property
    def has_products(self) -> bool:
        """Whether it is a matrix product or a recurrent layer. Convolutions are cuDNN's."""
        return op_class(self.target) in WITH_PRODUCTS

    @property
    def random(self) -> bool:
        """Whether it draws random numbers. Dropout outside training draws none."""
        return is_random(self.target) and (self.target != DROPOUT or json.loads(self.args)[2] is not False)

    @property
    def loop_length(self) -> int:
        """The kernels of an op that has several, such as those of a recurrent layer's steps."""
        return self.launches

    @property
    def as_measured(self) -> "OpCall":
        """The op without the part of a mask that it draws."""
        return replace(self, kwargs=without_part(self.kwargs)) if drawn_part(self.kwargs) else self

    def key(self, task: Task) -> str:
        """Target, operand geometry and every other argument. A part of a mask costs what a whole mask of the part's shape costs."""
        shapes, kwargs = "|".join(map(geometry, task.inputs)), without_part(self.kwargs)
        return f"{self.target}|{shapes}|{self.args}{'' if kwargs == '{}' else kwargs}"

    def least_kernels(self, device_kind: str) -> int:
        """The launches; a backward op of dX and dW has two kernels on every device."""
        return self.launches * kernels(self.target, self.args)

    def work(self, task: Task) -> Work:
        """FLOPs from capture; bytes of every operand read (as often as kernels read it), mutated (twice) and written."""
        return work_of(task, self.target, self.args, self.flops)

    def faults(self, task: Task, values: Mapping[str, Value]) -> Iterator[str]:
        """Why the part of a mask that the op draws does not fit its operands."""
        part = drawn_part(self.kwargs)
        if part is None:
            return
        if self.target != DROPOUT:
            yield f"draws a part of a mask with {self.target}; only {DROPOUT} can"
        elif not part.fits or part.shape != task.inputs[0].shape:
            yield f"draws the part {list(part.box)} of a mask {part.of} for an operand of shape {task.inputs[0].shape}"
