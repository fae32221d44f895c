"""Launches, rounds and blocks of a scan's tasks: one kernel each on CUDA, op calls on a CPU."""

import pytest

from simulator.engine.costs import efficiencies
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.keys import cost_key
from tests.support.jobs import planned
from traces.documents.profile import Identity, KeyCost, Profile, Stats


def tasks_of(strategy: str, machine: str, model: str = "rnn_bitstream", steps: int = 40) -> list:
    """The tasks of a scan and of its Jacobians for 4 samples."""
    plan = planned(strategy, Job(model, 4, image_size=steps), load_machine(machine))
    return [task for task in plan.tasks if task.body.kind in ("scan-level", "jacobian-values")]


@pytest.fixture
def gpu() -> CostModel:
    return CostModel(load_machine("h200"))


def test_every_task_of_a_scan_is_one_launch(gpu):
    for strategy in ("bppsa:scan=blelloch", "bppsa:scan=linear"):
        assert {gpu.cost(task).launches for task in tasks_of(strategy, "h200")} == {1}


def test_a_linear_level_takes_as_long_as_it_has_rounds(gpu):
    """A block per sample; a kernel's start counts once."""
    short, long = (tasks_of("bppsa:scan=linear", "h200", steps=steps)[-1] for steps in (40, 80))
    rounds = [task.body.loop_length for task in (short, long)]
    row = efficiencies.table()["gpu"].row("scan.linear")
    seconds = [gpu.cost(task).cold_s for task in (short, long)]
    assert seconds[1] - seconds[0] == pytest.approx((rounds[1] - rounds[0]) * row.least_s.value, rel=0.1)
    assert seconds[0] > row.cold_start_s.value
    assert gpu.cost(short).grid == 4


def test_jacobians_are_one_kernel_on_a_gpu_and_many_ops_on_a_cpu():
    jacobians = tasks_of("bppsa:scan=blelloch", "h200", "gru_features")[0]
    assert (jacobians.body.least_kernels("gpu"), jacobians.body.least_kernels("cpu")) == (1, 14)


def test_issuing_a_longer_linear_level_takes_the_same_time(gpu):
    """The measured level had 40 rounds in one launch; a level with more rounds is one launch as well."""
    task, other = (tasks_of("bppsa:scan=linear", "h200", steps=steps)[-1] for steps in (40, 80))
    work = task.body.work(task)
    measured = KeyCost(
        Stats(1e-5, 1e-5, 1e-5, 1e-5, 9),
        op_class=work.op_class,
        flops=work.flops,
        bytes=work.bytes,
        issue_s=2e-5,
        launches=task.body.loop_length,
    )
    profile = Profile(identity=Identity(kind="gpu"), costs={cost_key(task, gpu.machine): measured})
    assert CostModel(gpu.machine, profile).cost(other).issue_s == pytest.approx(2e-5)
