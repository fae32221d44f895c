"""Pipelines whose devices are processes: values cross a cut as messages, on a machine with a library."""

from dataclasses import replace

import pytest

from simulator.engine.collectives.local import local_plan
from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.dependencies import Dependencies
from simulator.plan.messages import between_devices
from simulator.predict.forecast import forecast, prediction
from simulator.strategies import baseline, data_parallel
from simulator.strategies.data_parallel import Options
from tests.benchmarks.ddp import predicted
from tests.support.jobs import planned

SMALL_JOB = Job("lenet5", 8)


def plan_of(text: str, ranks: int, library: str):
    machine = this_cpu(cores=1, devices=ranks, library=library)
    return planned(text, SMALL_JOB, machine)


@pytest.mark.parametrize("text", ["gpipe", "1f1b", "interleaved-1f1b", "pipedream", "stale-pipeline", "model-parallel"])
def test_every_task_runs_in_one_process_and_every_copy_in_two(text):
    plan = plan_of(text, 2, "gloo")
    copies = [index for index, task in enumerate(plan.tasks) if between_devices(task)]
    assert copies
    assert {plan.tasks[index].body.means for index in copies} == {"link"}  # no process has a second name for another's memory
    shares = [local_plan(plan, device) for device in plan.devices]
    assert sorted(index for share in shares for index in share.numbers) == sorted([*range(len(plan.tasks)), *copies])


def test_a_receive_waits_for_nothing_but_its_lane():
    """It is posted before the sender arrives, so that the message never waits for the receiver's compute stream."""
    share = local_plan(plan_of("1f1b", 2, "gloo"), "cpu:1")
    edges = Dependencies(share).edges(0)
    receives = [index for index, task in enumerate(share.tasks) if task.writes and task.phase == "transfer"]
    assert receives
    assert [edges[index] for index in receives] == [()] * len(receives)


def test_losses_and_gradients_are_on_the_ranks_of_their_stages():
    plan = plan_of("gpipe", 2, "gloo")
    first, last = (local_plan(plan, device) for device in plan.devices)
    assert (len(first.losses), last.losses) == (0, plan.losses)
    assert {**first.gradients, **last.gradients} == dict(plan.gradients)
    assert not first.gradients.keys() & last.gradients.keys()


# Data parallelism over many devices: equal devices do the same at the same time, and the tasks of all devices count.


JOB = Job("lenet5", 32)


def two_nodes(devices: int = 16) -> Machine:
    return load_machine("2xdgx-a100", devices=devices)


@pytest.mark.parametrize("update", ["baseline", "forward-fusion", "backward-fusion"])
@pytest.mark.parametrize("more", [{}, {"bucket": 0}, {"overlap": False, "fetch": False}])
def test_equal_devices_do_the_same_at_the_same_time(update, more):
    machine = replace(two_nodes(4), hosts=())  # the first device's host also issues the collectives
    model = CostModel(machine)
    plan = data_parallel.plan(JOB, machine, model, Options(update=update, **more))
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
    replicated = forecast(data_parallel.plan(JOB, machine, model, Options()), machine, model)
    alone = forecast(baseline.plan(JOB, machine, model, baseline.Options()), machine, model)
    assert prediction(replicated, alone, "fp32").tasks == len(replicated.timeline.spans) >= 3 * len(replicated.plan.tasks)
    assert len(replicated.plan.tasks) > 16 * len(alone.plan.tasks)  # besides, there are fetches of the batch and reductions


def test_equal_devices_share_costs_and_others_have_their_own():
    machine = two_nodes(3)
    slow = replace(machine.devices[1], peak_flops={"fp32": 1e12}, name="cuda:1")
    mixed = replace(machine, devices=(machine.devices[0], slow, machine.devices[2]))
    job = replace(JOB, batch=3)
    model = CostModel(mixed)
    plan = data_parallel.plan(job, mixed, model, Options())
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
