"""Machines of several GPUs: transfers that share a link share its rate, others do not. Values have 400 bytes; links move 400 bytes/s."""

from math import ceil, log2

import pytest

from simulator.engine.collectives.rounds import RING, TREE
from simulator.engine.links import Links
from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, Machine
from simulator.plan.bodies.copy import Collective
from tests.support.linked_gpus import BYTES_PER_S, LATENCY_S, copy_spans, link, linked_gpus
from tests.support.tiny import build, copy, rows, task
from traces.documents.timeline import Timeline


def tree(uplink: float = BYTES_PER_S) -> Machine:
    """Four GPUs, two behind each switch, whose uplinks lead to the host."""
    return linked_gpus(4, link("bridge", 2), link("uplink", 2, uplink))


def test_two_transfers_through_one_uplink_share_it():
    one = copy_spans(tree(), ("cuda:0", HOST))
    assert one == [("cuda:0>host", 0.0, 1.5)]  # the latencies of two links, and 400 bytes
    both = copy_spans(tree(), ("cuda:0", HOST), ("cuda:1", HOST))
    assert both == [("cuda:0>host", 0.0, 2.5), ("cuda:1>host", 0.0, 2.5)]


def test_transfers_through_different_uplinks_do_not_share():
    assert copy_spans(tree(), ("cuda:0", HOST), ("cuda:2", HOST)) == [("cuda:0>host", 0.0, 1.5), ("cuda:2>host", 0.0, 1.5)]


def test_a_wide_uplink_slows_nobody():
    spans = copy_spans(tree(2 * BYTES_PER_S), ("cuda:0", HOST), ("cuda:1", HOST))
    assert [end for _, _, end in spans] == [1.5, 1.5]


def test_peers_behind_one_switch_leave_the_uplink_alone():
    spans = copy_spans(tree(), ("cuda:0", "cuda:1"), ("cuda:2", "cuda:0"))
    assert spans == [("cuda:0>cuda:1", 0.0, 1.5), ("cuda:2>cuda:0", 0.0, 2.0)]  # the second crosses two uplinks: four latencies


def test_without_links_between_them_gpus_stage_copies_in_the_hosts_memory():
    machine = linked_gpus(2, link("host", bandwidth=200.0))
    assert copy_spans(machine, ("cuda:0", "cuda:1")) == [("cuda:0>cuda:1", 0.0, 2.5)]
    assert Links(None, machine).route("cuda:0", "cuda:1").directions == (("cuda:0", HOST), (HOST, "cuda:1"))


def test_a_longer_route_between_gpus_is_preferred_to_the_hosts_memory():
    nodes = linked_gpus(4, link("host"), link("bridge", 2), link("network", 2))
    hops = list(Links(None, nodes).route("cuda:0", "cuda:2").channels)
    assert hops == [("cuda:0", "bridge 0"), ("bridge 0", "network"), ("network", "bridge 1"), ("bridge 1", "cuda:2")]


def two_nodes() -> Machine:
    """Two nodes of two GPUs. In each node, fast links join the GPUs, and the host and a NIC are at the node's bridge."""
    return linked_gpus(4, link("bridge", 2, latency_s=0.5), link("uplink", 2), link("switch", 2, 4 * BYTES_PER_S), link("network", 2))


def test_the_gpus_of_a_node_share_its_nic():
    assert copy_spans(two_nodes(), ("cuda:0", "cuda:2")) == [("cuda:0>cuda:2", 0.0, 2.5)]
    spans = copy_spans(two_nodes(), ("cuda:0", "cuda:2"), ("cuda:1", "cuda:3"))
    assert [end for _, _, end in spans] == [3.5, 3.5]
    there_and_back = copy_spans(two_nodes(), ("cuda:0", "cuda:2"), ("cuda:3", "cuda:1"))
    assert [end for _, _, end in there_and_back] == [2.5, 2.5]


