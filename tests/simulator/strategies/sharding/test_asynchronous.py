"""Training that applies each gradient a step late: its numbers, its time, its memory, and what it leaves as it is."""

import copy
from dataclasses import replace

import pytest
import torch

from calibrate.numerics import STEPS, References, compare, reference
from executors.cpu.backend import CpuBackend
from executors.reference import Reference
from executors.tensors import job_tensors
from executors.trainer import Trainer
from simulator.engine.costs.cost import Cost
from simulator.engine.memory.over_time import memory_over_time, peaks
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD, COLLECTIVE, UPDATE
from simulator.strategies.pipeline.staleness import staleness
from simulator.strategies.sharding.configuration import Configuration, StepOptions
from simulator.strategies.sharding.configurations import place
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.plan import ShardedStep
from tests.support import norm_models
from tests.support.applicable import core_groups
from tests.support.jobs import MLP, planned
from tests.support.shard_networks import random_job, random_plan

LIMIT = 1e-10


def by_images(job: Job, machine: Machine, **options) -> Plan:
    """All layers divided by images on two devices."""
    network = Network(job.graph())
    placed = [place(Configuration(n=2), machine)] * len(network.layers)
    return ShardedStep("deepa", job, machine, network, placed, StepOptions(fetch=False, **options)).plan()


# --- numbers


class OneStepLate(Reference):
    """Plain PyTorch, except that the optimizer gets the gradients of the step before: w[t + 2] = w[t + 1] - update(g[t])."""

    _held = None

    def _update(self) -> None:
        own = [parameter.grad for parameter in self.trained]
        self.apply()
        for parameter, gradient in zip(self.trained, own, strict=True):
            parameter.grad = gradient
        self._held = own
        self.steps += 1

    def apply(self) -> None:
        """Let the optimizer have the gradients that are held, if there are any."""
        if self._held is not None:
            for parameter, gradient in zip(self.trained, self._held, strict=True):
                parameter.grad = gradient
            self.optimizer.step()


def differences(job: Job, plan: Plan, machine: Machine) -> tuple[float, float]:
    """How far the parameters of a plan are from those of `OneStepLate`, and from those of plain PyTorch."""
    built, results = job.build(), []
    for kind in (OneStepLate, Reference):
        with built.restored():
            trainer = reference(job, built, same_masks=True)
            trainer.__class__ = kind
            for _ in range(STEPS):
                trainer.step()
            if isinstance(trainer, OneStepLate):
                trainer.apply()
            results.append({name: parameter.clone() for name, parameter in trainer.parameters().items()})
    program = CpuBackend(machine, cores=[0] * len(machine.devices)).load(plan, job_tensors(job, built, job.graph()), job.seed)
    program.run(STEPS)
    program.sync()
    late, plain = (program.parameter_difference(expected) for expected in results)
    return late, plain


@pytest.mark.parametrize(("seed", "devices", "optimizer"), [(50, 2, "momentum"), (52, 4, "adam"), (53, 4, "momentum")])
def test_any_mix_of_configurations_applies_each_gradient_a_step_late(seed, devices, optimizer, tmp_path):
    job, draw = random_job(seed, tmp_path)
    job, machine = replace(job, optimizer=optimizer), core_groups(devices, draw.choice([0.0, 1e9]))
    late, plain = differences(job, random_plan(job, machine, draw, update="asynchronous"), machine)
    assert late <= LIMIT
    assert plain > 1e3 * LIMIT, "otherwise this would prove nothing"


