"""The best configuration of every layer of real networks."""

import random
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.strategies.sharding import search
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import layer_called
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.search import IrreducibleError, candidates, cheapest, cheapest_of, cost_tables, min_plus, reduced
from tests.support.refusals import refuses
from traces.errors import Code

# Node and edge elimination: the exact minimum, by brute force on small graphs and by an integer program on larger ones.


def chain(*pairs: tuple[int, int]) -> list[tuple[int, int, np.ndarray]]:
    """Edges that cost 1 if both ends choose differently."""
    return [(u, v, 1.0 - np.eye(2)) for u, v in pairs]


def random_graph(rng: random.Random, nodes: int, most_choices: int):
    """A random directed acyclic graph with random costs; some pairs of nodes have several edges."""
    sizes = [rng.randint(1, most_choices) for _ in range(nodes)]
    draw = np.random.default_rng(rng.getrandbits(32))
    pairs = [(u, v) for v in range(nodes) for u in range(v) if rng.random() < rng.choice((0.3, 0.7))]
    pairs += [pair for pair in pairs if rng.random() < 0.2]
    return [draw.uniform(0, 9, size) for size in sizes], [(u, v, draw.uniform(0, 9, (sizes[u], sizes[v]))) for u, v in pairs]


def total(nodes, edges, choices) -> float:
    return sum(node[c] for node, c in zip(nodes, choices, strict=True)) + sum(table[choices[u], choices[v]] for u, v, table in edges)


def by_integer_program(nodes: Sequence[np.ndarray], edges: Sequence[tuple[int, int, np.ndarray]]) -> tuple[tuple[int, ...], float]:
    """The choice of every node and the smallest sum of costs: an oracle that knows nothing of eliminations.

    A variable for each choice of a node, one of which is 1. Edges are linearized: a variable for each pair of choices at the ends of an
    edge; the variables of one choice of an end add up to that choice.
    """
    starts = np.cumsum([0, *(node.size for node in nodes)])
    costs = [np.asarray(node, float) for node in nodes]
    rows, columns, values, sums = [], [], [], []
    for node, start in zip(nodes, starts, strict=False):
        _add(rows, columns, values, sums, [(start + choice, 1.0) for choice in range(node.size)], 1.0)
    first = int(starts[-1])
    for u, v, table in edges:
        pairs = first + np.arange(table.size).reshape(table.shape)
        for place, own in enumerate(pairs):
            _add(rows, columns, values, sums, [(starts[u] + place, -1.0), *((pair, 1.0) for pair in own)], 0.0)
        for place, own in enumerate(pairs.T):
            _add(rows, columns, values, sums, [(starts[v] + place, -1.0), *((pair, 1.0) for pair in own)], 0.0)
        costs.append(table.ravel())
        first += table.size
    objective = np.concatenate(costs)
    whole = np.concatenate([np.ones(starts[-1]), np.zeros(first - starts[-1])])
    matrix = coo_array((values, (rows, columns)), shape=(len(sums), first)).tocsr()
    result = milp(objective, integrality=whole, bounds=Bounds(0, 1), constraints=LinearConstraint(matrix, sums, sums))
    assert result.status == 0, result.message
    choices = tuple(int(np.argmax(result.x[start : start + node.size])) for node, start in zip(nodes, starts, strict=False))
    return choices, float(result.fun)


def _add(rows: list, columns: list, values: list, sums: list, terms: list[tuple[int, float]], equals: float) -> None:
    for column, value in terms:
        rows.append(len(sums))
        columns.append(int(column))
        values.append(value)
    sums.append(equals)


def test_a_chain_chooses_alike_unless_a_node_gains_more_than_two_changes_cost():
    nodes = [np.array([0.0, 1.5]), np.array([1.0, 0.0]), np.array([0.0, 1.5])]
    assert cheapest(nodes, chain((0, 1), (1, 2))).choices == (0, 0, 0)
    nodes[1] = np.array([3.0, 0.0])
    result = cheapest(nodes, chain((0, 1), (1, 2)))
    assert (result.choices, result.cost) == ((0, 1, 0), 2.0)


