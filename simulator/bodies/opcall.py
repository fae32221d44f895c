"""One operation: an aten op, or one of a recurrent layer."""

from dataclasses import dataclass
from typing import Literal

from simulator.bodies.op_class import work_of
from simulator.plan.keys import geometry
from simulator.plan.ops import OpName
from simulator.plan.task import Body, Task, Work


@dataclass(frozen=True, slots=True)
class OpCall(Body):
    """Call `target` (such as `aten.mm.default`) with arguments given as JSON text.

    In `args` and `kwargs`, `{"$": i}` stands for operand i of the task's `reads + mutates`, and `{"dtype": "float32"}` and the like for
    values that JSON cannot express. `outputs[k]` is the position of the k-th write among the op's results. `flops` and `launches` (kernels,
    or op calls on a CPU) are those counted at capture.
    """

    target: OpName
    args: str = "[]"
    kwargs: str = "{}"
    outputs: tuple[int, ...] = (0,)
    flops: float = 0.0
    launches: int = 1
    kind: Literal["op"] = "op"

    @property
    def loop_length(self) -> int:
        """The kernels of an op that has several, such as those of a recurrent layer's steps."""
        return self.launches

    def key(self, task: Task) -> str:
        """Target, operand geometry and every other argument."""
        shapes = "|".join(map(geometry, task.inputs))
        return f"{self.target}|{shapes}|{self.args}{'' if self.kwargs == '{}' else self.kwargs}"

    def work(self, task: Task) -> Work:
        """FLOPs from capture; bytes of every operand read, mutated (twice) and written."""
        return work_of(task, self.target, self.args, self.flops)