@pytest.mark.parametrize(("seed", "batch_norm"), [(21, "separate"), (33, "synchronized")])
def test_what_compares_plans_knows_it_from_the_plan(batch_norm, seed, tmp_path):
    """`validate` trains plain PyTorch with weights as stale as the plan's, which are one update behind, whatever the division."""
    job, draw = random_job(seed, tmp_path, norms=True)
    machine, built = core_groups(4), job.build()
    plan = random_plan(job, machine, draw, batch_norm=batch_norm, update="asynchronous")
    assert {lacking.forward for lacking in staleness(plan).values()} == {1}
    assert plan.semantics["staleness"] == 1
    numerics = compare(job, built, plan, CpuBackend(machine, cores=[0] * 4), References(job, built, STEPS, None).of(plan))
    assert max(numerics.max_grad_error, numerics.max_param_error) <= LIMIT


def test_numbers_follow_from_the_job_and_not_from_who_holds_a_parameter():
    """Nothing is summed for a linear layer divided by channel, but its update comes as late as all others."""
    job, machine = Job("lenet5", 4, precision="fp64"), core_groups()
    plan = planned("owt:update=asynchronous", job, machine)
    summed = {operand.value for task in plan.tasks if task.phase == COLLECTIVE for operand in task.mutates}
    alone = {name for name, gradient in plan.gradients.items() if gradient.value not in summed}
    assert {plan.values[name].source.value for name in alone} >= {"classifier.0.weight", "classifier.0.bias"}
    assert {(task.phase, task.lag) for task in plan.tasks if task.lag or task.phase == UPDATE} == {(UPDATE, 1)}
    assert differences(job, plan, machine)[0] <= LIMIT


def test_several_learning_rates():
    """A gradient is applied at the rate of its own step."""
    job, machine = Job(MLP, 8, precision="fp64", lr_schedule="0:0.5,2:0.1,4:0.02"), core_groups()
    plan, built = by_images(job, machine, update="asynchronous"), job.build()
    numerics = compare(job, built, plan, CpuBackend(machine), References(job, built, STEPS, None).of(plan))
    assert numerics.max_param_error <= LIMIT


def test_a_trainer_applies_what_is_held_before_it_gives_weights_back():
    job, machine = Job("lenet5", 4, precision="fp64", optimizer="momentum"), core_groups()
    built, plan = job.build(), planned("owt:update=asynchronous", job, machine)
    late = OneStepLate(copy.deepcopy(built.module), built.inputs, built.target, built.loss, job.optimizer, job.form, job.hyper)
    trainer = Trainer(plan, job, built, CpuBackend(machine))
    for _ in range(3):
        assert trainer.step(built.inputs, built.target) == pytest.approx(late.step().item(), abs=LIMIT)
    trainer.sync()
    late.apply()
    for name, tensor in late.module.state_dict().items():
        torch.testing.assert_close(trainer.module.state_dict()[name], tensor, rtol=0, atol=LIMIT)


# --- time


def step(machine: Machine, **options) -> Plan:
    """Two linear layers, of 25 and of 18 parameters."""
    return by_images(Job(MLP, 8), machine, **options)


def linked(bytes_per_s: float) -> Machine:
    machine = core_groups(link_bytes_per_s=bytes_per_s)
    return replace(machine, devices=tuple(replace(device, wake_s=0.0) for device in machine.devices))


def timeline(plan: Plan, machine: Machine, other_s: float = 0.0):
    """Every product of backward takes a second, and every other op `other_s`."""
    seconds = [0.0 if task.phase == COLLECTIVE else 1.0 if task.phase == BACKWARD and "mm" in task.name else other_s for task in plan.tasks]
    return simulate(plan, machine, [Cost("stated", s, s) for s in seconds])


@pytest.mark.parametrize(
    ("bytes_per_s", "overlap", "synchronous_s", "asynchronous_s"),
    [(80.0, True, 4.3, 3.0), (80.0, False, 5.3, 3.0), (40.0, True, 6.6, 4.6), (40.0, False, 7.6, 4.6)],
)
def test_what_is_exposed_of_sums_disappears(bytes_per_s, overlap, synchronous_s, asynchronous_s):
    """Backward takes 3 s, and is done with the second layer after 2 s.

    At 80 bytes/s, the larger half of the second layer's 18 gradients takes 0.5 s there and 0.5 s back, that of the first layer's 25
    gradients 1.3 s. A step late, all of it is hidden; at 40 bytes/s the link, busy for 4.6 s, is all that a step waits for.
    """
    machine = linked(bytes_per_s)
    for update, expected_s in (("baseline", synchronous_s), ("asynchronous", asynchronous_s)):
        plan = step(machine, overlap=overlap, update=update)
        assert timeline(plan, machine).step_s == pytest.approx(expected_s)


