"""The plan: plain data that says which task runs where, in what order, reading and writing which values.

A strategy creates a plan. The simulator and the executors consume the same object, and it goes to JSON and back without loss
(`simulator.plan.json`). The meaning of a plan: the issue order of a period, repeated period after period without the skipped tasks, is a
sequential program (`program`), and any execution that respects its hazards (`simulator.plan.dependencies`) gives the same numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from simulator.machine.machine import Machine
from simulator.plan.check import check
from simulator.plan.contents import PlanContents
from simulator.plan.keys import cost_key
from simulator.plan.task import Task


@dataclass(frozen=True)
class Plan(PlanContents):
    """What a strategy decided. Its fields are those of `PlanContents`.

    >>> from simulator.plan.bodies.host import Host
    >>> from simulator.plan.text import outline
    >>> tasks = Task("forward", Host(1.0), "cpu:0"), Task("backward", Host(2.0), "cpu:0", after=("forward",), phase="backward")
    >>> print(outline(Plan("tiny", tasks, values={}, storages={})), end="")
    plan tiny
    <BLANKLINE>
    2 tasks a period
      # task    lane     phase     layer  body                 operands
      forward   cpu:0/0  forward   -      host duration_s=1.0
      backward  cpu:0/0  backward  -      host duration_s=2.0  after forward
    """

    def keys(self, machine: Machine) -> dict[str, Task]:
        """Every cost key the plan needs on `machine`, with the first task that needs it. Keys end in the device's SM count."""
        keys: dict[str, Task] = {}
        for task in self.every_task:
            keys.setdefault(cost_key(task, machine), task)
        return keys

    def validate(self, machine: Machine) -> None:
        """Raise PlanError, with a drawing of the lanes around the fault, if the plan cannot run on `machine`."""
        checked = (tuple((device.name, device.priority_levels) for device in machine.devices), machine.receives)  # what `check` reads of it
        if checked not in self._valid_on:
            for own in self.sequence:
                check(own, machine)
            self._valid_on.add(checked)

    @cached_property
    def _valid_on(self) -> set[tuple]:
        return set()


def program(tasks: tuple[Task, ...], iterations: int, periods: int | None = None) -> Iterator[tuple[int, int, Task]]:
    """Yield (period, index in the period, task) of `iterations` iterations in sequential order, prologue and drain included.

    With `periods`, stop after that many periods and do not drain.

    >>> from simulator.plan.bodies.host import Host
    >>> forward, update = Task("forward", Host(1.0), "cpu:0"), Task("update", Host(1.0), "cpu:0", lag=1)
    >>> [(period, task.name) for period, _, task in program((update, forward), iterations=2)]
    [(0, 'forward'), (1, 'update'), (1, 'forward'), (2, 'update')]
    """
    last = max((task.lag for task in tasks), default=0)
    for period in range(iterations + last if periods is None else periods):
        for index, task in enumerate(tasks):
            if 0 <= period - task.lag < iterations:
                yield period, index, task
