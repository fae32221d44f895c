"""Transfers: latency, bytes, queues per direction, shared channels. Values have 400 bytes; links move 400 bytes/s by default."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.links import Route, max_min
from simulator.engine.simulation import simulate
from simulator.machine.machine import Link
from tests.support.tiny import build, copy, cpu, gpu, host, rows, task
from traces.documents.timeline import Cause
from traces.errors import SchedcastError


def link(source, target, bandwidth=400.0, latency=0.25, **more):
    return Link(source, target, latency, bandwidth, **more)


def run(*timed, machine):
    """The spans of one iteration."""
    plan, costs = build(*timed)
    return rows(simulate(plan, machine, costs, iterations=1))


def test_a_transfer_takes_latency_and_bytes_over_bandwidth():
    assert run(copy("c", "p", "q", "x", "y"), machine=gpu("p", "q", links=(link("p", "q"),))) == [("c", 0.0, 1.25)]


def test_a_transfer_starts_when_its_value_is_written_and_its_reader_when_it_ends():
    timed = [task("f", 1.0, reads="x", writes="y", on="p"), copy("c", "p", "q", "y", "z"), task("g", 1.0, reads="z", writes="v", on="q")]
    assert run(*timed, machine=gpu("p", "q", links=(link("p", "q"),))) == [("f", 0.0, 1.0), ("c", 1.0, 2.25), ("g", 2.25, 3.25)]


def test_one_direction_moves_one_transfer_at_a_time():
    timed = [copy("c1", "p", "q", "x1", "y1", stream=8), copy("c2", "p", "q", "x2", "y2", stream=9)]
    assert run(*timed, machine=gpu("p", "q", links=(link("p", "q"),))) == [("c1", 0.0, 1.25), ("c2", 1.25, 2.5)]


def both_ways():
    return copy("out", "p", "q", "x1", "y1"), copy("back", "q", "p", "x2", "y2")


def test_a_duplex_link_moves_both_ways_at_full_speed():
    assert run(*both_ways(), machine=gpu("p", "q", links=(link("p", "q"),))) == [("out", 0.0, 1.25), ("back", 0.0, 1.25)]


def test_a_link_that_is_not_duplex_shares_one_bandwidth_between_both_ways():
    machine = gpu("p", "q", links=(link("p", "q", duplex=False),))
    assert run(*both_ways(), machine=machine) == [("out", 0.0, 2.25), ("back", 0.0, 2.25)]


def test_links_of_one_channel_share_its_bandwidth():
    links = link("host", "p", channel="bus"), link("host", "q", 100.0, channel="bus")
    timed = [copy("fast", "host", "p", "x1", "y1", on="p"), copy("slow", "host", "q", "x2", "y2", on="q")]
    # The slow link uses its 100 bytes/s, the fast link the other 300.
    spans = run(*timed, machine=gpu("p", "q", links=links))
    assert spans == [("fast", 0.0, pytest.approx(0.25 + 4 / 3)), ("slow", 0.0, pytest.approx(4.25))]


def test_a_route_over_several_links_takes_the_slowest_and_every_latency():
    machine = gpu("p", "q", links=(link("p", "host"), link("host", "q", 200.0)))
    assert run(copy("c", "p", "q", "x", "y"), machine=machine) == [("c", 0.0, 2.5)]


def test_an_alias_moves_nothing():
    timed = [task("f", 1.0, reads="x", writes="y", on="p"), copy("c", "p", "q", "y", "z"), task("g", 1.0, reads="z", writes="v", on="q")]
    expected = [("f", 0.0, 1.0), ("c", 1.0, 1.0), ("g", 1.0, 2.0)]
    assert run(*timed, machine=gpu("p", "q", memory="hbm")) == expected
    assert run(*timed, machine=gpu("p", "q", memory="hbm", links=(link("p", "q", alias=True),))) == expected
    assert run(*timed, machine=gpu("p", "q", memory="hbm", links=(link("p", "q"),)))[1] == ("c", 1.0, 2.25)


def test_an_alias_is_no_launch():
    timed = [copy("c", "p", "q", "x", "z"), task("g", 1.0, reads="z", writes="v", on="q")]
    machine = gpu("p", "q", memory="hbm", host=host("p", "q", dispatch_s=2.0, record_s=0.25, wait_s=0.5))
    assert run(*timed, machine=machine) == [("c", 0.25, 0.25), ("g", 2.75, 3.75)]


def test_on_a_cpu_a_core_moves_the_bytes():
    timed = [copy("c", "p", "q", "x", "y"), task("f", 1.0, reads="x", writes="z", on="p")]
    machine = cpu("p", "q", overhead_s=0.5, links=(link("p", "q"),))
    assert run(*timed, machine=machine) == [("c", 0.0, 1.75), ("f", 1.75, 3.25)]


def test_a_missing_link_is_named():
    plan, costs = build(copy("c", "p", "q", "x", "y"))
    with pytest.raises(SchedcastError, match="machine tiny-gpu has no link from 'p' to 'q'; add one"):
        simulate(plan, gpu("p", "q"), costs)


def test_waiting_for_a_link_is_a_cause():
    plan, costs = build(copy("c1", "p", "q", "x1", "y1", stream=8), copy("c2", "p", "q", "x2", "y2", stream=9))
    path = simulate(plan, gpu("p", "q", links=(link("p", "q"),)), costs, iterations=1).critical_path
    assert [(s.task, s.start_s, s.cause) for s in path] == [("c1", 0.0, Cause.START), ("c2", 1.25, Cause.LINK)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 50)), min_size=1, max_size=8), st.booleans())
def test_transfers_take_no_less_than_each_direction_and_no_more_than_all(transfers, duplex):
    names = [f"v{i}" for i in range(len(transfers))]
    timed = [
        copy(f"c{i}", *(("p", "q") if forth else ("q", "p")), names[i], f"{names[i]}'", stream=stream)
        for i, (forth, stream, _) in enumerate(transfers)
    ]
    plan, costs = build(*timed, lengths={name: 100 * size for name, (_, _, size) in zip(names, transfers, strict=True)})
    makespan = simulate(plan, gpu("p", "q", links=(link("p", "q", duplex=duplex),)), costs, iterations=1).step_s
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
