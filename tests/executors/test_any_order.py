"""Every order of tasks that a plan's dependencies allow, on any streams, computes plain PyTorch's numbers: nothing else may decide them."""

import random

import networkx
import pytest

from calibrate.numerics import References, compare
from executors.cpu.backend import CpuBackend
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.editor.editor import hazards_within
from simulator.plan.editor.order import Entry, Order
from simulator.plan.plan import Plan
from tests.support.applicable import core_groups, default_plans
from tests.support.places import USER_MODELS


def shuffled(plan: Plan, machine: Machine, rng: random.Random) -> Plan:
    """The plan with the tasks of each segment in a random order that its hazards allow, each task that computes on a random stream."""
    entries: list[Entry] = []
    for part in plan.parts:
        order = networkx.DiGraph([(hazard.before, hazard.after) for hazard in hazards_within(part, machine)])
        order.add_nodes_from(range(len(part.tasks)))
        for index in networkx.lexicographical_topological_sort(order, key=lambda _: rng.random()):
            task = part.tasks[index]
            stream = rng.randrange(3) if task.body.ends is None and not task.body.crosses_devices else task.stream
            entries.append(Entry(task.name, task.device, stream, rng.randrange(3)))
    return Order(tuple(entries)).applied(plan)


@pytest.mark.parametrize("path", USER_MODELS, ids=lambda path: path.stem)
def test_random_orders_of_every_strategy_equal_plain_pytorch(path):
    job, machine, rng = Job(f"{path}:make", 4, precision="fp64"), core_groups(2), random.Random(path.stem)
    built, backend = job.build(), CpuBackend(machine)
    plans = default_plans(job, machine)
    expected = References(job, built, 2, None)
    assert len(plans) > 4
    for plan in sorted(plans.values(), key=lambda plan: str(References.key(plan))):
        numerics = compare(job, built, shuffled(plan, machine, rng), backend, expected.of(plan), 2)
        assert max(numerics.max_grad_error, numerics.max_param_error) <= 1e-10, plan.strategy
