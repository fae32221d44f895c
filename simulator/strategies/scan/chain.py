"""Finds the chain of activation gradients among the tasks of a backward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.model.layers.graph import DX
from simulator.plan.bodies.csr.rules import Rule
from simulator.plan.task import Operand, Task
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.scan.jacobian_of import jacobian_of
from traces.errors import SchedcastError

#: Capture's name for the layer of the loss, whose ops compute the chain's first gradient.
_LOSS = "loss"
#: View steps that keep the order of a sample's elements.
_RESHAPES = frozenset(f"aten.{name}.default" for name in ("view", "_unsafe_view", "unsqueeze")) | {"aten.squeeze.dim", "aten.squeeze.dims"}


@dataclass(frozen=True)
class Link:
    """One op of the chain: it computes `result`, the gradient by an activation, from `gradient`, that by the next activation.

    `rule`: the rule of its transposed Jacobian. `reads`: the operands from which the Jacobian's values are computed.
    """

    task: Task
    gradient: Operand
    result: Operand
    rule: Rule
    reads: tuple[Operand, ...]


def layer_chain(build: PlanBuilder, backward: Sequence[Task]) -> list[Link]:
    """The links in the order of the backward pass. Ops before the first one with a Jacobian rule compute the chain's first gradient.

    Raises SchedcastError if there is no op with a rule, if an op after the first link has no rule, or if gradients branch or meet.
    """
    gradients = {operand.value for task in backward for operand in task.writes}
    links: list[Link] = []
    refusals: list[SchedcastError] = []
    for task in backward:
        index, role = build.served.get(task.name, (0, ""))
        if role != DX:
            continue
        read = [operand for operand in task.reads if operand.value in gradients]
        if links:
            _check_continuation(task, read, links[-1])
        op = build.graph.ops[index]
        try:
            rule, reads = jacobian_of(op, build.graph)
        except SchedcastError as error:
            if links:
                raise SchedcastError(f"bppsa: {error}") from error
            refusals += [error] if task.layer != _LOSS else []
            continue
        links.append(Link(task, read[0], task.writes[0], rule, tuple(task.inputs[op.inputs.index(operand)] for operand in reads)))
    if not links:
        reason = refusals[-1] if refusals else "the model is a single layer; expected a chain of at least two"
        raise SchedcastError(f"bppsa: {reason}")
    return links


def _check_continuation(task: Task, read: Sequence[Operand], last: Link) -> None:
    """Raise SchedcastError if `read`, the gradients that a task reads, is not just the result of the last link in unchanged order."""
    if len(read) != 1 or read[0].value != last.result.value:
        raise SchedcastError(f"bppsa: gradients branch or meet at {task.name}; expected a chain of layers, each read by the next alone")
    if not all(view.target in _RESHAPES for view in read[0].views):
        raise SchedcastError(f"bppsa: the gradient is rearranged before {task.name}; expected layers that keep the order of elements")
