"""Plain PyTorch with each step captured in one CUDA graph, as a user may run it on a GPU without any other schedule."""

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.pytorch import Options, own_step
from traces.documents.comparison import PYTORCH_GRAPH
from traces.errors import Code, SchedcastError

NAME = PYTORCH_GRAPH
ABOUT = "plain PyTorch with each step captured in one CUDA graph (torch.cuda.graph): the host launches one graph per step"
EXECUTED = False


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """The ops of plain PyTorch on one stream. Raises SchedcastError for a CPU, and for what plain PyTorch is not predicted for."""
    if machine.devices[0].kind != "gpu":
        raise SchedcastError(f"{NAME} needs a GPU, which {machine.name} has not; CUDA graphs run on GPUs only", Code.DEVICES)
    return own_step(NAME, job, machine, options, _counting_on_gpu)


def _counting_on_gpu(tasks: list[Task], build: PlanBuilder) -> list[Task]:
    """A step and its updates, which store their step counts on the GPU, as a graph needs."""
    return tasks + build.updates()
