"""Learning rates by phase: every backend trains as plain PyTorch does when its optimizer's rate is changed between steps."""

import pytest

from calibrate.numerics import Expected, References, compare, reference
from executors.cpu.backend import CpuBackend
from executors.cuda.backend import CudaBackend
from executors.cuda.graphs import GraphProgram
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.bodies.update import STATE, rate_at
from simulator.plan.json import dump, load
from tests.fake_gpu import FakeGpu
from tests.support.jobs import MLP, planned
from traces.errors import SchedcastError

#: Phases that begin within a graph of four steps, after three eager ones: in the first graph, and in the third.
SCHEDULE = "0:0.1,5:0.02,13:0.003"
STEPS = 17


@pytest.mark.parametrize("optimizer", STATE)
def test_the_reference_changes_the_rate_before_the_step(optimizer):
    job = Job(MLP, 6, precision="fp64", optimizer=optimizer, lr_schedule="2:0.02,4:0.003")
    scheduled, by_hand = (
        reference(job, job.build(), False),
        reference(Job(MLP, 6, precision="fp64", optimizer=optimizer), job.build(), False),
    )
    for step in range(6):
        for group in by_hand.optimizer.param_groups:
            group["lr"] = {2: 0.02, 4: 0.003}.get(step, group["lr"])
        assert scheduled.step() == by_hand.step()


@pytest.mark.parametrize("optimizer", STATE)
def test_every_optimizer_follows_the_schedule(optimizer):
    machine = load_machine("this-cpu")
    job = Job(MLP, 6, precision="fp64", optimizer=optimizer, lr_schedule=SCHEDULE)
    plan, built, backend = planned("forward-fusion", job, machine), job.build(), CpuBackend(machine)
    assert compare(job, built, plan, backend, Expected.of(job, built, STEPS), STEPS).equal("fp64")
    one_rate = Expected.of(Job(MLP, 6, precision="fp64", optimizer=optimizer), built, STEPS)
    assert not compare(job, built, plan, backend, one_rate, STEPS).equal("fp64")


@pytest.mark.parametrize("strategy", ["baseline", "backward-fusion", "stale-pipeline:on=simulated"])
def test_an_update_has_the_rate_of_its_own_mini_batch(strategy):
    machine = load_machine("this-cpu")
    job = Job("lenet5", 2, precision="fp64", lr_schedule=SCHEDULE)
    plan, built, backend = planned(strategy, job, machine), job.build(), CpuBackend(machine)
    assert compare(job, built, plan, backend, References(job, built, STEPS, backend).of(plan), STEPS).equal("fp64")


@pytest.mark.parametrize("strategy", ["baseline", "forward-fusion"])
@pytest.mark.parametrize("optimizer", ["nesterov", "adam"])
def test_a_graph_is_captured_again_only_for_other_rates(strategy, optimizer, monkeypatch):
    machine, gpu, captures = load_machine("h200"), FakeGpu(), []
    capture = GraphProgram._capture
    monkeypatch.setattr(GraphProgram, "_capture", lambda program, marks=None: captures.append(program._period) or capture(program, marks))
    job = Job(MLP, 4, precision="fp64", optimizer=optimizer, lr_schedule=SCHEDULE)
    plan, built, backend = planned(strategy, job, machine), job.build(), CudaBackend(machine, gpu, "graph")
    steps = 3 + 4 * 8
    with gpu:
        assert compare(job, built, plan, backend, Expected.of(job, built, steps, backend), steps).equal("fp64")
    # Both rates in one graph; the second rate; both; the third. Graphs begin with the periods 3, 7, 11 and so on.
    assert captures == [3, 7, 11, 15]


def test_plans_with_rates_go_to_json_and_text_and_back():
    plan = planned("baseline", Job(MLP, 4, lr_schedule="3:0.01,9:1e-3"), load_machine("h200"))
    assert plan.tasks[-1].body.rates == ((3, 0.01), (9, 0.001))
    assert load(dump(plan)) == plan


def test_a_rate_holds_until_the_next():
    rates = ((0, 0.1), (300, 0.01))
    assert [rate_at(rates, iteration) for iteration in (0, 299, 300, 10_000)] == [0.1, 0.1, 0.01, 0.01]
    assert rate_at(((5, 0.1),), 4) is None  # that of --lr


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lr_schedule": ""}, "'' is not ITERATION:RATE"),
        ({"lr_schedule": "0.1"}, "'0.1' is not ITERATION:RATE; give it as in 0:0.1,300:0.01"),
        ({"lr_schedule": "0:0.1,"}, "'' is not ITERATION:RATE"),
        ({"lr_schedule": "0:fast"}, "'0:fast' is not"),
        ({"lr_schedule": "0:-1"}, "'0:-1' is not"),
        ({"lr_schedule": "0:nan"}, "'0:nan' is not"),
        ({"lr_schedule": "-3:0.1"}, "'-3:0.1' is not"),
        ({"lr_schedule": "0:0.1,300:0.01,300:0.001"}, "iteration 300 does not come after 300"),
        ({"lr_schedule": "0:0.1", "lr": 0.2}, "leave out --lr"),
    ],
)
def test_an_unusable_schedule_is_refused(fields, message):
    with pytest.raises(SchedcastError, match=message):
        Job(MLP, 4, **fields)
