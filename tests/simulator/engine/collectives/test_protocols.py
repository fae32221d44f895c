"""A library's collectives by its protocols: closed forms within a node and between nodes, and what they load."""

from dataclasses import replace

import pytest

from simulator.engine.clock import Clock
from simulator.engine.collectives.protocols import TREE_SHARE
from simulator.engine.collectives.rounds import DISTRIBUTED, RING, SERVER, TREE, distinct_rounds, rounds
from simulator.engine.links import Links
from simulator.engine.simulation import simulate
from simulator.machine.machine import Link
from simulator.machine.presets import load_machine
from simulator.machine.protocols import PAIRS, RINGS, SWITCH, Protocol
from simulator.machine.scaled import Scale, scaled
from simulator.plan.bodies.copy import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Collective
from tests.support.linked_gpus import link, linked_gpus
from tests.support.tiny import build, gpu, rows, task
from traces.documents.timeline import Cause

#: Links of 400 bytes/s, of which a ring reaches a half, and a network of 100 bytes/s for every GPU, of which it reaches a quarter.
RING_PROTOCOL = Protocol(
    RINGS, start_s=10.0, hop_s=1.0, share=0.5, own_share=2.0, network_hop_s=3.0, network_tree_hop_s=5.0, network_share=0.25
)
SWITCH_PROTOCOL = Protocol(SWITCH, start_s=20.0, hop_s=0.0, share=0.5, network_tree_hop_s=5.0, network_share=0.25)
PAIRS_PROTOCOL = Protocol(PAIRS, start_s=10.0, hop_s=1.0, share=0.5, network_tree_hop_s=5.0, network_share=0.25)
EIGHT = tuple(f"cuda:{index}" for index in range(8))


def nodes_of_four(count: int, *protocols: Protocol, network: float = 100.0):
    """Nodes of four GPUs on a switch, each GPU with an adapter of `network` bytes/s."""
    machine = linked_gpus(count, link("bridge", 1, 1e9, 0.0), link("switch", 4, 400.0), link("network", 1, network))
    return replace(machine, protocols=protocols)


def seconds(machine, operation: str, devices: tuple[str, ...], payload_bytes: float, algorithm=RING) -> tuple[float, float]:
    """Latency, and seconds of moving, of a collective that runs alone."""
    links = Links(Clock(), machine)
    route, moved = links.collective(Collective(operation, devices, algorithm), payload_bytes)
    return route.latency_s, links.alone_s(route, moved) - route.latency_s


@pytest.mark.parametrize(("operation", "passes"), [(ALL_REDUCE, 2), (ALL_GATHER, 1), (REDUCE_SCATTER, 1)])
def test_a_ring_in_a_node_has_a_hop_for_each_round_and_copies_its_own_chunk(operation, passes):
    latency_s, moving_s = seconds(nodes_of_four(4, RING_PROTOCOL), operation, EIGHT[:4], 1600.0)
    assert latency_s == 10.0 + passes * 3 * 1.0
    assert moving_s == pytest.approx(passes * 3 * 400 / 200 + 400 / 800)


def test_a_ring_of_two_nodes_leaves_a_node_by_all_its_adapters():
    latency_s, moving_s = seconds(nodes_of_four(8, RING_PROTOCOL), ALL_GATHER, EIGHT, 1600.0)
    assert latency_s == 10.0 + 6 * 1.0 + 1 * 3.0
    # Each rank sends 7 chunks of 200 bytes, a quarter of them through its adapter at 25 bytes/s, which takes longer than the switch.
    assert moving_s == pytest.approx(7 * 200 / 4 / 25 + 200 / 800)


def test_ranks_of_different_nodes_use_their_adapters_alone():
    machine = nodes_of_four(8, RING_PROTOCOL)
    latency_s, moving_s = seconds(machine, ALL_GATHER, ("cuda:1", "cuda:5"), 1600.0)
    assert (latency_s, moving_s) == (10.0 + 5.0, pytest.approx(800 / 25))
    links = Links(Clock(), machine)
    groups = (("cuda:0", "cuda:4"), ("cuda:1", "cuda:5"), EIGHT[:4])
    of_first, of_second, within = (links.collective(Collective(ALL_REDUCE, group), 100.0)[0].channels for group in groups)
    assert not set(of_first) & set(of_second)
    assert not set(of_first) & set(within)


def test_an_all_reduce_between_nodes_takes_a_tree_if_that_is_faster():
    slow, fast = nodes_of_four(8, RING_PROTOCOL), nodes_of_four(8, RING_PROTOCOL, network=1e6)
    tree_s, ring_s = 10.0 + 2 * 3 * 1.0 + 2 * 5.0, 10.0 + 12 * 1.0 + 2 * 3.0  # a chain of four and one level of nodes; a ring of eight
    assert seconds(slow, ALL_REDUCE, EIGHT, 1e5) == (tree_s, pytest.approx(1e5 / 4 / 25 / TREE_SHARE))
    assert [seconds(fast, ALL_REDUCE, EIGHT, size)[0] for size in (8.0, 1e5)] == [tree_s, ring_s]
    assert seconds(fast, ALL_REDUCE, EIGHT, 1e5, TREE) == (tree_s, pytest.approx(2e5 / 200 / TREE_SHARE))


