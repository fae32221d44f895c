"""Transfers: latency, bytes, queues per direction, shared channels. Values have 400 bytes; links move 400 bytes/s by default."""

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.collectives.rounds import RING, TREE
from simulator.engine.links import Links, Route, max_min
from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, Link, Machine
from simulator.plan.bodies.copy import Collective
from tests.support.linked_gpus import BYTES_PER_S, LATENCY_S, copy_spans, link, linked_gpus
from tests.support.refusals import refuses
from tests.support.tiny import build, copy, cpu, gpu, host, rows, task
from traces.documents.timeline import Cause, Timeline
from traces.errors import Code


def gpu_link(source, target, bandwidth=400.0, latency=0.25, **more):
    return Link(source, target, latency, bandwidth, **more)


def run(*timed, machine):
    """The spans of one iteration."""
    plan, costs = build(*timed)
    return rows(simulate(plan, machine, costs, iterations=1))


def test_a_transfer_takes_latency_and_bytes_over_bandwidth():
    assert run(copy("c", "p", "q", "x", "y"), machine=gpu("p", "q", links=(gpu_link("p", "q"),))) == [("c", 0.0, 1.25)]


def test_a_transfer_starts_when_its_value_is_written_and_its_reader_when_it_ends():
    timed = [task("f", 1.0, reads="x", writes="y", on="p"), copy("c", "p", "q", "y", "z"), task("g", 1.0, reads="z", writes="v", on="q")]
    assert run(*timed, machine=gpu("p", "q", links=(gpu_link("p", "q"),))) == [("f", 0.0, 1.0), ("c", 1.0, 2.25), ("g", 2.25, 3.25)]


def test_one_direction_moves_one_transfer_at_a_time():
    timed = [copy("c1", "p", "q", "x1", "y1", stream=8), copy("c2", "p", "q", "x2", "y2", stream=9)]
    assert run(*timed, machine=gpu("p", "q", links=(gpu_link("p", "q"),))) == [("c1", 0.0, 1.25), ("c2", 1.25, 2.5)]


def both_ways():
    return copy("out", "p", "q", "x1", "y1"), copy("back", "q", "p", "x2", "y2")


def test_a_duplex_link_moves_both_ways_at_full_speed():
    assert run(*both_ways(), machine=gpu("p", "q", links=(gpu_link("p", "q"),))) == [("out", 0.0, 1.25), ("back", 0.0, 1.25)]


def test_a_link_that_is_not_duplex_shares_one_bandwidth_between_both_ways():
    machine = gpu("p", "q", links=(gpu_link("p", "q", duplex=False),))
    assert run(*both_ways(), machine=machine) == [("out", 0.0, 2.25), ("back", 0.0, 2.25)]


def test_links_of_one_channel_share_its_bandwidth():
    links = gpu_link("host", "p", channel="bus"), gpu_link("host", "q", 100.0, channel="bus")
    timed = [copy("fast", "host", "p", "x1", "y1", on="p"), copy("slow", "host", "q", "x2", "y2", on="q")]
    # The slow link uses its 100 bytes/s, the fast link the other 300.
    spans = run(*timed, machine=gpu("p", "q", links=links))
    assert spans == [("fast", 0.0, pytest.approx(0.25 + 4 / 3)), ("slow", 0.0, pytest.approx(4.25))]


def test_a_route_over_several_links_takes_the_slowest_and_every_latency():
    machine = gpu("p", "q", links=(gpu_link("p", "host"), gpu_link("host", "q", 200.0)))
    assert run(copy("c", "p", "q", "x", "y"), machine=machine) == [("c", 0.0, 2.5)]


def test_an_alias_moves_nothing():
    timed = [task("f", 1.0, reads="x", writes="y", on="p"), copy("c", "p", "q", "y", "z"), task("g", 1.0, reads="z", writes="v", on="q")]
    expected = [("f", 0.0, 1.0), ("c", 1.0, 1.0), ("g", 1.0, 2.0)]
    assert run(*timed, machine=gpu("p", "q", memory="hbm")) == expected
    assert run(*timed, machine=gpu("p", "q", memory="hbm", links=(gpu_link("p", "q", alias=True),))) == expected
    assert run(*timed, machine=gpu("p", "q", memory="hbm", links=(gpu_link("p", "q"),)))[1] == ("c", 1.0, 2.25)


def test_an_alias_is_no_launch():
    timed = [copy("c", "p", "q", "x", "z"), task("g", 1.0, reads="z", writes="v", on="q")]
    machine = gpu("p", "q", memory="hbm", host=host("p", "q", dispatch_s=2.0, record_s=0.25, wait_s=0.5))
    assert run(*timed, machine=machine) == [("c", 0.25, 0.25), ("g", 2.75, 3.75)]


