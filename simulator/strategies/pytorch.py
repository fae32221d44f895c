"""Plain PyTorch: the user's own loop, as autograd and the optimizer issue it. It is predicted like a plan; no executor runs it.

Joins the ops into which capture splits a backward op (dX, and dW with dB), so that the graph has the op that autograd issues.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.graph import Op, TrainingGraph
from simulator.model.job import Job
from simulator.plan.bodies.op_class import op_class
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.ops import row
from simulator.plan.plan import Plan
from simulator.plan.task import BUFFER, PARAMETER, Task
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.options import AnyOptions
from traces.documents.comparison import PYTORCH
from traces.errors import Code, SchedcastError


def joined(graph: TrainingGraph) -> TrainingGraph:
    """The graph in which neighbors that differ only in their `output_mask` are one op, with the results of both."""
    ops: list[Op] = []
    for op in graph.ops:
        other = _join(ops[-1], op) if ops else None
        if other is None:
            ops.append(op)
        else:
            ops[-1] = other
    return replace(graph, ops=tuple(ops))


def _join(first: Op, second: Op) -> Op | None:
    """One op with the results of both; None if they are not parts of one op."""
    a, b = first.body, second.body
    same = a.target == b.target and a.kwargs == b.kwargs and first.reads == second.reads and first.layer == second.layer
    if row(a.target).kernels is None or not same or set(a.outputs) & set(b.outputs):
        return None
    *arguments, mask = json.loads(a.args)
    *others, other_mask = json.loads(b.args)
    if arguments != others:
        return None
    both = [mine or yours for mine, yours in zip(mask, other_mask, strict=True)]
    written = dict(sorted([*zip(a.outputs, first.writes, strict=True), *zip(b.outputs, second.writes, strict=True)]))
    args = json.dumps([*arguments, both], separators=(",", ":"))
    body = OpCall(a.target, args, a.kwargs, tuple(written), a.flops + b.flops, a.launches)
    return replace(first, body=body, writes=tuple(written.values()), view_calls=first.view_calls + second.view_calls)


NAME = PYTORCH
ABOUT = "plain PyTorch: your own loop, as autograd and the optimizer issue it; predicted, and timed by validate, but not run as a plan"
EXECUTED = False


@dataclass(frozen=True)
class Options:
    """No options."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Run the step as autograd issues it, on `Machine.for_pytorch`: on a CPU all cores work on one op at a time."""
    return own_step(NAME, job, machine, options, in_one_call)


def in_one_call(tasks: list[Task], build: PlanBuilder) -> list[Task]:
    """A step and its updates, which one call of the optimizer issues."""
    return tasks + called_once(build.updates())


def called_once(updates: Iterable[Task]) -> list[Task]:
    """Updates that one call of the optimizer issues."""
    calls = enumerate(updates)
    return [replace(task, body=replace(task.body, capturable=False, call="same" if number else "step")) for number, task in calls]


def own_step(
    name: str, job: Job, machine: Machine, options: AnyOptions, with_updates: Callable[[list[Task], PlanBuilder], list[Task]]
) -> Plan:
    """The step as autograd issues it: gradients by input and weight that one op computes are one task, on one stream.

    `with_updates` adds the updates to the tasks of forward and backward. Raises SchedcastError for recurrent layers: autograd unrolls them
    on a CPU, and cuDNN runs their backward on a GPU, while a cost here is that of our own kernels.
    """
    build = PlanBuilder(job, machine.devices[0].name, own_graph(job, job.accumulate))
    return build.plan(name, with_updates(with_views(build.step(), build), build), options)


def own_graph(job: Job, parts: int) -> TrainingGraph:
    """The graph of one of `parts` parts of the batch as autograd issues it. Raises SchedcastError for recurrent layers."""
    graph = joined(job.graph(job.batch // parts, parts))
    recurrent = next((op for op in graph.ops if op_class(op.body.target) == "recurrent"), None)
    if recurrent is not None:
        raise SchedcastError(
            f"plain PyTorch is not predicted for recurrent layers ({recurrent.layer}): it runs them with other kernels than those measured"
            " here; schedcast validate times it",
            Code.MODEL,
        )
    return graph


def with_views(tasks: Iterable[Task], build: PlanBuilder) -> list[Task]:
    """The tasks with the views that autograd makes before them."""
    return [_with_views(task, build) for task in tasks]


def _with_views(task: Task, build: PlanBuilder) -> Task:
    """The task with the views that autograd makes before it, beyond those of the executor's call, if it is an op of the graph.

    An executor applies the views of parameters and buffers once.
    """
    op = build.graph.ops[build.served[task.name][0]] if task.name in build.served else None
    if op is None or task.body is not op.body:
        return task
    own = sum(len(o.views) for o in op.inputs if build.graph.values[o.value].kind not in (PARAMETER, BUFFER))
    return replace(task, view_calls=op.view_calls - own)