def test_within_a_node_the_fast_links_are_used_and_every_node_has_its_own_host():
    assert copy_spans(two_nodes(), ("cuda:2", "cuda:3")) == [("cuda:2>cuda:3", 0.0, 0.75)]
    assert copy_spans(two_nodes(), (HOST, "cuda:0"), (HOST, "cuda:3")) == [("host>cuda:0", 0.0, 1.75), ("host>cuda:3", 0.0, 1.75)]


def reduced(machine: Machine, *collectives: tuple[str, tuple[str, ...]], others=()) -> Timeline:
    """All-reduces of 400 bytes, each (algorithm, devices), all ready at 0 s, each on its own stream. `others` are further tasks."""
    timed = [
        task(f"{how}{i}", 0.0, mutates=" ".join(f"x{i}{d}" for d in on), on=on[0], stream=i, body=Collective("all-reduce", on, how))
        for i, (how, on) in enumerate(collectives)
    ]
    plan, costs = build(*timed, *others)
    return simulate(plan, machine, costs, iterations=1)


RANKS = [2, 3, 4, 5, 8]


def on(count: int) -> tuple[str, ...]:
    return tuple(f"cuda:{index}" for index in range(count))


@pytest.mark.parametrize("links", [(link("pairs"),), (link("switch", latency_s=LATENCY_S / 2),)])
@pytest.mark.parametrize("n", RANKS)
def test_a_ring_passes_2_n_minus_1_parts(n, links):
    expected = 2 * (n - 1) * (LATENCY_S + 400 / (n * BYTES_PER_S))
    assert reduced(linked_gpus(n, *links), (RING, on(n))).step_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("links", [(link("pairs"),), (link("switch", latency_s=LATENCY_S / 2),)])
@pytest.mark.parametrize("n", RANKS)
def test_a_tree_passes_all_of_it_up_and_down(n, links):
    expected = 2 * ceil(log2(n)) * (LATENCY_S + 400 / BYTES_PER_S)
    assert reduced(linked_gpus(n, *links), (TREE, on(n))).step_s == pytest.approx(expected, rel=1e-12)


def test_collectives_of_separate_nodes_do_not_share_and_those_of_one_node_wait():
    islands = linked_gpus(4, link("switch", 2))
    apart = rows(reduced(islands, (RING, ("cuda:0", "cuda:1")), (RING, ("cuda:2", "cuda:3"))))
    assert apart == [("ring0", 0.0, 2.0), ("ring1", 0.0, 2.0)]  # two rounds of two latencies and 200 bytes
    one = rows(reduced(islands, (RING, ("cuda:0", "cuda:1")), (RING, ("cuda:1", "cuda:0"))))
    assert one == [("ring0", 0.0, 2.0), ("ring1", 2.0, 4.0)]


def test_collectives_between_nodes_share_the_nics():
    nodes = linked_gpus(4, link("bridge", 2, 10 * BYTES_PER_S, 0.0), link("network", 2, latency_s=0.0))
    alone = rows(reduced(nodes, (RING, ("cuda:0", "cuda:2"))))
    assert alone == [("ring0", 0.0, 1.0)]
    both = rows(reduced(nodes, (RING, ("cuda:0", "cuda:2")), (RING, ("cuda:1", "cuda:3"))))
    assert both == [("ring0", 0.0, 2.0), ("ring1", 0.0, 2.0)]


def test_a_copy_during_a_collective_takes_half_of_the_nic():
    nodes = linked_gpus(4, link("bridge", 2, 10 * BYTES_PER_S, 0.0), link("network", 2, latency_s=0.0))
    others = [copy("copy", "cuda:1", "cuda:3", "x", "y", stream=5)]
    # The collective and the copy move 400 bytes each from node 0 to node 1, at half the rate that each has alone.
    assert rows(reduced(nodes, (RING, ("cuda:0", "cuda:2")), others=others)) == [("ring0", 0.0, 2.0), ("copy", 0.0, 2.0)]
