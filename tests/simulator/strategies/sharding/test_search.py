"""The best configuration of every layer of real networks."""

import pytest

from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.strategies.sharding import search
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import layer_called
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.search import candidates, cheapest_of, cost_tables, reduced
from tests.support.integer_programs import by_integer_program
from traces.errors import SchedcastError


def tables_of(model, batch, machine, cost="exact", size=None):
    return cost_tables(Network(Job(model, batch, size).graph()), load_machine(machine), None, cost=cost)


@pytest.mark.parametrize("cost", ["exact", "paper"])
@pytest.mark.parametrize(
    ("model", "batch", "machine"),
    [
        ("alexnet", 128, "p100x4"),
        ("vgg16", 128, "p100x4"),
        ("inception_v3_no_aux", 64, "p100x4"),
        ("alexnet", 512, "k80x16"),
        ("alexnet", 512, "4xp100x4"),
        ("vgg16", 512, "k80x16"),
        ("vgg16", 512, "4xp100x4"),
    ],
)
def test_it_is_the_optimum_of_an_integer_program(model, batch, machine, cost):
    """Inception-v3 on 16 devices: tests/benchmarks/division_search.py."""
    tables = tables_of(model, batch, machine, cost)
    result = reduced(tables)
    assert len(result.enumerated) == 2
    _, least = by_integer_program(tables.nodes(), tables.edges())
    assert result.cost == pytest.approx(least, rel=1e-6)
    assert tables.total(cheapest_of(tables)).step_s == pytest.approx(result.cost)


def test_alexnet_on_16_k80_divides_images_in_convolutions_and_channels_of_fc6_among_two():
    """As the paper's figure 9."""
    network = Network(Job("alexnet", 512).graph())
    chosen = cheapest_of(cost_tables(network, load_machine("k80x16"), None))
    fc6 = layer_called(network, "fc6")
    assert all(configuration == Configuration(n=16) for configuration in chosen[:fc6])
    assert chosen[fc6] == Configuration(c=2)


def test_the_auxiliary_head_joins_at_the_loss():
    tables = tables_of("inception_v3", 8, "p100x4", size=75)
    assert len(reduced(tables).enumerated) == 2


def test_candidates_differ_and_the_cheapest_sum_comes_first():
    tables = tables_of("vgg11", 64, "p100x4", size=64)
    several = candidates(tables, 4)
    seconds = [tables.total(chosen).step_s for chosen in several]
    assert several[0] == cheapest_of(tables)
    assert 1 < len({tuple(chosen) for chosen in several}) == len(several) <= 4
    assert seconds == sorted(seconds)


def test_a_configuration_that_a_layer_cannot_have_is_refused_with_the_possible_ones():
    tables = tables_of("alexnet", 8, "p100x4", size=64)
    with pytest.raises(
        SchedcastError,
        match=r"layer features.0 \(8 x 64 x 15 x 15\) cannot be divided into h=2: its degrees are n: 1, 2, 4; c: 1, 2, 4; h: 1, 3",
    ):
        tables.place(0, Configuration(h=2))


def test_a_network_that_does_not_reduce_is_refused_by_the_layers_that_remain(monkeypatch, tmp_path):
    (tmp_path / "dense.py").write_text(DENSE)
    tables = cost_tables(Network(Job(f"{tmp_path / 'dense.py'}:make", 2).graph()), load_machine("p100x4"), None)
    whole = cheapest_of(tables)
    assert len(whole) == len(tables.configurations)
    monkeypatch.setattr(search, "MOST_JOINT_CHOICES", 1)
    with pytest.raises(SchedcastError, match=r"the network does not reduce: \d+ layers .*deepa:config=FILE.json"):
        search.cheapest_of(tables)


#: Every convolution reads the outputs of all before it.
DENSE = """
import torch
from torch import nn


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.convolutions = nn.ModuleList(nn.Conv2d(4 * i, 4, 3, padding=1) for i in range(1, 4))
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        outputs = [self.first(x)]
        for convolution in self.convolutions:
            outputs.append(convolution(torch.cat(outputs, 1)))
        return self.last(outputs[-1].mean((2, 3)))


def make(batch):
    return Dense(), (torch.rand(batch, 3, 8, 8),), torch.zeros(batch, dtype=torch.long)
"""
