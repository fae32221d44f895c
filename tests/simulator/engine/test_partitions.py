"""Partitions of one GPU, second by second: kernels that copy, kernels that compute, transfers from the host, and one host thread for all.

Values hold 400 bytes, the link with the host moves 400 bytes/s after 0.25 s, a part has 10 SMs.
"""

from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, HostLane, Link, Machine
from simulator.plan.bodies.copy import Copy
from tests.support.tiny import build, copy, gpu, host, rows, task

#: Every SM of a partition, in one wave.
FULL = 10


def halves(lane: HostLane | None = None) -> Machine:
    """Two partitions of one GPU, which share the link to the host."""
    links = tuple(Link(HOST, name, 0.25, 400.0, channel="bus") for name in "pq")
    return gpu("p", "q", memory="hbm", host=lane, links=links)


def moved(name: str, source: str, target: str, reads: str, mutates: str, seconds: float = 1.0, stream: int = 1, **more):
    """A kernel on the target that adds to the mutated value."""
    return task(name, seconds, reads=reads, mutates=mutates, on=target, stream=stream, body=Copy(source, target, True, "kernel"), **more)


def run(*timed, machine: Machine, mode: str = "eager", iterations: int = 1):
    plan, costs = build(*timed)
    return rows(simulate(plan, machine, costs, iterations=iterations, mode=mode))


def test_sums_overlap_with_computation():
    """q adds p's gradient to its own while both go on computing. The readers of the sum wait for it."""
    timed = [
        task("backward.p", 1.0, reads="x", writes="g", on="p", grid=FULL),
        task("backward.q", 1.0, reads="x'", writes="g'", on="q", grid=FULL),
        moved("add", "p", "q", "g", "g'", 0.5),
        task("more.p", 2.0, reads="x", writes="h", on="p", grid=FULL),
        task("more.q", 2.0, reads="x'", writes="h'", on="q", grid=FULL - 1),
        task("update.q", 1.0, reads="g'", mutates="w'", on="q", grid=FULL),
    ]
    assert run(*timed, machine=halves()) == [
        ("backward.p", 0.0, 1.0), ("backward.q", 0.0, 1.0), ("add", 1.0, 1.5), ("more.p", 1.0, 3.0), ("more.q", 1.0, 3.0),
        ("update.q", 3.0, 4.0),
    ]  # fmt: skip


def test_a_sum_waits_for_sms_of_its_own_partition_only():
    """A kernel that fills q delays the sum; a kernel that fills p does not."""
    timed = [
        task("f.p", 3.0, reads="x", writes="y", on="p", grid=FULL),
        task("g.p", 0.5, reads="x", writes="v", on="p", stream=2, grid=1),
        task("f.q", 2.0, reads="x'", writes="y'", on="q", grid=FULL),
        moved("to q", HOST, "q", "a", "b"),
        moved("to p", HOST, "p", "a", "c", stream=3),
    ]
    spans = run(*timed, machine=gpu("p", "q", memory="hbm"))
    assert spans == [("f.p", 0.0, 3.0), ("f.q", 0.0, 2.0), ("to q", 2.0, 3.0), ("g.p", 3.0, 3.5), ("to p", 3.0, 4.0)]


def test_an_alias_costs_one_event():
    """In a graph it costs the gap between nodes of two lanes, once; in eager mode, one recorded and awaited event."""
    timed = [
        task("f", 1.0, reads="x", writes="y", on="p"),
        task("send", 0.0, reads="y", writes="z", on="q", stream=1, body=Copy("p", "q", means="alias")),
        task("g", 1.0, reads="z", writes="v", on="q"),
    ]
    graph = halves(host("p", "q", cross_gap_s=0.5))
    assert run(*timed, machine=graph, mode="graph") == [("f", 0.0, 1.0), ("send", 1.5, 1.5), ("g", 1.5, 2.5)]
    eager = halves(host("p", "q", dispatch_s=0.125, record_s=0.25, wait_s=0.5))
    assert run(*timed, machine=eager) == [("f", 0.375, 1.375), ("send", 1.375, 1.375), ("g", 1.75, 2.75)]


def test_a_fetch_over_the_link_overlaps_with_computation():
    """The fetch takes no SMs, so it slows no kernel down."""
    timed = [
        task("f", 2.0, reads="x", writes="y", on="p", grid=FULL),
        copy("fetch", HOST, "p", "x1", "z", on="p", stream=1),
        task("g", 1.0, reads="z", writes="v", on="p", stream=1, grid=FULL),
    ]
    assert run(*timed, machine=halves()) == [("f", 0.0, 2.0), ("fetch", 0.0, 1.25), ("g", 2.0, 3.0)]


def test_both_partitions_fetch_over_one_link():
    """Each gets half of the link's rate while both fetch, and all of it alone."""
    timed = [copy("p's", HOST, "p", "x1", "y1", on="p"), copy("q's", HOST, "q", "x2", "y2", on="q")]
    assert run(*timed, machine=halves()) == [("p's", 0.0, 2.25), ("q's", 0.0, 2.25)]
    assert run(timed[0], machine=halves()) == [("p's", 0.0, 1.25)]


def test_one_thread_issues_to_both_partitions_in_plan_order():
    timed = [task(f"{name}{turn}", 1.0, reads=f"x{name}", writes=f"y{name}{turn}", on=name) for turn in range(2) for name in "pq"]
    machine = halves(host("p", "q", dispatch_s=0.5))
    assert run(*timed, machine=machine) == [("p0", 0.5, 1.5), ("q0", 1.0, 2.0), ("p1", 1.5, 2.5), ("q1", 2.0, 3.0)]
