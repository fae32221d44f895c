"""What is simulated: a plan on a machine, the cost of each task alone, and how hosts issue the tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from simulator.engine.costs.cost import Cost
from simulator.engine.memory.caching import reserved_bytes
from simulator.engine.memory.over_time import Scratch
from simulator.machine.machine import HostLane, Machine
from simulator.plan.dependencies import Dependencies, dependencies_of
from simulator.plan.plan import Plan

EAGER, GRAPH = "eager", "graph"


@dataclass(frozen=True)
class Scenario:
    """A plan with all that its timeline depends on.

    `costs`: one per task, in issue order; none are needed to ask for memory that does not depend on times. `mode`: "eager" (hosts issue
    task by task) or "graph" (one launch per `HostLane.graph_iterations` iterations). `pair_multipliers`: slow-down of a task of the first
    group or op class while one of the second runs on the same memory; 1 if absent.
    """

    plan: Plan
    machine: Machine
    costs: Sequence[Cost] = ()
    mode: str = EAGER
    pair_multipliers: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @property
    def is_graph(self) -> bool:
        """Whether the plan runs in CUDA graphs."""
        return self.mode == GRAPH

    @cached_property
    def dependencies(self) -> Dependencies:
        """The plan's dependencies on this machine."""
        return dependencies_of(self.plan, self.machine)

    @cached_property
    def hosts(self) -> dict[str, HostLane | None]:
        """By device of the plan, the host lane that issues its tasks; None if its launches take no time."""
        return {device: self.machine.host(device) for device in self.plan.devices}

    @cached_property
    def scratch(self) -> Scratch:
        """What is allocated in addition to the plan's values."""
        return Scratch.of(self.plan, self.machine, self.is_graph)

    @cached_property
    def reserved_bytes(self) -> dict[str, int]:
        """By memory that GPUs of the plan use, the most that PyTorch's allocator reserves in it."""
        return reserved_bytes(self.plan, self.machine, self.scratch)

    @cached_property
    def graph_iterations(self) -> int:
        """The iterations of a CUDA graph; 1 in eager mode. Raises ValueError if hosts launch no graphs, or graphs of different numbers."""
        numbers = set()
        for device, host in self.hosts.items() if self.is_graph else ():
            if host is None:
                raise ValueError(f"mode 'graph' needs CUDA devices; {device} of {self.machine.name} has no host lane that launches graphs")
            numbers.add(host.graph_iterations)
        if len(numbers) > 1:
            raise ValueError(f"the host lanes of {self.machine.name} differ in graph_iterations; expected one value")
        return numbers.pop() if numbers else 1

    def check(self) -> None:
        """Raise ValueError for several plans, costs that do not fit the plan, or a mode that the machine lacks.

        Raises SchedcastError for a plan that is no graph (`Plan.check_graph`).
        """
        plan, costs = self.plan, self.costs
        plan.require_alone()
        if not plan.tasks:
            raise ValueError(f"plan {plan.strategy!r} has no tasks; expected at least one")
        if len(costs) != len(plan.tasks):
            raise ValueError(f"got {len(costs)} costs for {len(plan.tasks)} tasks; expected one per task, in issue order")
        for task, cost in zip(plan.tasks, costs, strict=True):
            if not (0.0 <= cost.warm_s < inf and 0.0 <= cost.cold_s < inf):
                raise ValueError(
                    f"task {task.name!r} costs {cost.warm_s} s warm, {cost.cold_s} s cold; expected finite numbers of at least 0"
                )
        if self.mode not in (EAGER, GRAPH):
            raise ValueError(f"unknown mode {self.mode!r}; expected {EAGER!r} or {GRAPH!r}")
        if self.is_graph:
            plan.check_graph()
        _ = self.graph_iterations
