"""Plain PyTorch: the user's own loop, as autograd and the optimizer issue it. It is predicted like a plan; no executor runs it."""

from dataclasses import dataclass, replace

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.model.layers.joint_backward import joined
from simulator.plan.bodies.op_class import op_class
from simulator.plan.plan import Plan
from simulator.plan.task import BUFFER, PARAMETER, Task
from simulator.strategies.builder import PlanBuilder
from traces.documents.comparison import PYTORCH
from traces.errors import SchedcastError

NAME = PYTORCH
ABOUT = "plain PyTorch: your own loop, as autograd and the optimizer issue it; predicted, and timed by validate, but not run as a plan"
EXECUTED = False


@dataclass(frozen=True)
class Options:
    """No options."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Run the step as autograd issues it, on `Machine.for_pytorch`: on a CPU all cores work on one op at a time."""
    return own_step(NAME, job, machine, options, capturable=False)


def own_step(name: str, job: Job, machine: Machine, options: object, capturable: bool) -> Plan:
    """The step as autograd issues it: gradients by input and weight that one op computes are one task, on one stream.

    `capturable`: the optimizer keeps its counts of steps on the GPU, which a graph needs. Raises SchedcastError for recurrent layers:
    autograd unrolls them on a CPU, and cuDNN runs their backward on a GPU, while a cost here is that of our own kernels.
    """
    graph = joined(job.graph(job.batch // job.accumulate, job.accumulate))
    recurrent = next((op for op in graph.ops if op_class(op.body.target) == "recurrent"), None)
    if recurrent is not None:
        raise SchedcastError(
            f"plain PyTorch is not predicted for recurrent layers ({recurrent.layer}): it runs them with other kernels than those measured"
            " here; schedcast validate times it"
        )
    build = PlanBuilder(job, machine.devices[0].name, graph)
    tasks = [_with_views(task, build) for task in build.step()]
    updates = [replace(task, body=replace(task.body, capturable=capturable)) for task in build.updates()]
    return build.plan(name, tasks + updates, options)


def _with_views(task: Task, build: PlanBuilder) -> Task:
    """The task with the views that autograd makes before it, beyond those of the executor's call, if it is an op of the graph.

    An executor applies the views of parameters and buffers once.
    """
    op = build.graph.ops[build.served[task.name][0]] if task.name in build.served else None
    if op is None or task.body is not op.body:
        return task
    own = sum(len(o.views) for o in op.inputs if build.graph.values[o.value].kind not in (PARAMETER, BUFFER))
    return replace(task, view_calls=op.view_calls - own)
