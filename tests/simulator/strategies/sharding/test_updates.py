"""Divided layers that are updated one by one, and sums of gradients in the order in which the next forward needs them."""

import pytest

from calibrate.numerics import STEPS, References, compare
from executors.cpu.backend import CpuBackend
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD, COLLECTIVE, FORWARD, PARAMETER, UPDATE
from simulator.strategies import registry as strategies
from tests.support.applicable import core_groups
from tests.support.shard_networks import random_job, random_plan

LIMIT = 1e-10


def planned(text: str, **fields) -> Plan:
    strategy, options = strategies.parse(text)
    machine = core_groups()
    plan = strategy.plan(Job("lenet5", 4, **fields), machine, None, options)
    plan.validate(machine)
    return plan


@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize(("update", "seed", "devices"), [("forward-fusion", 50, 2), ("backward-fusion", 52, 4), ("asynchronous", 53, 4)])
def test_any_mix_of_configurations_trains_as_plain_pytorch_does(update, seed, devices, priorities, tmp_path):
    job, draw = random_job(seed, tmp_path)
    machine, built = core_groups(devices, draw.choice([0.0, 1e9])), job.build()
    for _ in range(2):
        plan = random_plan(job, machine, draw, update=update, priorities=priorities)
        backend = CpuBackend(machine, cores=[0] * devices)
        numerics = compare(job, built, plan, backend, References(job, built, STEPS, None).of(plan))
        assert max(numerics.max_grad_error, numerics.max_param_error) <= LIMIT


def test_each_layer_is_updated_once_on_each_of_its_devices():
    for update in ("forward-fusion", "backward-fusion"):
        plan = planned(f"owt:update={update}", optimizer="adam")
        updated = sorted(name for task in plan.tasks if task.phase == UPDATE for name in task.body.parameters)
        assert updated == sorted(value.name for value in plan.values.values() if value.kind == PARAMETER), update


def test_forward_fusion_updates_just_before_the_next_forward_and_backward_fusion_just_after_the_sum():
    late, early = (planned(f"owt:update={update}") for update in ("forward-fusion", "backward-fusion"))
    order = [task.name for task in late.tasks]
    first = next(task for task in late.tasks if task.phase == FORWARD and any(o.value == "features.0.weight" for o in task.reads))
    assert order.index(first.name) == order.index("features.0/update") + 1
    assert {task.lag for task in late.tasks if task.phase == UPDATE} == {1}
    assert late.semantics["updates"] == "delayed to the next forward; sync() flushes them"
    order = [task.name for task in early.tasks]
    last_of_backward = max(number for number, task in enumerate(early.tasks) if task.phase == BACKWARD)
    assert order.index("classifier.4/update") < last_of_backward
    assert {task.stream for task in early.tasks if task.phase == UPDATE}.isdisjoint(
        task.stream for task in early.tasks if task.phase == BACKWARD
    )


def test_a_sum_is_the_more_urgent_the_earlier_the_next_forward_needs_it():
    plan = planned("owt:priorities=on,update=forward-fusion")
    first, second = (
        {(task.stream, task.priority) for task in plan.tasks if task.phase == COLLECTIVE and task.name.startswith(f"reduce {layer}/")}
        for layer in ("features.0", "features.3")
    )
    ((first_stream, first_priority),), ((second_stream, second_priority),) = first, second
    assert first_priority < second_priority < 0
    assert first_stream != second_stream
