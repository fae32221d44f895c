"""Work of ops in all configurations at once, against the ops of each configuration."""

import pytest

from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.strategies.sharding.costs.compute import Prices, works
from simulator.strategies.sharding.local import local_ops
from simulator.strategies.sharding.network import Network
from tests.support.shard_networks import random_job


class OneByOne(CostModel):
    """A cost model that is asked for each op in each configuration."""

    by_work = False


def check(network, workers):
    machine = load_machine("k80x16")
    for layer in range(len(network.layers)):
        options = tuple(network.legal(layer, workers))
        all_works = works(network, layer, options)
        assert all_works is not None, "an extent that depends on several degrees"
        for at, configuration in enumerate(options):
            for own, op in zip(all_works, local_ops(network, layer, configuration, 0), strict=True):
                work = op.body.work(op)
                assert (own.classes[own.op_class[at]], own.bytes[at]) == (work.op_class, work.bytes), f"{op.name} {configuration}"
                assert own.flops[at] == pytest.approx(work.flops, rel=1e-12)
        one_by_one = Prices(machine, OneByOne(machine)).compute_s(network, layer, options)
        assert Prices(machine, None).compute_s(network, layer, options) == pytest.approx(one_by_one, rel=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_work_is_that_of_the_ops_of_each_configuration(seed, tmp_path):
    job, _ = random_job(seed, tmp_path, norms=seed % 2 == 0)
    check(Network(job.graph()), 6)


@pytest.mark.parametrize(("model", "size"), [("alexnet", 64), ("mobilenet_v2", 32)])
def test_work_of_built_in_models(model, size):
    """Also of convolutions in groups, whose classes depend on the groups that a worker has."""
    check(Network(Job(model, 4, size).graph()), 4)
