"""The part of a machine that is busy longest, for many sets of copies at once."""

import numpy as np
import pytest

from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.strategies.sharding.costs.compute import Prices, works
from simulator.strategies.sharding.costs.copies import Busiest
from simulator.strategies.sharding.local import local_ops
from simulator.strategies.sharding.network import Network
from tests.support.shard_networks import random_job

# Work of ops in all configurations at once, against the ops of each configuration.


class OneByOne(CostModel):
    """A cost model that is asked for each op in each configuration."""

    by_work = False


def check(network, workers, machine="k80x16", precision="fp32"):
    machine = load_machine(machine)
    for layer in range(len(network.layers)):
        options = tuple(network.legal(layer, workers))
        all_works = works(network, layer, options)
        assert all_works is not None, "an extent that depends on several degrees"
        for at, configuration in enumerate(options):
            for own, op in zip(all_works, local_ops(network, layer, configuration, 0), strict=True):
                work = op.body.work(op)
                assert (own.classes[own.op_class[at]], own.bytes[at]) == (work.op_class, work.bytes), f"{op.name} {configuration}"
                assert own.flops[at] == pytest.approx(work.flops, rel=1e-12)
        one_by_one = Prices(machine, OneByOne(machine, precision=precision)).compute_s(network, layer, options)
        assert Prices(machine, CostModel(machine, precision=precision)).compute_s(network, layer, options) == pytest.approx(
            one_by_one, rel=1e-12
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(12))
def test_work_is_that_of_the_ops_of_each_configuration(seed, tmp_path):
    job, _ = random_job(seed, tmp_path, norms=seed % 2 == 0)
    check(Network(job.graph()), 6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("model", "size"), [("alexnet", 64), ("mobilenet_v2", 32)])
def test_work_of_built_in_models(model, size):
    """Also of convolutions in groups, whose classes depend on the groups that a worker has."""
    check(Network(Job(model, 4, size).graph()), 4)


def dense(parts, moved):
    """Seconds of bytes [..., source, ..., target] by every part in turn."""
    return np.max(
        [np.einsum("sitj,ij->st", moved, byte_s) + np.einsum("sitj,ij->st", moved > 0, copy_s) for byte_s, copy_s in parts], axis=0
    )


def drawn_part(draw, size):
    """Copies from some devices to some others; of a third of the parts, each takes a time of its own."""
    used = np.outer(draw.random(size) < 0.5, draw.random(size) < 0.7)
    kinds = draw.integers(1, 4, (size, size)) if draw.random() < 0.3 else draw.integers(1, 4)
    return used * kinds * np.array([1e-9, (draw.random() < 0.5) * 1e-6])[:, None, None]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_largest_time_of_any_part(seed):
    draw = np.random.default_rng(seed)
    size = int(draw.integers(2, 7))
    parts = np.array([drawn_part(draw, size) for _ in range(draw.integers(1, 9))])
    busiest = Busiest(parts)
    moved = draw.integers(0, 3, (4, size, 3, size)) * 1e3
    moved[:, np.arange(size), :, np.arange(size)] = 0
    there, back = dense(parts, moved), dense(parts, moved.transpose(2, 3, 0, 1)).T
    assert busiest.seconds(moved) == pytest.approx(there, rel=1e-12)
    assert busiest.seconds(moved, back=True) == pytest.approx(there + back, rel=1e-12)


def test_links_alike_in_both_directions_take_as_long_on_the_way_back():
    there = np.zeros((1, 2, 3, 3))
    there[0, 0, 0, 1:] = 1e-9
    assert not Busiest(there).both_ways
    assert Busiest(np.concatenate([there, there.swapaxes(2, 3)])).both_ways


def test_a_part_that_another_one_covers_changes_nothing():
    parts = np.zeros((3, 2, 2, 2))
    parts[:, 0] = np.array([1e-9, 2e-9, 1e-9])[:, None, None]
    moved = np.array([[0, 5.0], [3.0, 0]]).reshape(1, 2, 1, 2)
    assert Busiest(parts).seconds(moved).item() == pytest.approx(16e-9)


def test_without_links_nothing_takes_time():
    assert Busiest(np.zeros((0, 2, 2, 2))).seconds(np.ones((1, 2, 1, 2))).item() == 0


def test_products_on_tensor_cores_are_priced_by_their_shapes_in_every_configuration():
    check(Network(Job("alexnet", 16, 64).graph()), 8, "2xdgx-a100", "tf32")