def test_a_switch_takes_the_data_once_and_returns_the_sum_once():
    machine = nodes_of_four(8, RING_PROTOCOL, SWITCH_PROTOCOL)
    assert seconds(machine, ALL_REDUCE, EIGHT[:4], 1e5) == (20.0, pytest.approx(1e5 * (1 + 1 / 4) / 200))
    assert seconds(machine, ALL_REDUCE, EIGHT, 1e5) == (20.0 + 2 * 5.0, pytest.approx(1e5 / 4 / 25)), "and the network half of it"
    assert seconds(machine, ALL_REDUCE, EIGHT[:4], 1.0)[0] == 10.0 + 6 * 1.0, "a ring starts sooner"
    assert seconds(machine, ALL_GATHER, EIGHT[:4], 1e5)[0] == 10.0 + 3 * 1.0, "it adds, and does not gather"


def test_in_an_all_to_all_each_rank_sends_a_chunk_to_each_other():
    machine = nodes_of_four(8, PAIRS_PROTOCOL)
    assert seconds(machine, ALL_TO_ALL, EIGHT[:4], 1600.0) == (13.0, pytest.approx(3 * 400 / 200))
    assert seconds(machine, ALL_TO_ALL, EIGHT, 1600.0) == (10.0 + 7.0 + 5.0, pytest.approx(4 * 200 / 25))


def test_rings_use_every_link_between_two_gpus():
    mesh = replace(linked_gpus(4, link("pairs")), protocols=(RING_PROTOCOL,))
    assert seconds(mesh, ALL_GATHER, EIGHT[:4], 1600.0)[1] == pytest.approx(3 * 400 / (3 * 200) + 400 / (3 * 800))


def test_a_collective_shares_its_links_like_any_transfer():
    machine = nodes_of_four(4, replace(RING_PROTOCOL, own_share=0.0))
    links = Links(Clock(), machine)
    route, moved = links.collective(Collective(ALL_GATHER, EIGHT[:4]), 1600.0)
    assert moved == 1200.0, "what the ring sends on each link"
    assert route.bandwidth_bytes_per_s == pytest.approx(200.0)
    assert dict(zip(route.channels, route.loads, strict=True)) == {
        channel: pytest.approx(1.0) for own in EIGHT[:4] for channel in ((own, "switch 0"), ("switch 0", own))
    }


def test_faster_links_make_collectives_faster():
    slow, fast = (scaled(load_machine("8xh100"), Scale(link=factor)) for factor in (1.0, 2.0))
    (latency_s, moving_s), (same_s, half_s) = (seconds(machine, ALL_GATHER, EIGHT, 1e8) for machine in (slow, fast))
    assert (same_s, half_s) == (latency_s, pytest.approx(moving_s / 2))


@pytest.mark.parametrize("operation", [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL])
@pytest.mark.parametrize("algorithm", [RING, TREE, DISTRIBUTED, SERVER])
@pytest.mark.parametrize("ranks", range(1, 10))
def test_rounds_with_the_same_ends_are_counted_as_they_are(operation, algorithm, ranks):
    counted = {}
    for moves in rounds(operation, algorithm, ranks):
        ends = tuple((move.target, move.source, move.chunk is None) for move in moves)
        counted[ends] = counted.get(ends, 0) + 1
    assert distinct_rounds(operation, algorithm, ranks) == counted


def test_presets_have_the_protocols_of_their_links():
    h100, a100, pcie = (load_machine(f"8x{card}") for card in ("h100", "a100", "rtx4090"))
    forms = [{protocol.form for protocol in machine.protocols} for machine in (h100, a100, pcie)]
    assert forms == [{RINGS, SWITCH, PAIRS}, {RINGS, PAIRS}, {RINGS, PAIRS}], "an NVSwitch adds from Hopper on"
    assert "nccl-tests" in h100.sources["collectives simple share"]
    assert load_machine("h100").protocols == ()
    assert load_machine("dgx-h100").protocols == h100.protocols
    body = Collective(ALL_REDUCE, tuple(device.name for device in load_machine("512xh100").devices))
    route, moved = Links(Clock(), load_machine("512xh100")).collective(body, 1e9)
    assert len(route.channels) == 512 * 2 + 512 * 4, "each GPU's link to its switch, and its way to the network, both ways"
    bus_bytes_per_s = 2e9 * 511 / 512 / (route.latency_s + moved / route.bandwidth_bytes_per_s)
    assert 150e9 < bus_bytes_per_s < 400e9, "eight adapters of 50 GB/s"


