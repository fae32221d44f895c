"""Plans of shards: gradients, updates and losses are those of one device, and no more bytes move than must."""

import copy
from collections import Counter
from dataclasses import replace
from math import inf
from random import Random

import pytest
import torch

from calibrate.numerics import STEPS as ALL_STEPS
from calibrate.numerics import Expected, References, reference
from executors.binding import apply_views
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
from simulator.plan.task import BACKWARD, COLLECTIVE, FORWARD, INPUT, PARAMETER, TRANSFER, UPDATE
from simulator.plan.tensors import box_of
from simulator.strategies import registry as strategies
from simulator.strategies.pipeline.staleness import staleness
from simulator.strategies.sharding.configuration import Configuration, StepOptions
from simulator.strategies.sharding.configurations import place
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.plan import ShardedStep
from tests.support import models
from tests.support.applicable import core_groups
from tests.support.jobs import MLP, job_of, planned
from tests.support.same_numbers import largest_error
from tests.support.shard_networks import random_job, random_plan

STEPS = 2
LIMIT = 1e-10


def run(job, built, plan, machine):
    """Two steps of a plan, all devices on one core."""
    backend = CpuBackend(machine, cores=[0] * len(machine.devices))
    keep = tuple({operand.value for operand in plan.gradients.values()})
    program = backend.load(plan, job_tensors(job, built, job.graph()), job.seed, keep=keep)
    program.run(STEPS)
    program.sync()
    return program


def gradient(plan, program, parameter, like):
    """The whole gradient of a parameter, from its pieces."""
    result = torch.full_like(like, float("nan"))
    for name, source in plan.gradient_sources.items():
        if source.value == parameter:
            operand = plan.gradients[name]
            result[tuple(slice(*part) for part in box_of(source))] = apply_views(program.kept[operand.value], operand)
    return result


def check(job, built, plan, machine, expected):
    program = run(job, built, plan, machine)
    for name, exact in expected.gradients.items():
        scale = max(float(exact.abs().max()), 1e-4)  # that of a bias before a batch-norm is 0
        assert float((gradient(plan, program, name, exact) - exact).abs().max()) <= LIMIT * scale, name
    assert program.parameter_difference(expected.parameters) <= LIMIT


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(8))
def test_any_mix_of_configurations_trains_as_one_device_does(seed, tmp_path):
    job, draw = random_job(seed, tmp_path)
    built = job.build()
    expected = Expected.of(job, built, STEPS)
    for _ in range(3):
        machine = core_groups(draw.choice([2, 4]), draw.choice([0.0, 1e9]))
        check(job, built, random_plan(job, machine, draw), machine, expected)


def test_batch_norm_divided_by_channels_is_exact(tmp_path):
    job, draw = random_job(3, tmp_path, norms=True)
    built, machine = job.build(), core_groups(2)

    def fits(network, layer, configuration):
        norms = any("batch_norm" in job.graph().ops[index].name for index in network.layers[layer].ops)
        return not norms or configuration.replicas == 1

    expected = Expected.of(job, built, STEPS)
    for _ in range(4):
        check(job, built, random_plan(job, machine, draw, fits), machine, expected)


@pytest.mark.parametrize("seed", range(3))
def test_batch_norm_has_statistics_of_its_own_on_each_part(seed, tmp_path):
    job, draw = random_job(20 + seed, tmp_path, norms=True)
    built, machine = job.build(), core_groups(4)
    plan = random_plan(job, machine, draw)
    assert plan.semantics["batch_norm"] == "statistics per shard"
    check(job, built, plan, machine, References(job, built, STEPS, None).of(plan))


@pytest.mark.parametrize("seed", range(3))
def test_synchronized_batch_norm_is_exact(seed, tmp_path):
    job, draw = random_job(30 + seed, tmp_path, norms=True)
    built, machine = job.build(), core_groups(4)
    plan = random_plan(job, machine, draw, batch_norm="synchronized")
    assert "batch_norm" not in plan.semantics
    check(job, built, plan, machine, Expected.of(job, built, STEPS))


def divided(job, machine, configurations, **options):
    network = Network(job.graph())
    placed = [place(configurations.get(layer.name, Configuration()), machine) for layer in network.layers]
    return ShardedStep("deepa", job, machine, network, placed, StepOptions(**options)).plan()


