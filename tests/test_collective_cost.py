"""What a library's collective takes, by the points that were measured."""

import pytest
from tiny import build, rows, task

from calibrate.distributed.collectives import Shape, store_collective, unmeasured
from simulator.bodies.collective import Collective
from simulator.collective_cost import between
from simulator.costs import CostModel
from simulator.engine import simulate
from simulator.machine import Device, Link, Machine, Memory
from traces.profile import Identity, Profile

SUM = Collective("all-reduce", ("a", "b"))
LINKS = tuple(Link(s, t, 1.0, 100.0) for s, t in (("a", "b"), ("b", "a")))
PROCESSES = Machine("m", tuple(Device(name, "cpu", 1, {"fp32": 1e9}, "ram") for name in "ab"), (Memory("ram", 10**9, 1e9, 0),), (), LINKS)


def profile(**points) -> Profile:
    found = Profile(identity=Identity(kind="cpu"))
    for operation, known in points.items():
        store_collective(found, operation.replace("_", "-"), "gloo", 2, known)
    return found


@pytest.mark.parametrize(
    ("size_bytes", "seconds"), [(100, 1.0), (200, 3.0), (150, 2.0), (400, 4.0), (600, 5.0), (50, 0.0), (75, 0.5), (0, 0.0)]
)
def test_sizes_between_and_beyond_the_points_lie_on_lines(size_bytes, seconds):
    assert between([(100, 1.0), (200, 3.0), (400, 4.0)], size_bytes) == pytest.approx(seconds)


def test_noise_makes_no_larger_collective_faster_and_none_negative():
    falling = [(100, 2.0), (200, 1.0)]
    assert between(falling, 50) == 2.0
    assert between(falling, 1000) == 1.0


def test_a_single_point_holds_for_less_and_in_proportion_for_more():
    assert [between([(100, 2.0)], size) for size in (10, 100, 300)] == [2.0, 2.0, 6.0]


def test_points_of_the_same_size_are_replaced():
    found = profile(all_reduce=[(8, 1.0), (4, 0.5)])
    store_collective(found, "all-reduce", "gloo", 2, [(8, 2.0)])
    assert found.collectives == {"all-reduce|gloo|2": [(4, 0.5), (8, 2.0)]}


def test_a_measured_collective_takes_its_time_and_no_link():
    from dataclasses import replace

    plan, _ = build(task("sum", mutates="wa wb", on="a", body=SUM))  # 400 bytes of each device
    machine = replace(PROCESSES, library="gloo")
    for known, seconds in ((profile(all_reduce=[(400, 0.25)]), 0.25), (None, pytest.approx(2 * 1.0 + 2 * 200 / 100.0))):
        costs = CostModel(machine, known).resolve(plan)
        assert rows(simulate(plan, machine, costs, iterations=1)) == [("sum", 0.0, seconds)]


def test_what_is_missing_is_told_by_operation_ranks_and_bytes():
    plan, _ = build(
        task("sum", mutates="wa wb", on="a", body=SUM),
        task("again", mutates="wa wb", on="a", body=SUM),
        task("server", mutates="wa wb", on="a", body=Collective("all-reduce", ("a", "b"), "server", "a")),
    )
    assert list(unmeasured([plan], "gloo", profile())) == [Shape("all-reduce", 2, 400), Shape("all-reduce>server", 2, 400)]
    assert list(unmeasured([plan], "gloo", profile(all_reduce=[(400, 1.0)]))) == [Shape("all-reduce>server", 2, 400)]
