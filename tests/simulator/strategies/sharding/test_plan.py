"""Plans of shards: gradients, updates and losses are those of one device, and no more bytes move than must."""

from collections import Counter
from random import Random

import pytest
import torch

from calibrate.numerics import Expected, References
from executors.binding import apply_views
from executors.cpu.backend import CpuBackend
from executors.tensors import job_tensors
from simulator.model.job import Job
from simulator.plan.pieces import box_of
from simulator.plan.task import COLLECTIVE, INPUT, TRANSFER
from simulator.strategies.sharding.configuration import Configuration, StepOptions
from simulator.strategies.sharding.configurations import place
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.plan import ShardedStep
from tests.support.applicable import core_groups
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


def planned(job, machine, configurations, **options):
    network = Network(job.graph())
    placed = [place(configurations.get(layer.name, Configuration()), machine) for layer in network.layers]
    return ShardedStep("deepa", job, machine, network, placed, StepOptions(**options)).plan()


def test_one_worker_for_each_layer_is_the_step_of_one_device():
    job, machine = Job("lenet5", 4), core_groups(2)
    plan = planned(job, machine, {}, fetch=False)
    assert [task.name for task in plan.tasks] == [*(op.name for op in job.graph().ops), "update"]
    assert {task.device for task in plan.tasks} == {"cpu:0"}


def test_layers_divided_alike_by_images_exchange_nothing_but_gradients():
    job, machine = Job("lenet5", 4), core_groups(2)
    by_images = dict.fromkeys((layer.name for layer in Network(job.graph()).layers), Configuration(n=2))
    plan = planned(job, machine, by_images, fetch=False)
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
    plan = planned(job, machine, {Network(job.graph()).layers[0].name: Configuration(h=2)}, fetch=False)
    rows = {value.device: value.shape[2] for value in plan.values.values() if value.kind == INPUT and len(value.shape) == 4}
    assert rows["cpu:0"] == rows["cpu:1"] > 14
