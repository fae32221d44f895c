"""Data parallelism over many devices: equal devices do the same at the same time, and the tasks of all devices count."""

from dataclasses import replace

import pytest

from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.forecast import forecast, prediction
from simulator.strategies import baseline, image_parallel
from simulator.strategies.image_parallel import Options
from tests.benchmarks.ddp import predicted

JOB = Job("lenet5", 32)


def two_nodes(devices: int = 16) -> Machine:
    return load_machine("2xdgx-a100", devices=devices)


@pytest.mark.parametrize("update", ["baseline", "forward-fusion", "backward-fusion"])
@pytest.mark.parametrize("more", [{}, {"bucket": 0}, {"overlap": False, "fetch": False}])
def test_equal_devices_do_the_same_at_the_same_time(update, more):
    machine = replace(two_nodes(4), hosts=())  # the first device's host also issues the collectives
    model = CostModel(machine)
    plan = image_parallel.plan(JOB, machine, model, Options(update=update, **more))
    spans = simulate(plan, machine, model.resolve(plan), iterations=3).spans
    first, *others = (
        [(s.phase, s.layer, s.start_s, s.end_s) for s in spans if s.device == device.name and s.phase != "collective"]
        for device in machine.devices
    )
    assert first
    assert all(other == first for other in others)


def test_a_prediction_counts_the_tasks_of_all_devices():
    machine = two_nodes()
    model = CostModel(machine)
    replicated = forecast(image_parallel.plan(JOB, machine, model, Options()), machine, model)
    alone = forecast(baseline.plan(JOB, machine, model, baseline.Options()), machine, model)
    assert prediction(replicated, alone, "fp32").tasks == len(replicated.timeline.spans) >= 3 * len(replicated.plan.tasks)
    assert len(replicated.plan.tasks) > 16 * len(alone.plan.tasks)  # besides, there are fetches of the batch and reductions


def test_equal_devices_share_costs_and_others_have_their_own():
    machine = two_nodes(3)
    slow = replace(machine.devices[1], peak_flops={"fp32": 1e12}, name="cuda:1")
    mixed = replace(machine, devices=(machine.devices[0], slow, machine.devices[2]))
    job = replace(JOB, batch=3)
    model = CostModel(mixed)
    plan = image_parallel.plan(job, mixed, model, Options())
    costs = {
        device: [
            cost for task, cost in zip(plan.tasks, model.resolve(plan), strict=True) if task.device == device and task.phase == "forward"
        ]
        for device in plan.devices
    }
    assert all(a is b for a, b in zip(costs["cuda:0"], costs["cuda:2"], strict=True))
    assert sum(c.cold_s for c in costs["cuda:1"]) > sum(c.cold_s for c in costs["cuda:0"])


def test_gradients_take_longer_over_more_nodes_and_a_slower_network():
    one_gpu_each = [predicted(nodes, nodes, 8, model="lenet5").sync_s for nodes in (2, 4, 8)]
    assert one_gpu_each == sorted(set(one_gpu_each))
    of_four = [predicted(nodes, 4, 8, model="lenet5").sync_s for nodes in (1, 2, 4)]
    assert of_four[0] < of_four[1] == of_four[2]  # every round of a ring waits for its slowest route
    assert predicted(4, 4, 8, network_bytes_per_s=1e9, model="lenet5").sync_s > one_gpu_each[1]
