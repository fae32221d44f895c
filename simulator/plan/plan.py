"""The plan: plain data that says which task runs where, in what order, reading and writing which values.

A strategy makes it; the simulator and the executors consume the same object, and it goes to JSON and back without loss
(`simulator.plan.json`). What a plan means: the issue order of a period, repeated period after period with skipped tasks left out, is a
sequential program (`program`); any execution that respects its hazards (`simulator.plan.dependencies`) gives the same numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.plan.check import check
from simulator.plan.contents import PlanContents
from simulator.plan.keys import cost_key
from simulator.plan.task import Task


@dataclass(frozen=True)
class Plan(PlanContents):
    """What a strategy decided; its fields are those of `PlanContents`."""

    def keys(self, machine) -> dict[str, Task]:
        """Every cost key the plan needs on `machine`, with the first task that needs it. Keys end in the device's SM count."""
        found: dict[str, Task] = {}
        for segment in self.segments:
            for task in segment.tasks:
                found.setdefault(cost_key(task, machine), task)
        return found

    def validate(self, machine) -> None:
        """Raise PlanError where the plan cannot run on `machine`, with the lanes drawn around the fault."""
        check(self, machine)


def program(tasks: tuple[Task, ...], iterations: int, periods: int | None = None) -> Iterator[tuple[int, int, Task]]:
    """Yield (period, index in the period, task) of `iterations` iterations in sequential order, prologue and drain included.

    With `periods`, stop after that many periods and do not drain.
    """
    last = max((task.lag for task in tasks), default=0)
    for period in range(iterations + last if periods is None else periods):
        for index, task in enumerate(tasks):
            if 0 <= period - task.lag < iterations:
                yield period, index, task
