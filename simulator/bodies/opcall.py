"""One operation: of aten, or a recurrent layer's."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from simulator.bodies.op_class import work_of
from simulator.plan.keys import geometry
from simulator.plan.task import Work

if TYPE_CHECKING:
    from simulator.plan.task import Task


@dataclass(frozen=True, slots=True)
class OpCall:
    """Call `target` (as in `aten.mm.default`) with arguments given as JSON text.

    In `args` and `kwargs`, `{"$": i}` stands for operand i of the task's `reads + mutates`; `{"dtype": "float32"}` and the like for what
    JSON has no word for. `outputs[k]` is the position of the k-th write among the op's results. `flops` and
    `launches` (kernels; on a CPU op calls) as counted at capture.
    """

    target: str
    args: str = "[]"
    kwargs: str = "{}"
    outputs: tuple[int, ...] = (0,)
    flops: float = 0.0
    launches: int = 1
    kind: Literal["op"] = "op"

    def key(self, task: "Task") -> str:
        """Target, operand geometry and every other argument."""
        shapes = "|".join(map(geometry, task.inputs))
        return f"{self.target}|{shapes}|{self.args}{'' if self.kwargs == '{}' else self.kwargs}"

    def work(self, task: "Task") -> Work:
        """FLOPs from capture; bytes of every operand read, mutated (twice) and written."""
        return work_of(self.target, self.flops, task)