def test_sums_run_beside_the_next_step():
    machine = linked(80.0)
    plan = step(machine, update="asynchronous")
    simulated = timeline(plan, machine)
    spans = [span for span in simulated.spans if span.device == "cpu:0" and span.iteration == 2 and span.end_s > span.start_s]
    begin_s = min(span.start_s for span in spans)
    seen = [(span.task, round(span.start_s - begin_s, 9), round(span.end_s - begin_s, 9)) for span in spans]
    assert sorted(seen, key=lambda each: each[2]) == [
        ("2/mm.dX", 0.0, 1.0),
        ("2/mm.dW", 1.0, 2.0),
        ("reduce 2/0/cpu:1>cpu:0", 2.0, 2.5),
        ("reduce 2/1/cpu:1>cpu:0", 2.5, 2.9),
        ("0/mm.dW", 2.0, 3.0),
        ("reduce 0/0/cpu:1>cpu:0", 3.0, 3.6),
        ("reduce 0/1/cpu:1>cpu:0", 3.65, 4.3),
    ]  # fmt: skip
    updated = next(span for span in simulated.spans if span.task == "update" and span.iteration == 2)
    assert round(updated.start_s - begin_s, 9) == 6.0, "after the backward of the next step, which begins at 3 s"
    assert updated.period == updated.iteration + 1


@pytest.mark.parametrize("update", ["baseline", "asynchronous"])
def test_statistics_do_not_queue_behind_gradients(update):
    """The forward of the next step waits for the sums of synchronized batch-norms, while gradients of this one may be under way."""
    job = Job(f"{norm_models.__file__}:batch_norm", 8)
    plan = by_images(job, core_groups(), batch_norm="synchronized", update=update)
    lanes = {"reduce": set(), "statistics": set()}
    for task in plan.tasks:
        if task.phase == COLLECTIVE:
            lanes["reduce" if task.name.startswith("reduce ") else "statistics"].add(task.lane)
    assert all(lanes.values())
    assert lanes["reduce"].isdisjoint(lanes["statistics"]) == (update == "asynchronous")


# --- memory


def test_gradients_of_two_steps_are_held_but_one_copy_of_the_parameters():
    machine = linked(80.0)
    held = {}
    for update in ("baseline", "asynchronous"):
        plan = step(machine, update=update)
        held[update] = peaks(memory_over_time(plan, timeline(plan, machine, 1.0).spans)), plan.carried
    gradients = 4 * (20 + 5 + 15 + 3)
    assert held["asynchronous"][1] == held["baseline"][1]
    for device in ("cpu:0", "cpu:1"):
        assert held["asynchronous"][0][device] - held["baseline"][0][device] == gradients


# --- the strategies


@pytest.mark.parametrize(
    "text", ["owt:server=all-reduce", "owt:server=distributed", "owt:server=host", "deepa:simulated=1", "data-parallel:server=distributed"]
)
def test_strategies_with_every_server(text):
    job, machine = Job("lenet5", 4, precision="fp64", optimizer="adam"), core_groups()
    plan, built = planned(f"{text},update=asynchronous", job, machine), job.build()
    assert plan.semantics["staleness"] == 1
    numerics = compare(job, built, plan, CpuBackend(machine), References(job, built, STEPS, None).of(plan))
    assert max(numerics.max_grad_error, numerics.max_param_error) <= LIMIT
