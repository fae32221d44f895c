"""One device that stands for all is compared with all of them."""

from collections.abc import Callable

import pytest

from simulator.engine.costs.cost import Cost
from simulator.engine.memory.over_time import carried_bytes
from simulator.engine.simulation import simulate
from simulator.model.job import Job
from simulator.plan.task import Task
from simulator.strategies.registry import with_options
from tests.support.jobs import planned
from tests.support.linked_gpus import gpus


def by_flops(task: Task) -> float:
    """Seconds of an op that follow from its FLOPs; what moves takes what links allow."""
    return task.body.flops * 1e-8 if task.body.op else 0.0


def check_folded(text: str, job: Job, seconds: Callable[[Task], float]) -> None:
    """Check that a folded plan of four GPUs has the time of the whole plan, and its device the memory."""
    machine = gpus(4, bytes_per_s=1e6)
    times, carried = [], []
    for fold in ("on", "off"):
        plan = planned(with_options(text, f"fold={fold}", "fetch=off"), job, machine)
        costs = [Cost(task.name, took_s := seconds(task), took_s) for task in plan.tasks]
        times.append(simulate(plan, machine, costs).step_s)
        carried.append(carried_bytes(plan)["g0"])
    assert times[0] == pytest.approx(times[1], rel=1e-9)
    assert carried[0] == carried[1]
