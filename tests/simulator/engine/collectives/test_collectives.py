"""Collectives: the rounds of each algorithm by hand and by property, their cost on links, and the chunks of their operands."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.collectives.rounds import DISTRIBUTED, RING, SERVER, TREE, Move, rounds
from simulator.engine.collectives.tasks import Group, chunks
from simulator.engine.links import Links
from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, Link
from simulator.plan.bodies.copy import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Collective
from simulator.plan.task import COLLECTIVE, Operand
from tests.support import tiny

ALGORITHMS = (RING, TREE, DISTRIBUTED, SERVER)


def run(operation: str, algorithm: str, data: list[list[set[int]]], root: int = 0) -> list[list[set[int]]]:
    """Run a collective on `data[rank][chunk]`, the set of ranks in the sum. Returns the final sets; no rank may be added twice."""
    ranks = len(data)
    held = [[set(chunk) for chunk in own] for own in data]
    host: list[set[int] | None] = [None] * ranks
    for moves in rounds(operation, algorithm, ranks, root):
        before = [[set(chunk) for chunk in own] for own in held]
        for move in moves:
            for chunk in range(ranks) if move.chunk is None else [move.chunk]:
                coming = host[chunk] if move.source < 0 else before[move.source][chunk]
                place = host if move.target < 0 else held[move.target]
                if move.add:
                    assert not place[chunk] & coming
                    place[chunk] = place[chunk] | coming
                else:
                    place[chunk] = set(coming)
    return held


def own_data(ranks: int) -> list[list[set[int]]]:
    return [[{rank} for _ in range(ranks)] for rank in range(ranks)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", range(1, 18))
def test_an_all_reduce_gives_every_rank_the_sum_of_all(algorithm, ranks):
    every = [[set(range(ranks))] * ranks] * ranks
    assert run(ALL_REDUCE, algorithm, own_data(ranks)) == every
    if algorithm == SERVER:
        assert run(ALL_REDUCE, algorithm, own_data(ranks), root=ranks - 1) == every
        assert run(ALL_REDUCE, algorithm, own_data(ranks), root=-1) == every


@pytest.mark.parametrize("algorithm", [RING, DISTRIBUTED])
@pytest.mark.parametrize("ranks", range(2, 18))
def test_a_reduce_scatter_leaves_chunk_r_with_rank_r_and_an_all_gather_spreads_it(algorithm, ranks):
    scattered = run(REDUCE_SCATTER, algorithm, own_data(ranks))
    assert [scattered[rank][rank] for rank in range(ranks)] == [set(range(ranks))] * ranks
    only_own = [[{rank} if chunk == rank else set() for chunk in range(ranks)] for rank in range(ranks)]
    assert run(ALL_GATHER, algorithm, only_own) == [[{chunk} for chunk in range(ranks)]] * ranks


def test_a_ring_of_three_by_hand():
    assert rounds(ALL_REDUCE, RING, 3) == [
        [Move(0, 2, 1, True), Move(1, 0, 2, True), Move(2, 1, 0, True)],
        [Move(0, 2, 0, True), Move(1, 0, 1, True), Move(2, 1, 2, True)],
        [Move(0, 2, 2, False), Move(1, 0, 0, False), Move(2, 1, 1, False)],
        [Move(0, 2, 1, False), Move(1, 0, 2, False), Move(2, 1, 0, False)],
    ]


def test_a_tree_of_five_by_hand():
    up = [[(0, 1), (2, 3)], [(0, 2)], [(0, 4)]]
    expected = [[Move(low, high, None, True) for low, high in level] for level in up]
    expected += [[Move(high, low, None, False) for low, high in level] for level in reversed(up)]
    assert rounds(ALL_REDUCE, TREE, 5) == expected


@given(st.lists(st.lists(st.integers(1, 9), max_size=3).map(tuple), min_size=1, max_size=6), st.integers(1, 9))
def test_chunks_are_a_partition_and_even_up_to_one_entry(shapes, count):
    operands = [Operand(f"v{i}", shape, (1,) * len(shape), "float32") for i, shape in enumerate(shapes)]
    cut = chunks(operands, count)
    assert len(cut) == count
    for position, operand in enumerate(operands):
        rows = operand.shape[0] if operand.shape else 1
        covered = [row for chunk in cut for piece in chunk if piece.position == position for row in range(piece.first, piece.end)]
        assert covered == list(range(rows))
    largest = max(operand.elements // (operand.shape[0] if operand.shape else 1) for operand in operands)
    even = sum(operand.elements for operand in operands) / count
    for chunk in cut:
        elements = sum((p.end - p.first) * operands[p.position].elements // ((operands[p.position].shape or (1,))[0]) for p in chunk)
        assert abs(elements - even) <= largest + 1


# 100 bytes take one second, after a quarter of a second of latency.
RATE, LATENCY_S = 100.0, 0.25


def ring_of(ranks: int):
    names = [f"d{i}" for i in range(ranks)]
    links = [Link(a, b, LATENCY_S, RATE) for i, a in enumerate(names) for b in (names[(i + 1) % ranks], names[i - 1])]
    return tiny.gpu(*names, links=tuple(dict.fromkeys(links))), names


def seconds(machine, body, payload_bytes: float) -> float:
    """Time of a collective that runs alone."""
    import simpy

    route, busiest = Links(simpy.Environment(), machine).collective(body, payload_bytes)
    return route.latency_s + busiest / route.bandwidth_bytes_per_s


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_a_ring_costs_its_closed_form(ranks):
    machine, names = ring_of(ranks)
    ring = seconds(machine, Collective(ALL_REDUCE, tuple(names)), 1200)
    assert ring == pytest.approx(2 * (ranks - 1) * (LATENCY_S + 1200 / ranks / RATE))


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_trees_and_servers_cost_their_closed_forms(ranks):
    names = [f"d{i}" for i in range(ranks)]
    mesh = tiny.gpu(*names, links=tuple(Link(a, b, LATENCY_S, RATE) for a in names for b in names if a != b))
    tree = seconds(mesh, Collective(ALL_REDUCE, tuple(names), TREE), 1200)
    assert tree == pytest.approx(2 * math.ceil(math.log2(ranks)) * (LATENCY_S + 1200 / RATE))
    distributed = seconds(mesh, Collective(ALL_REDUCE, tuple(names), DISTRIBUTED), 1200)
    assert distributed == pytest.approx(2 * (LATENCY_S + 1200 / ranks / RATE))  # every pair has its own link


def test_transfers_through_the_host_share_its_link():
    names = ("a", "b", "c")
    links = tuple(Link(*way, LATENCY_S, RATE, duplex=False, channel="bus") for n in names for way in ((n, HOST), (HOST, n)))
    machine = tiny.gpu(*names, links=links)
    # three transfers up and three down on one bus: DeePa's 2 n |W| / B
    assert seconds(machine, Collective(ALL_REDUCE, names, SERVER, HOST), 100) == pytest.approx(2 * LATENCY_S + 6 * 1.0)


def collective(name: str, machine, names, *, payload: str, stream: int = 5, **more):
    body = Collective(ALL_REDUCE, tuple(names))
    return tiny.task(name, 0.0, mutates=payload, on=names[0], stream=stream, phase=COLLECTIVE, body=body, **more)


def test_a_collective_waits_for_every_device_and_every_device_for_it():
    machine, names = ring_of(2)
    plan, costs = tiny.build(
        tiny.task("f0", 1.0, writes="g0", on="d0"),
        tiny.task("f1", 3.0, writes="g1", on="d1"),
        collective("sum", machine, names, payload="g0 g1"),
        tiny.task("u0", 1.0, reads="g0", on="d0"),
        tiny.task("u1", 1.0, reads="g1", on="d1"),
        lengths={"g0": 25, "g1": 25},  # 100 bytes each
    )
    timeline = simulate(plan, machine, costs, iterations=1)
    spans = {span.task: (span.start_s, span.end_s) for span in timeline.spans}
    sum_s = 2 * (LATENCY_S + 50 / RATE)
    assert spans == {"f0": (0, 1), "f1": (0, 3), "sum": (3, 3 + sum_s), "u0": (3 + sum_s, 4 + sum_s), "u1": (3 + sum_s, 4 + sum_s)}


def test_collectives_of_two_streams_share_the_links_in_turn():
    machine, names = ring_of(2)
    plan, costs = tiny.build(
        tiny.task("f0", 0.0, writes="g0 h0", on="d0"),
        tiny.task("f1", 0.0, writes="g1 h1", on="d1"),
        collective("late", machine, names, payload="g0 g1", stream=5),
        collective("first", machine, names, payload="h0 h1", stream=6, priority=-1),
        lengths=dict.fromkeys(("g0", "g1", "h0", "h1"), 25),
    )
    spans = {span.task: (span.start_s, span.end_s) for span in simulate(plan, machine, costs, iterations=1).spans}
    assert spans["first"] == (0.0, 1.5)
    assert spans["late"] == (1.5, 3.0)


def test_the_copies_of_a_ring_move_its_bytes():
    machine, _ = ring_of(4)
    devices = tuple(device.name for device in machine.devices)
    operands = [(Operand(f"w{i}", (64, 3), (3, 1), "float32"), Operand(f"b{i}", (7,), (1,), "float32")) for i in range(4)]
    tasks = Group(machine, devices).all_reduce("sum", operands)
    payload = sum(operand.bytes for operand in operands[0])
    total = sum(operand.bytes for task in tasks for operand in task.reads)
    assert total == 2 * 3 * payload
    for device in devices:  # 2 (n - 1) / n of the data reach every device, up to one entry
        received = sum(operand.bytes for task in tasks if task.body.target == device for operand in task.reads)
        assert received == pytest.approx(2 * 3 / 4 * payload, abs=6 * 12)
