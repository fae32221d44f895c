"""Laws of collectives: lines fitted by size, their use in the engine, and their error on public measurements."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.distributed.collectives import fit_collective, store_collective
from simulator.engine.simulation import simulate
from simulator.machine.machine import Link, Machine
from simulator.machine.measured_gpu import with_measured
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.plan.bodies.copy import Collective
from tests.benchmarks.collectives import all_reduces, score
from tests.support.linked_gpus import copy_spans, link, linked_gpus
from tests.support.tiny import build, copy, cpu, gpu, rows, task
from traces.documents.collectives import CollectiveLaw, LawPiece, law_name
from traces.documents.profile import Identity, Profile, Transfer
from traces.errors import SchedcastError

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
        with pytest.raises(SchedcastError, match="needs sizes of at least 0 bytes and times above 0 s"):
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
    assert machine.links == load_machine("dgx-h100").links
    on_cpu = this_cpu(Profile(identity=Identity(kind="cpu", cores=1), collectives={"all-reduce|gloo|2": LAW}))
    assert on_cpu.collectives == {"all-reduce|gloo|2": LAW}
    assert with_measured(gpu("cuda:0"), profile()).collectives == {}


SAMPLES = all_reduces()


@pytest.mark.skipif(not SAMPLES, reason="the shared data are not here")
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_within_a_node_laws_fitted_on_a_quarter_of_the_sizes_hold_on_the_rest(ranks):
    scored = score(SAMPLES[ranks, 1])
    large = np.array([sample.size >= 1e6 for sample in scored.held_out])
    assert np.median(scored.errors) < 0.05
    assert np.quantile(scored.errors[large], 0.9) < 0.1
    assert (scored.errors <= 0.1).mean() > 0.85  # below 1 MB times of one size differ by up to 3 times