def test_one_worker_for_each_layer_is_the_step_of_one_device():
    job, machine = Job("lenet5", 4), core_groups(2)
    plan = divided(job, machine, {}, fetch=False)
    assert [task.name for task in plan.tasks] == [*(op.name for op in job.graph().ops), "update"]
    assert {task.device for task in plan.tasks} == {"cpu:0"}


def test_layers_divided_alike_by_images_exchange_nothing_but_gradients():
    job, machine = Job("lenet5", 4), core_groups(2)
    by_images = dict.fromkeys((layer.name for layer in Network(job.graph()).layers), Configuration(n=2))
    plan = divided(job, machine, by_images, fetch=False)
    phases = Counter(task.phase for task in plan.tasks)
    assert phases[TRANSFER] == 0
    assert phases[COLLECTIVE] > 0
    assert len(plan.losses) == 2


def _mask(shape, boxes):
    mask = torch.zeros(shape, dtype=torch.bool)
    for box in boxes:
        mask[tuple(slice(max(0, first), end) for first, end in box)] = True
    return mask


def _lacking_bytes(network, placed):
    """Bytes of activations that workers need and do not own, by the boxes alone."""
    graph, total = network.graph, 0
    for edge in network.edges:
        value = graph.values[graph.ops[edge.reader].inputs[edge.position].value]
        owner, reader = placed[edge.source], placed[edge.target]
        for device, box in zip(reader.devices, network.boxes(edge.target, reader.configuration), strict=True):
            needed = network.needed(edge.reader, box)[edge.position]
            owned = [
                part for place, part in zip(owner.devices, network.boxes(edge.source, owner.configuration), strict=True) if place == device
            ]
            lacking = _mask(value.shape, [needed] if needed else []) & ~_mask(value.shape, owned)
            total += 4 * int(lacking.sum())
    return total


@pytest.mark.parametrize("seed", range(6))
def test_bytes_between_devices_are_those_that_workers_lack(seed):
    job, machine, draw = Job("lenet5", 4), core_groups(4, 1e9), Random(seed)
    network = Network(job.graph())
    placed = [place(draw.choice(list(network.legal(layer, 4))), machine) for layer in range(len(network.layers))]
    plan = ShardedStep("deepa", job, machine, network, placed, StepOptions(fetch=False)).plan()
    sent = sum(task.body.moved_bytes(task) for task in plan.tasks if task.phase == TRANSFER)
    assert sent == 2 * _lacking_bytes(network, placed)  # and the gradients of all that back again


def test_each_device_is_fed_with_what_its_worker_reads():
    job, machine = Job("lenet5", 4), core_groups(2)
    plan = divided(job, machine, {Network(job.graph()).layers[0].name: Configuration(h=2)}, fetch=False)
    rows = {value.device: value.shape[2] for value in plan.values.values() if value.kind == INPUT and len(value.shape) == 4}
    assert rows["cpu:0"] == rows["cpu:1"] > 14


# Ops and views that no rule divides run on one device, on whole tensors, and the plan says so.


#: The kinds of ops of each model that run on one device.
MODELS = {
    "sequence_first": {"mean"},
    "one_dimensional": {"amax", "convolution"},
    "empty_cache": {"amax", "bmm", "new_empty", "new_ones", "_softmax"},
    "viewed_parameters": {"amax"},
    "spectral": {"_fft_c2r", "_fft_r2c"},
}


@pytest.fixture(scope="module")
def backend():
    return CpuBackend(core_groups(2))


def numerics(factory: str, strategy: str, backend: CpuBackend, batch: int = 4):
    """The plan of a strategy, and how far its numbers are from plain PyTorch's after two steps."""
    job = job_of(factory, batch)
    plan = planned(strategy, job, backend.machine)
    return plan, largest_error(job, plan, backend, 2)


@pytest.mark.parametrize("strategy", ["deepa", "owt"])
@pytest.mark.parametrize("model", MODELS)
def test_numbers_are_those_of_plain_pytorch(model, strategy, backend):
    plan, error = numerics(model, strategy, backend)
    assert set(plan.semantics["on_one_device"]) == MODELS[model]
    assert error <= 1e-10


