"""Several ops as one task: a pipeline stage, or short CPU ops merged by a plan pass."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal

from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import Body, Operand, Task, Value, Work


@dataclass(frozen=True, slots=True)
class Step:
    """One op of an OpList. Its operands name the task's values, or values that live only inside the list.

    Field names are those of Task, so that an op's body can take either.
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
class OpList(Body):
    """Ops run one after another on one lane, without other tasks between them. `label` is for people."""

    steps: tuple[Step, ...]
    label: str = ""
    kind: Literal["ops"] = "ops"

    @property
    def has_products(self) -> bool:
        """Whether one of the ops does."""
        return any(step.body.has_products for step in self.steps)

    @property
    def launches(self) -> int:
        """The sum over the ops."""
        return sum(step.body.launches for step in self.steps)

    @property
    def inner_ops(self) -> tuple[Step, ...]:
        """The steps."""
        return self.steps

    @property
    def as_measured(self) -> "OpList":
        """The steps as they are measured."""
        return replace(self, steps=tuple(replace(step, body=step.body.as_measured) for step in self.steps))

    def key(self, task: Task) -> str:
        """Label and a hash of the ops' own keys, in order."""
        text = "\n".join(step.body.key(step) for step in self.steps)
        return f"ops.{self.label or 'list'}|{len(self.steps)}|{blake2b(text.encode(), digest_size=8).hexdigest()}"

    def faults(self, task: Task, values: Mapping[str, Value]) -> Iterator[str]:
        """Those of the steps."""
        for step in self.steps:
            yield from step.body.faults(step, values)

    def work(self, task: Task) -> Work:
        """The sum over the ops; the class is that of the op with the most FLOPs."""
        works = [step.body.work(step) for step in self.steps]
        heaviest = max(works, key=lambda w: w.flops)
        return Work(heaviest.op_class, sum(w.flops for w in works), sum(w.bytes for w in works))
