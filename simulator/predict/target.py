"""What a step is predicted for: a machine, what things cost there, and how its host issues the tasks."""

from dataclasses import dataclass, replace

from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import EAGER, GRAPH
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.strategies.registry import Strategy
from traces.documents.comparison import LOOPS, PARALLEL_LOOPS, PYTORCH, PYTORCH_GRAPH


@dataclass(frozen=True)
class Target:
    """A machine with its costs. `mode`: "eager", or "graph" for CUDA graphs."""

    machine: Machine
    costs: CostModel
    mode: str = EAGER

    @classmethod
    def of(cls, costs: CostModel, mode: str = EAGER) -> "Target":
        """The machine of these costs."""
        return cls(costs.machine, costs, mode)

    def planning(self, strategy: Strategy) -> "Target":
        """For which a strategy makes its plan: of a GPU that is split, strategies of one device use the unsplit one."""
        if strategy.name in LOOPS:
            return replace(self, machine=self.machine.for_pytorch, costs=self.costs.for_pytorch)
        if strategy.name in PARALLEL_LOOPS:
            return replace(self, machine=self.machine.for_parallel_loops, costs=self.costs.for_parallel_loops)
        if self.machine.whole is not None and strategy.least_devices == 1:
            return replace(self, machine=self.machine.whole, costs=self.costs.whole)
        return self

    def running(self, plan: Plan) -> "Target":
        """On which `plan` runs: the unsplit machine if it uses that; PyTorch's own loops are eager, and have costs of their own.

        A graph of plain PyTorch holds one step.
        """
        if plan.strategy in LOOPS:
            return Target(self.machine.for_pytorch, self.costs.for_pytorch)
        if plan.strategy in PARALLEL_LOOPS:
            return Target(self.machine.for_parallel_loops, self.costs.for_parallel_loops)
        if plan.strategy == PYTORCH_GRAPH:
            unsplit = self.machine.whole or self.machine
            return Target(
                replace(unsplit, hosts=tuple(replace(host, graph_iterations=1) for host in unsplit.hosts)), self.costs.whole, GRAPH
            )
        if self.machine.for_devices(plan.devices) is self.machine:
            return self
        return replace(self, machine=self.machine.whole, costs=self.costs.whole)


def references(machine: Machine) -> tuple[str, ...]:
    """What a user has without a schedule: plain PyTorch and, on a GPU, the same with each step captured in a CUDA graph.

    On several devices with a process on each, also PyTorch's own parallel loops.
    """
    alone = (PYTORCH, PYTORCH_GRAPH) if machine.devices[0].kind == "gpu" else (PYTORCH,)
    return (*alone, *PARALLEL_LOOPS) if machine.library and len(machine.devices) > 1 else alone
