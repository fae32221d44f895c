"""The chain of gradients by activations that a backward pass is, found among its tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.bodies.csr.rules import Rule
from simulator.build import PlanBuilder
from simulator.layers.graph import DX
from simulator.plan.task import Operand, Task
from simulator.scan.jacobian_of import jacobian_of
from traces.errors import StepcastError

#: What capture calls the layer of the loss, whose own ops make the chain's first gradient.
_LOSS = "loss"
#: View steps that leave the order of a sample's elements alone.
_RESHAPES = frozenset(f"aten.{name}.default" for name in ("view", "_unsafe_view", "unsqueeze")) | {"aten.squeeze.dim", "aten.squeeze.dims"}


@dataclass(frozen=True)
class Link:
    """One op of the chain: it makes `result`, the gradient by an activation, of `gradient`, that by the next one.

    `reads`: what the values of its transposed Jacobian, of `rule`, come from.
    """

    task: Task
    gradient: Operand
    result: Operand
    rule: Rule
    reads: tuple[Operand, ...]


def layer_chain(build: PlanBuilder, backward: Sequence[Task]) -> list[Link]:
    """The links in the order of the backward pass; what comes before the first op with a Jacobian rule makes the chain's first gradient.

    Raises StepcastError where there is no such op, where one behind the first has no rule, and where gradients branch or meet.
    """
    gradients = {operand.value for task in backward for operand in task.writes}
    links: list[Link] = []
    before: list[StepcastError] = []
    for task in backward:
        index, role = build.served.get(task.name, (0, ""))
        if role != DX:
            continue
        given = [operand for operand in task.reads if operand.value in gradients]
        if links:
            _continues(task, given, links[-1])
        op = build.graph.ops[index]
        try:
            rule, reads = jacobian_of(op, build.graph)
        except StepcastError as error:
            if links:
                raise StepcastError(f"bppsa: {error}") from error
            before += [error] if task.layer != _LOSS else []
            continue
        links.append(Link(task, given[0], task.writes[0], rule, tuple(task.inputs[op.inputs.index(operand)] for operand in reads)))
    if not links:
        raise StepcastError(f"bppsa: {before[-1]}" if before else "bppsa: the model is a single layer; expected a chain of at least two")
    return links


def _continues(task: Task, given: Sequence[Operand], last: Link) -> None:
    """Raise StepcastError where a task reads anything but the gradient that the last link made."""
    if len(given) != 1 or given[0].value != last.result.value:
        raise StepcastError(f"bppsa: gradients branch or meet at {task.name}; expected a chain of layers, each read by the next alone")
    if not all(view.target in _RESHAPES for view in given[0].views):
        raise StepcastError(f"bppsa: the gradient is rearranged before {task.name}; expected layers that keep the order of elements")
