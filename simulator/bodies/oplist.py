"""Several ops as one task: a pipeline stage, or short CPU ops merged by a plan pass."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

from simulator.bodies.op_class import work_of
from simulator.bodies.opcall import OpCall
from simulator.plan.task import Operand, Work

if TYPE_CHECKING:
    from simulator.plan.task import Task


@dataclass(frozen=True, slots=True)
class Step:
    """One op inside an OpList. Operands name the task's values or values that live only inside the list.

    Field names follow Task, so that op bodies read them alike.
    """

    body: OpCall
    reads: tuple[Operand, ...] = ()
    writes: tuple[Operand, ...] = ()
    mutates: tuple[Operand, ...] = ()

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """`reads + mutates`, as in Task."""
        return self.reads + self.mutates


@dataclass(frozen=True, slots=True)
class OpList:
    """Ops run one after another on one lane, without other tasks between them. `label` is for people."""

    steps: tuple[Step, ...]
    label: str = ""
    kind: Literal["ops"] = "ops"

    @property
    def launches(self) -> int:
        """Those of its ops."""
        return sum(step.body.launches for step in self.steps)

    def key(self, task: "Task") -> str:
        """Label and a hash of the ops' own keys, in order."""
        text = "\n".join(step.body.key(step) for step in self.steps)
        return f"ops.{self.label or 'list'}|{len(self.steps)}|{blake2b(text.encode(), digest_size=8).hexdigest()}"

    def work(self, task: "Task") -> Work:
        """Sum over the ops; the class is that of the op with the most FLOPs."""
        parts = [work_of(step.body.target, step.body.flops, step) for step in self.steps]
        heaviest = max(parts, key=lambda w: w.flops)
        return Work(heaviest.op_class, sum(w.flops for w in parts), sum(w.bytes for w in parts))