@pytest.mark.parametrize("strategy", ["deepa", "owt", "owt:update=backward-fusion"])
def test_rows_that_no_worker_reads_are_held_and_decay(strategy, backend):
    job = job_of("long_positions", optimizer="adamw")
    plan = planned(strategy, job, backend.machine)
    assert sum(source.shape[0] for source in plan.gradient_sources.values() if source.value == "positions") == 18
    assert largest_error(job, plan, backend) <= 1e-10


def test_rows_that_no_device_holds_are_an_error(backend, monkeypatch):
    monkeypatch.setattr(ShardedStep, "_hold_rest", lambda step: None)
    assert numerics("long_positions", "owt", backend)[1] == inf


@pytest.mark.parametrize("batch", [8, 12], ids=["as large as the bias", "with parts as large as the mask"])
@pytest.mark.parametrize("strategy", ["data-parallel", "gpipe:microbatches=2"])
def test_inputs_without_a_batch_dimension_are_not_split(strategy, batch, backend):
    assert numerics("masked", strategy, backend, batch)[1] <= 1e-10


# Divided layers that are updated one by one, and sums of gradients in the order in which the next forward needs them.


def owt_plan(text: str, **fields) -> Plan:
    strategy, options = strategies.parse(text)
    machine = core_groups()
    plan = strategy.plan(Job("lenet5", 4, **fields), machine, None, options)
    plan.validate(machine)
    return plan


@pytest.mark.sampled(3)
@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize(("update", "seed", "devices"), [("forward-fusion", 50, 2), ("backward-fusion", 52, 4), ("asynchronous", 53, 4)])
def test_any_mix_of_configurations_trains_as_plain_pytorch_does(update, seed, devices, priorities, tmp_path):
    job, draw = random_job(seed, tmp_path)
    machine = core_groups(devices, draw.choice([0.0, 1e9]))
    for _ in range(2):
        plan = random_plan(job, machine, draw, update=update, priorities=priorities)
        assert largest_error(job, plan, CpuBackend(machine, cores=[0] * devices)) <= LIMIT


def test_each_layer_is_updated_once_on_each_of_its_devices():
    for update in ("forward-fusion", "backward-fusion"):
        plan = owt_plan(f"owt:update={update}", optimizer="adam")
        updated = sorted(name for task in plan.tasks if task.phase == UPDATE for name in task.body.parameters)
        assert updated == sorted(value.name for value in plan.values.values() if value.kind == PARAMETER), update


def test_forward_fusion_updates_just_before_the_next_forward_and_backward_fusion_just_after_the_sum():
    late, early = (owt_plan(f"owt:update={update}") for update in ("forward-fusion", "backward-fusion"))
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
    plan = owt_plan("owt:priorities=on,update=forward-fusion")
    first, second = (
        {(task.stream, task.priority) for task in plan.tasks if task.phase == COLLECTIVE and task.name.startswith(f"reduce {layer}/")}
        for layer in ("features.0", "features.3")
    )
    ((first_stream, first_priority),), ((second_stream, second_priority),) = first, second
    assert first_priority < second_priority < 0
    assert first_stream != second_stream


# Training that applies each gradient a step late: its numbers, its time, its memory, and what it leaves as it is.


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
            for _ in range(ALL_STEPS):
                trainer.step()
            if isinstance(trainer, OneStepLate):
                trainer.apply()
            results.append({name: parameter.clone() for name, parameter in trainer.parameters().items()})
    program = CpuBackend(machine, cores=[0] * len(machine.devices)).load(plan, job_tensors(job, built, job.graph()), job.seed)
    program.run(ALL_STEPS)
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
    machine = core_groups(4)
    plan = random_plan(job, machine, draw, batch_norm=batch_norm, update="asynchronous")
    assert {lacking.forward for lacking in staleness(plan).values()} == {1}
    assert plan.semantics["staleness"] == 1
    assert largest_error(job, plan, CpuBackend(machine, cores=[0] * 4)) <= LIMIT


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
    assert largest_error(job, by_images(job, machine, update="asynchronous"), CpuBackend(machine)) <= LIMIT


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
    job = Job(f"{models.__file__}:batch_norm", 8)
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
    plan = planned(f"{text},update=asynchronous", job, machine)
    assert plan.semantics["staleness"] == 1
    assert largest_error(job, plan, CpuBackend(machine)) <= LIMIT