def test_the_host_issues_the_waits_of_a_copy_between_two_of_its_gpus():
    """For each tensor a launch of 2 s, two records and two waits, and the latency. The host changes to a stream of each GPU."""
    one, two = copy("c", "p", "q", "x", "y"), copy("c", "p", "q", "x1 x2", "y1 y2")
    times = {"dispatch_s": 2.0, "record_s": 0.25, "wait_s": 0.5, "switch_s": 0.125}
    machine = gpu("p", "q", host=host("p", "q", **times), links=(gpu_link("p", "q"),))
    assert run(one, machine=machine) == [("c", 3.75, 3.75 + 0.25 + 1.0)]
    assert run(two, machine=machine) == [("c", 7.25, 7.25 + 2 * (0.25 + 1.0))]
    apart = gpu("p", "q", host=host("p", **times), links=(gpu_link("p", "q"),))
    assert run(one, machine=apart) == [("c", 2.125, 2.125 + 0.25 + 1.0)], "the other GPU belongs to another process"


def test_on_a_cpu_a_core_moves_the_bytes():
    timed = [copy("c", "p", "q", "x", "y"), task("f", 1.0, reads="x", writes="z", on="p")]
    machine = cpu("p", "q", overhead_s=0.5, links=(gpu_link("p", "q"),))
    assert run(*timed, machine=machine) == [("c", 0.0, 1.75), ("f", 1.75, 3.25)]


def test_a_missing_link_is_named():
    plan, costs = build(copy("c", "p", "q", "x", "y"))
    with refuses(Code.REQUEST, "machine tiny-gpu has no link from 'p' to 'q'; add one"):
        simulate(plan, gpu("p", "q"), costs)


def test_waiting_for_a_link_is_a_cause():
    plan, costs = build(copy("c1", "p", "q", "x1", "y1", stream=8), copy("c2", "p", "q", "x2", "y2", stream=9))
    path = simulate(plan, gpu("p", "q", links=(gpu_link("p", "q"),)), costs, iterations=1).critical_path
    assert [(s.task, s.start_s, s.cause) for s in path] == [("c1", 0.0, Cause.START), ("c2", 1.25, Cause.LINK)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 50)), min_size=1, max_size=8), st.booleans())
def test_transfers_take_no_less_than_each_direction_and_no_more_than_all(transfers, duplex):
    names = [f"v{i}" for i in range(len(transfers))]
    timed = [
        copy(f"c{i}", *(("p", "q") if forth else ("q", "p")), names[i], f"{names[i]}'", stream=stream)
        for i, (forth, stream, _) in enumerate(transfers)
    ]
    plan, costs = build(*timed, lengths={name: 100 * size for name, (_, _, size) in zip(names, transfers, strict=True)})
    makespan = simulate(plan, gpu("p", "q", links=(gpu_link("p", "q", duplex=duplex),)), costs, iterations=1).step_s
    seconds = [(forth, 0.25 + size) for forth, _, size in transfers]
    one_way = [sum(s for forth, s in seconds if forth is way) for way in (True, False)]
    assert max(one_way) * (1 - 1e-9) <= makespan <= sum(one_way) * (1 + 1e-9)


CHANNELS = [("c0", ""), ("c1", ""), ("c2", "")]


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(CHANNELS), min_size=1, max_size=3, unique=True), st.floats(1.0, 1e3)), min_size=1, max_size=6
    ),
    st.tuples(*[st.floats(1.0, 1e3)] * 3),
)
def test_shares_are_max_min_fair(flows, sizes):
    capacity = dict(zip(CHANNELS, sizes, strict=True))
    routes = [Route((), tuple(channels), 0.0, bandwidth, False, (1.0,) * len(channels)) for channels, bandwidth in flows]
    rates = max_min(routes, capacity)
    used = {c: sum(rate for rate, route in zip(rates, routes, strict=True) if c in route.channels) for c in CHANNELS}
    assert all(used[c] <= capacity[c] * (1 + 1e-9) for c in CHANNELS)
    for rate, route in zip(rates, routes, strict=True):
        # No rate can grow: it is at its route's bandwidth, or among the fastest on a full channel.
        fastest = {c: max(r for r, other in zip(rates, routes, strict=True) if c in other.channels) for c in route.channels}
        full = any(used[c] >= capacity[c] * (1 - 1e-9) and rate >= fastest[c] * (1 - 1e-9) for c in route.channels)
        assert full or rate == route.bandwidth_bytes_per_s


# Machines of several GPUs: transfers that share a link share its rate, others do not. Values have 400 bytes; links move 400 bytes/s.


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


RANKS = [2, 3, 4, 5, 7, 8]


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
