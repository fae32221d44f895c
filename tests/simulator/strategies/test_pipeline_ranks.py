"""Pipelines whose devices are processes: values cross a cut as messages, on a machine with a library."""

import pytest

from simulator.engine.collectives.local import local_plan
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.dependencies import Dependencies
from simulator.plan.messages import between_devices
from tests.support.jobs import planned

JOB = Job("lenet5", 8)


def plan_of(text: str, ranks: int, library: str):
    machine = this_cpu(cores=1, devices=ranks, library=library)
    return planned(text, JOB, machine)


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