def test_branches_that_meet_again_reduce_to_two_nodes():
    nodes = [np.zeros(2) for _ in range(6)]
    result = cheapest(nodes, chain((0, 1), (1, 2), (0, 3), (3, 2), (0, 2), (2, 4), (4, 5)))
    assert len(result.enumerated) == 2
    assert result.cost == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_it_equals_brute_force_on_random_graphs(seed):
    rng = random.Random(seed)
    for _ in range(150):
        nodes, edges = random_graph(rng, rng.randint(1, 6), 3)
        result = cheapest(nodes, edges)
        least = min(total(nodes, edges, choices) for choices in product(*(range(node.size) for node in nodes)))
        assert result.cost == pytest.approx(least, rel=1e-12)
        assert result.cost == pytest.approx(total(nodes, edges, result.choices), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_it_equals_an_integer_program_beyond_brute_force(seed):
    rng = random.Random(seed)
    nodes, edges = random_graph(rng, 9, 6)
    choices, least = by_integer_program(nodes, edges)
    assert cheapest(nodes, edges).cost == pytest.approx(least, rel=1e-9)
    assert total(nodes, edges, choices) == pytest.approx(least, rel=1e-9)


def test_infinite_costs_are_avoided():
    nodes = [np.array([np.inf, 5.0]), np.array([0.0, np.inf]), np.zeros(2)]
    assert cheapest(nodes, chain((0, 1), (1, 2))).choices == (1, 0, 0)


def test_separate_nodes_choose_for_themselves():
    assert cheapest([np.array([2.0, 1.0, 3.0])] * 4, []).choices == (1, 1, 1, 1)


def test_no_nodes_cost_nothing():
    assert cheapest([], []).cost == 0.0


def test_a_graph_that_does_not_reduce_is_refused_if_it_has_too_many_joint_choices(monkeypatch):
    monkeypatch.setattr(search, "MOST_JOINT_CHOICES", 100)
    nodes = [np.zeros(2)] * 4 + [np.zeros(4)] * 4
    dense = [(u, v, np.zeros((nodes[u].size, nodes[v].size))) for v in range(8) for u in range(v)]
    with pytest.raises(IrreducibleError) as refusal:
        cheapest(nodes, dense)
    assert refusal.value.nodes == tuple(range(8))


def test_costs_of_an_edge_must_fit_its_nodes():
    with pytest.raises(ValueError, match=r"edge 0 > 1 has costs \(2, 2\), its nodes have 2 and 3"):
        cheapest([np.zeros(2), np.zeros(3)], chain((0, 1)))


def test_min_plus_takes_the_cheapest_way_through_the_middle():
    first, second = np.array([[1.0, 5.0]]), np.array([[9.0, 2.0], [1.0, 1.0]])
    assert min_plus(first, second).tolist() == [[6.0, 3.0]]


def tables_of(model, batch, machine, cost="exact", size=None):
    return cost_tables(Network(Job(model, batch, size).graph()), load_machine(machine), None, cost=cost)


@pytest.mark.thorough
@pytest.mark.parametrize("cost", ["exact", "paper"])
@pytest.mark.parametrize(
    ("model", "batch", "machine"),
    [
        ("alexnet", 128, "p100x4"), ("vgg16", 128, "p100x4"), ("inception_v3_no_aux", 64, "p100x4"), ("alexnet", 512, "k80x16"),
        ("alexnet", 512, "4xp100x4"), ("vgg16", 512, "k80x16"), ("vgg16", 512, "4xp100x4"),
    ],
)  # fmt: skip
def test_it_is_the_optimum_of_an_integer_program(model, batch, machine, cost):
    tables = tables_of(model, batch, machine, cost)
    result = reduced(tables)
    assert len(result.enumerated) == 2
    _, least = by_integer_program(tables.nodes(), tables.edges())
    assert result.cost == pytest.approx(least, rel=1e-6)
    assert tables.total(cheapest_of(tables)).step_s == pytest.approx(result.cost)


def test_on_16_k80_the_paper_s_costs_choose_as_published_only_if_equal_configurations_are_charged_what_moves():
    """Figure 9: images in convolutions, channels of fc6 among two. As printed, twelve layers divided by channel would cost nothing."""
    network, machine = Network(Job("alexnet", 512).graph()), load_machine("k80x16")
    fc6 = layer_called(network, "fc6")
    repaired, printed = (cheapest_of(cost_tables(network, machine, None, cost=cost)) for cost in ("repaired", "paper"))
    assert all(configuration == Configuration(n=16) for configuration in repaired[:fc6])
    assert repaired[fc6] == Configuration(c=2)
    assert printed[:12] == [Configuration(c=16)] * 12


@pytest.mark.thorough
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
    with refuses(
        Code.REQUEST, r"layer features.0 \(8 x 64 x 15 x 15\) cannot be divided into h=2: its degrees are n: 1, 2, 4; c: 1, 2, 4; h: 1, 3"
    ):
        tables.place(0, Configuration(h=2))


def test_a_network_that_does_not_reduce_is_refused_by_the_layers_that_remain(monkeypatch, tmp_path):
    (tmp_path / "dense.py").write_text(DENSE)
    tables = cost_tables(Network(Job(f"{tmp_path / 'dense.py'}:make", 2).graph()), load_machine("p100x4"), None)
    whole = cheapest_of(tables)
    assert len(whole) == len(tables.configurations)
    monkeypatch.setattr(search, "MOST_JOINT_CHOICES", 1)
    with refuses(Code.MODEL, r"the network does not reduce: \d+ layers .*deepa:config=FILE.json"):
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
