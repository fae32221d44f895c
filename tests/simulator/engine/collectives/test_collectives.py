"""Collectives: the rounds of each algorithm by hand and by property, their cost on links, and the chunks of their operands."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.distributed.collectives import fit_collective, store_collective
from simulator.engine.collectives.rounds import DISTRIBUTED, RING, SERVER, TREE, Move, rounds
from simulator.engine.collectives.tasks import Group, chunks, over_links
from simulator.engine.links import Links
from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, Link, Machine
from simulator.machine.measured_gpu import with_measured
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.plan.bodies.copy import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Collective
from simulator.plan.plan import Plan
from simulator.plan.task import COLLECTIVE, PARAMETER, Operand, Storage, Value
from tests.support import tiny
from tests.support.linked_gpus import copy_spans, link, linked_gpus
from tests.support.refusals import refuses
from tests.support.tiny import build, copy, cpu, gpu, rows, task
from tools.preset_links import all_reduces
from traces.documents.collectives import CollectiveLaw, LawPiece, law_name
from traces.documents.profile import Identity, Profile, Transfer
from traces.errors import Code

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
def test_distributed_servers_cost_their_closed_form(ranks):
    names = [f"d{i}" for i in range(ranks)]
    mesh = tiny.gpu(*names, links=tuple(Link(a, b, LATENCY_S, RATE) for a in names for b in names if a != b))
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


def test_between_gpus_of_one_process_what_is_added_arrives_first():
    """Two GPUs sum [4, 3]: each receives half and adds it, then receives the other half, which is complete. Copies use the links."""
    machine = linked_gpus(2, link("pairs"))
    machine = replace(machine, library="")
    first, second = (device.name for device in machine.devices)
    weights = [Operand(f"w{i}", (4, 3), (3, 1), "float32") for i in range(2)]
    values = {w.value: Value(w.value, w.shape, w.strides, w.dtype, f"cuda:{i}", PARAMETER) for i, w in enumerate(weights)}
    storages = {name: Storage(name, 48, value.device) for name, value in values.items()}
    tasks = Group(machine, (first, second)).all_reduce("sum", [(w,) for w in weights])
    plan = over_links(Plan("ring", tuple(tasks), values, storages), machine)
    moves = [(t.name, t.device, t.body.ends, t.body.means, t.body.add, len(t.mutates)) for t in plan.tasks]
    back, forth, own = (second, first), (first, second), (first, first)
    assert moves == [
        ("sum/0/cuda:1>cuda:0#", first, back, "link", False, 0), ("sum/0/cuda:1>cuda:0", first, own, "kernel", True, 1),
        ("sum/0/cuda:0>cuda:1#", second, forth, "link", False, 0), ("sum/0/cuda:0>cuda:1", second, (second, second), "kernel", True, 1),
        ("sum/1/cuda:1>cuda:0", first, back, "link", False, 1), ("sum/1/cuda:0>cuda:1", second, forth, "link", False, 1),
    ]  # fmt: skip
    plan.validate(machine)
    (arrival,) = plan.tasks[0].writes
    assert (plan.values[arrival.value].device, plan.storages[arrival.value].bytes, arrival.shape) == (first, 24, (2, 3))
    assert over_links(plan, replace(machine, library="nccl")) is plan, "processes exchange messages"


# Laws of collectives: lines fitted by size, their use in the engine, and their error on public measurements.


KB, MB = 1e3, 1e6
#: One protocol for small data, another for large data.
LAW = CollectiveLaw(pieces=[LawPiece(64 * KB, 10e-6, 1e-9), LawPiece(8 * MB, 30e-6, 0.1e-9)])


def profile(**more) -> Profile:
    return Profile(identity=Identity(kind="gpu", gpu="NVIDIA H100 80GB HBM3", sms=132), **more)


def test_a_law_is_a_line_per_range_of_sizes_and_the_last_line_continues():
    assert LAW.parts(1 * KB) == pytest.approx((10e-6, 1e-6))
    assert LAW.seconds(64 * KB) == pytest.approx(74e-6)
    assert LAW.seconds(65 * KB) == pytest.approx(36.5e-6)  # the library changes its protocol too late
    assert LAW.seconds(100 * MB) == pytest.approx(30e-6 + 10e-3)


def test_a_fit_recovers_lines_without_noise():
    sizes = [4 * KB * n for n in range(1, 60)]
    law = fit_collective((size, LAW.seconds(size)) for size in sizes)
    assert [piece.latency_s for piece in law.pieces] == pytest.approx([10e-6, 30e-6])
    assert [piece.s_per_byte for piece in law.pieces] == pytest.approx([1e-9, 0.1e-9])
    assert law.pieces[0].up_to_bytes == 64 * KB
    assert law.held_out_error == pytest.approx(0.0, abs=0.05)  # some of the five fits place the border one size too early


def test_noise_makes_no_pieces():
    noise = np.random.default_rng(0).uniform(0.95, 1.05, 100)
    points = [(1 * MB * (n + 1), (20e-6 + 1e-10 * MB * (n + 1)) * noise[n]) for n in range(100)]
    law = fit_collective(points)
    assert len(law.pieces) == 1
    assert law.held_out_error < 0.05


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 10**8), st.floats(1e-6, 1.0)), min_size=1, max_size=40))
def test_every_law_has_lines_that_never_fall(points):
    law = fit_collective(points)
    assert all(piece.latency_s >= 0 and piece.s_per_byte >= 0 for piece in law.pieces)
    borders = [piece.up_to_bytes for piece in law.pieces]
    assert borders == sorted(set(borders))
    assert all(np.isfinite(law.seconds(size)) for size, _ in points)


def test_no_times_or_times_of_0_are_refused():
    for points in ([], [(8, 0.0)]):
        with refuses(Code.REQUEST):
            fit_collective(points)


def test_stored_points_join_those_of_other_sizes_and_replace_those_of_the_same():
    stored = profile()
    store_collective(stored, "all-reduce", "gloo", 2, [(1 * KB, 1e-3), (2 * KB, 2e-3), (2 * KB, 4e-3), (2 * KB, 2.5e-3)])
    assert stored.collectives["all-reduce|gloo|2"].points == [(1 * KB, 1e-3), (2 * KB, 2.5e-3)]
    law = store_collective(stored, "all-reduce", "gloo", 2, [(1 * KB, 1.5e-3), (3 * KB, 3.5e-3)])
    assert law.points == [(1 * KB, 1.5e-3), (2 * KB, 2.5e-3), (3 * KB, 3.5e-3)]
    assert law.seconds(4 * KB) == pytest.approx(4.5e-3)
    assert stored.collectives == {law_name("all-reduce", "gloo", 2): law}


def test_a_profile_keeps_laws_on_disk(tmp_path):
    saved = profile(collectives={"all-reduce|nccl|2": LAW, "all-reduce|nccl|4": LAW})
    assert Profile.load(saved.save(tmp_path / "p.json")) == saved


def reduced(machine: Machine, devices: tuple[str, ...], *others, length: int = 1000, algorithm: str = "ring"):
    """The spans of an all-reduce of `length` float32, and of other tasks."""
    body = Collective("all-reduce", devices, algorithm)
    collective = task("r", 0.0, mutates=" ".join(f"x{d}" for d in devices), on=devices[0], stream=7, body=body)
    plan, costs = build(collective, *others, lengths={f"x{d}": length for d in devices})
    return rows(simulate(plan, machine, costs, iterations=1))


def gpus(count: int) -> tuple[str, ...]:
    return tuple(f"cuda:{index}" for index in range(count))


def measured(count: int, *links, ranks=(2,), **more) -> Machine:
    laws = {law_name("all-reduce", "nccl", n): LAW for n in ranks}
    return replace(linked_gpus(count, *links), collectives=laws, **more)


@pytest.mark.parametrize("bandwidth", [1e3, 1e15])
def test_alone_a_collective_takes_the_laws_time_whatever_the_links(bandwidth):
    machine = measured(2, link("switch", bandwidth=bandwidth))
    for length in (1, 1000, 10**6):
        assert reduced(machine, gpus(2), length=length) == [("r", 0.0, pytest.approx(LAW.seconds(4 * length), rel=1e-9))]


def test_a_law_of_nothing_but_latency_moves_nothing():
    machine = replace(linked_gpus(2, link("switch")), collectives={"all-reduce|nccl|2": CollectiveLaw(pieces=[LawPiece(1.0, 0.5, 0.0)])})
    assert reduced(machine, gpus(2)) == [("r", 0.0, 0.5)]


def test_without_links_measured_collectives_follow_one_another():
    machine = replace(cpu("a", "b"), library="gloo", collectives={"all-reduce|gloo|2": LAW})
    second = task("s", 0.0, mutates="ya yb", on="b", stream=8, body=Collective("all-reduce", ("a", "b")))
    once = LAW.seconds(400)
    spans = reduced(machine, ("a", "b"), second, length=100)
    assert spans == [("r", 0.0, pytest.approx(once)), ("s", pytest.approx(once), pytest.approx(2 * once))]


@pytest.mark.parametrize(("ranks", "rounds", "passed"), [(4, 6, 1.5), (3, 4, 4 / 3), (8, 14, 1.75)])
def test_on_other_numbers_of_ranks_the_law_is_scaled_as_a_ring(ranks, rounds, passed):
    # On 2 ranks a ring has 2 rounds, in which a device sends its data once.
    expected = 10e-6 * rounds / 2 + 4e-6 * passed
    spans = reduced(measured(ranks, link("switch", bandwidth=1e15)), gpus(ranks))
    assert spans == [("r", 0.0, pytest.approx(expected, rel=1e-9))]


def test_the_nearest_number_of_ranks_is_scaled():
    slow = CollectiveLaw(pieces=[LawPiece(1.0, 1.0, 0.0)])
    machine = measured(6, link("switch"))
    machine = replace(machine, collectives={**machine.collectives, "all-reduce|nccl|8": slow, "all-gather|nccl|6": slow})
    assert reduced(machine, gpus(6)) == [("r", 0.0, pytest.approx(10 / 14, rel=1e-9))]


def test_a_law_of_one_node_does_not_hold_for_two():
    links = link("bridge", 2, latency_s=0.0), link("network", 2, latency_s=0.0)
    nodes = measured(4, *links)
    assert nodes.nodes(("cuda:0", "cuda:1")) == 1
    assert nodes.nodes(("cuda:0", "cuda:2")) == 2
    assert reduced(nodes, gpus(2))[0][2] == pytest.approx(LAW.seconds(4000))
    apart = ("cuda:0", "cuda:2")
    assert reduced(nodes, apart)[0][2] == 10.0  # 4000 bytes at the links' 400 bytes/s
    both = replace(nodes, collectives={**nodes.collectives, "all-reduce|nccl|2/2": LAW})
    assert reduced(both, apart)[0][2] == pytest.approx(LAW.seconds(4000))


def test_a_server_is_not_priced_by_the_librarys_law():
    machine = measured(2, link("pairs"))
    assert reduced(machine, gpus(2), algorithm="server")[0][2] > 20.0


def test_a_copy_beside_a_measured_collective_shares_the_nic_with_it():
    links = link("bridge", 2, 1e12, 0.0), link("network", 2, 400.0, latency_s=0.0)
    law = CollectiveLaw(pieces=[LawPiece(1.0, 0.0, 1 / 400)])
    machine = replace(linked_gpus(4, *links), collectives={"all-reduce|nccl|2/2": law})
    beside = copy("c", "cuda:1", "cuda:3", "x", "y", stream=5)
    ends = {name: end for name, _, end in reduced(machine, ("cuda:0", "cuda:2"), beside, length=100)}
    assert ends == {"r": pytest.approx(2.0), "c": pytest.approx(2.0)}  # 400 bytes each, 1 s alone


def test_measured_transfers_between_gpus_replace_the_figures_of_the_links():
    transfer = Transfer(latency_s=1.0, bytes_per_s=100.0)
    machine = replace(linked_gpus(3, link("switch")), peer_transfers={"cuda:0>cuda:1": transfer})
    assert copy_spans(machine, ("cuda:0", "cuda:1")) == [("cuda:0>cuda:1", 0.0, 5.0)]
    assert copy_spans(machine, ("cuda:1", "cuda:0")) == [("cuda:1>cuda:0", 0.0, 1.5)]
    faster = replace(machine, peer_transfers={"cuda:0>cuda:1": Transfer(latency_s=0.0, bytes_per_s=800.0)})
    assert copy_spans(faster, ("cuda:0", "cuda:1")) == [("cuda:0>cuda:1", 0.0, 0.5)]


def test_messages_between_processes_take_the_time_of_the_librarys_law():
    """In both directions and between all processes of a node, whatever else was measured of copies between two devices."""
    two = linked_gpus(2, link("switch"))
    known = replace(two, collectives={"send|nccl|2": LAW}, peer_transfers={"cuda:0>cuda:1": Transfer(latency_s=1.0, bytes_per_s=1e9)})
    expected = pytest.approx(LAW.seconds(400))
    assert copy_spans(known, gpus(2), gpus(2)[::-1]) == [("cuda:0>cuda:1", 0.0, expected), ("cuda:1>cuda:0", 0.0, expected)]
    assert copy_spans(replace(two, collectives={"send|gloo|2": LAW}), gpus(2)) == [("cuda:0>cuda:1", 0.0, 1.5)]  # by the links


def test_a_worker_computes_while_the_library_sends():
    """Within one process, a worker moves the bytes itself."""
    pair = (Link("a", "b", 0.25, 400.0),)
    timed = [copy("send", "a", "b", "x", "y"), task("f", 1.0, reads="u", writes="v", on="a")]
    plan, costs = build(*timed)
    for library, ends in (("gloo", [1.25, 1.0]), ("", [1.25, 2.25])):
        machine = replace(cpu("a", "b"), links=pair, library=library)
        assert [end for _, _, end in rows(simulate(plan, machine, costs, iterations=1))] == ends


def test_a_profiles_laws_and_transfers_come_with_its_machine():
    transfer = Transfer(latency_s=1e-5, bytes_per_s=2e11)
    stored = profile(collectives={"all-reduce|nccl|2": LAW}, transfers={"cuda:0>cuda:1": transfer, "cuda:0>host": transfer})
    machine = with_measured(load_machine("dgx-h100"), stored)
    assert machine.collectives == {"all-reduce|nccl|2": LAW}
    assert machine.peer_transfers == {"cuda:0>cuda:1": transfer}
    assert "peer copies" in machine.sources
    assert "all-reduce|nccl|2 measured" in machine.sources["collectives"]
    between, rated = ([link for link in own.links if HOST not in (link.source, link.target)] for own in (machine, load_machine("dgx-h100")))
    assert between == rated
    to_host = [link.bandwidth_bytes_per_s for link in machine.links if link.target == HOST]
    assert set(to_host) == {2e11}, "every GPU has a link of its own to the host"
    on_cpu = this_cpu(Profile(identity=Identity(kind="cpu", cores=1), collectives={"all-reduce|gloo|2": LAW}))
    assert on_cpu.collectives == {"all-reduce|gloo|2": LAW}
    assert with_measured(gpu("cuda:0"), profile()).collectives == {}


SAMPLES = all_reduces()


@pytest.mark.skipif(not SAMPLES, reason="the shared data are not here")
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_within_a_node_laws_fitted_on_a_quarter_of_the_sizes_hold_on_the_rest(ranks):
    law = fit_collective(SAMPLES[ranks, 1][::4])
    held_out = [sample for index, sample in enumerate(SAMPLES[ranks, 1]) if index % 4]
    errors = np.array([abs(law.seconds(sample.size) / sample.seconds - 1) for sample in held_out])
    large = np.array([sample.size >= 1e6 for sample in held_out])
    assert np.median(errors) < 0.05
    assert np.quantile(errors[large], 0.9) < 0.1
    assert (errors <= 0.1).mean() > 0.85  # below 1 MB times of one size differ by up to 3 times
