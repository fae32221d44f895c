"""Pipelines over links whose receives block: none of them deadlocks, unless receives are issued late."""

import pytest

from calibrate.numerics import References, compare
from executors.cpu.backend import CpuBackend
from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.machine import Device, Link, Machine, Memory
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.check import PlanError
from simulator.predict.forecast import forecast
from tests.support import staged_models
from tests.support.pipeline_plans import plan_pipeline


def chain() -> Job:
    """A chain of eight equal layers."""
    return Job(f"{staged_models.__file__}:chain", 16, precision="fp64")


def linked(count: int, receives: str) -> Machine:
    """Devices with a link between any two of them."""
    names = [f"cpu:{number}" for number in range(count)]
    each = tuple(Device(name, "cpu", 1, {"fp32": 1e12, "fp64": 1e12}, "ram", priority_levels=2) for name in names)
    links = tuple(Link(a, b, 1e-6, 1e9) for a in names for b in names if a != b)
    return Machine("made up", each, (Memory("ram", 1 << 40, 1e15, 1),), links=links, receives=receives)


PIPELINES = ("model-parallel", "gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "zero-bubble:memory=free", "zero-bubble:shape=v")


@pytest.mark.parametrize("strategy", [*PIPELINES, "stale-pipeline", "pipedream", "pipedream-2bw"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_no_pipeline_deadlocks_if_receives_are_issued_in_the_order_of_the_plan(strategy, ranks):
    machine = linked(ranks, "blocking")
    for microbatches in (4, 8) if strategy in PIPELINES[1:] or strategy == "pipedream-2bw" else (1,):
        name, _, options = strategy.partition(":")
        options = ",".join(filter(None, (options, f"microbatches={microbatches}" if microbatches > 1 else "")))
        plan = plan_pipeline(f"{name}:{options}" if options else name, chain(), machine)
        costs = CostModel(machine).resolve(plan)
        free, blocking = (simulate(plan, linked(ranks, receives), costs) for receives in ("free", "blocking"))
        assert blocking.step_s >= free.step_s * (1 - 1e-9)


def test_late_receives_deadlock_in_1f1b_as_they_do_without_batched_messages():
    """The first rank sends its second forward while the last one sends its first gradient (pytorch #172668)."""
    with pytest.raises(PlanError, match=r"cpu:0 waits to send .*, cpu:1 to send"):
        plan_pipeline("1f1b:microbatches=4", chain(), linked(2, "late"))
    plan_pipeline("gpipe:microbatches=4", chain(), linked(2, "late"))


def test_a_prediction_takes_them_into_account():
    step_s = []
    for link in ("alias", "blocking"):
        machine = load_machine("p100x4", link=link)
        model = CostModel(machine)
        plan = plan_pipeline("1f1b:microbatches=8", chain(), machine)
        step_s.append(forecast(plan, machine, model).timeline.step_s)
    assert step_s[0] < step_s[1]


def test_the_executor_on_cores_keeps_the_order_and_computes_the_same():
    machine = this_cpu(devices=2, link="copy:1,blocking")
    plan, training, backend = plan_pipeline("1f1b:microbatches=4", chain(), machine), chain(), CpuBackend(machine)
    built = training.build()
    numerics = compare(training, built, plan, backend, References(training, built, 3, backend).of(plan), 3)
    assert (numerics.max_grad_error, numerics.max_param_error) == (0.0, 0.0)