#: Two GPUs of 10 SMs and 400 bytes/s of memory, over a link of 100 bytes/s. A collective takes 4 SMs of each.
TWO_GPUS = gpu("p", "q")
PAIR = replace(
    TWO_GPUS,
    links=(Link("p", "q", 0.0, 100.0), Link("q", "p", 0.0, 100.0)),
    memories=tuple(replace(memory, bandwidth_bytes_per_s=400.0) for memory in TWO_GPUS.memories),
    protocols=(Protocol(RINGS, start_s=2.0, hop_s=0.0, share=1.0, blocks=4),),
)
ALL = task("sum", 0.0, mutates="x y", on="p", stream=1, body=Collective(ALL_REDUCE, ("p", "q")))  # 2 s of latency, 400 bytes in 4 s


def kernel(name: str, seconds: float, on: str, grid: int, **more):
    """A kernel of `grid` blocks, each of which needs an SM for itself."""
    return task(name, seconds, writes=f"of-{name}", on=on, grid=grid, **{"compute_share": 1.0, **more})


def spans(*timed, machine=PAIR) -> dict[str, tuple[float, float]]:
    plan, costs = build(*timed, lengths={"x": 100, "y": 100})
    return {name: (start, end) for name, start, end in rows(simulate(plan, machine, costs, iterations=1))}


def test_the_blocks_of_a_collective_take_sms_from_what_computes_on_each_of_its_gpus():
    # While the collective runs, 6 of 10 SMs are left: of 10 s of work 3.6 s are done, of 5 s too.
    ran = spans(ALL, kernel("on-p", 10.0, "p", 1000), kernel("on-q", 5.0, "q", 1000))
    assert ran == {"sum": (0.0, 6.0), "on-p": (0.0, pytest.approx(12.4)), "on-q": (0.0, pytest.approx(7.4))}
    few = spans(ALL, kernel("on-p", 10.0, "p", 6))
    assert few["on-p"] == (0.0, 10.0), "a kernel of six blocks has room beside it"


def test_a_collective_waits_until_its_blocks_have_room_on_every_gpu():
    # Two waves of 5 s; the second has 5 blocks, so that 5 SMs of p are free then.
    ran = spans(kernel("on-p", 10.0, "p", 15), ALL)
    assert ran == {"on-p": (0.0, 10.0), "sum": (5.0, 11.0)}


def test_what_waited_for_sms_is_not_said_to_have_waited_for_links_that_were_free():
    """The path is unbroken: what ran from 6 s on is on it, not the collective that left the links then."""
    big, short = (kernel(name, seconds, on, 10, reads="x") for name, seconds, on in (("big", 5.0, "p"), ("short", 1.0, "q")))
    again = task("again", 0.0, mutates="z w", reads="of-short", on="p", stream=1, body=ALL.task.body)
    plan, costs = build(ALL, big, short, again, lengths=dict.fromkeys("xyzw", 100))
    path = [(s.task, s.start_s, s.end_s, s.cause) for s in simulate(plan, PAIR, costs, iterations=1).critical_path]
    assert path == [("sum", 0.0, 6.0, Cause.START), ("big", 6.0, 11.0, Cause.DEPENDENCY), ("again", 11.0, 17.0, Cause.SMS)]


def test_collectives_that_need_more_sms_than_there_are_do_not_wait_for_each_other():
    """On q the more urgent one is first, on p the one that came before: each holds SMs that the other would like to have."""
    wide = replace(PAIR, protocols=(replace(PAIR.protocols[0], blocks=6),))
    later = task("later", 0.0, mutates="z w", reads="of-first", on="q", stream=2, priority=-1, body=ALL.task.body)
    ran = spans(kernel("on-q", 5.0, "q", 10), ALL, kernel("first", 1.0, "p", 1, stream=3), later, machine=wide)
    assert sorted(end for _, end in ran.values()) == [1.0, 5.0, 11.0, 17.0], "one after the other"


def test_a_collective_draws_bandwidth_of_every_memory():
    # Each GPU reads and writes its 400 bytes in 4 s: half of the bandwidth, for as long as the kernel is there.
    ran = spans(ALL, kernel("on-q", 4.0, "q", 1, compute_share=0.0, memory_share=1.0))
    assert ran["on-q"] == (0.0, pytest.approx(7.0)), "3 s of work in 6 s, and one more"


def test_a_collective_beside_nothing_takes_its_time():
    assert spans(ALL) == {"sum": (0.0, 6.0)}
    assert spans(kernel("before", 1.0, "p", 1), task("sum", 0.0, mutates="x y", on="p", body=ALL.task.body)) == {
        "before": (0.0, 1.0), "sum": (1.0, 7.0),
    }  # fmt: skip
