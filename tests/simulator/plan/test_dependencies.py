"""Derived edges: tiny exact cases, and every hazard of the sequential program found by brute force."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.plan.dependencies import Dependencies, box, overlap
from simulator.plan.plan import Plan, program
from simulator.plan.task import Operand, ViewStep
from tests.support.tiny import build, task


def edges(plan: Plan, period: int, iterations: int | None = None) -> dict[str, list[tuple[str, int, str]]]:
    """(task, periods earlier, kind) by task."""
    row = Dependencies(plan).edges(period, iterations)
    return {t.name: [(plan.tasks[e.index].name, e.delta, e.kind) for e in row[i]] for i, t in enumerate(plan.tasks)}


def test_an_activation_orders_its_writer_and_readers_within_the_iteration():
    plan, _ = build(task("f", reads="x", writes="y"), task("b", reads="y", writes="g"), task("c", reads="y g", writes="h"))
    assert edges(plan, 0) == edges(plan, 5) == {"f": [], "b": [("f", 0, "raw")], "c": [("f", 0, "raw"), ("b", 0, "raw")]}


def test_a_parameter_is_carried_from_period_to_period():
    plan, _ = build(task("f", reads="x w", writes="y"), task("b", reads="y w", writes="g"), task("u", reads="g", mutates="w"))
    assert edges(plan, 0)["u"] == [("f", 0, "war"), ("b", 0, "raw")]
    assert edges(plan, 0)["f"] == []
    assert edges(plan, 1) == edges(plan, 9)
    assert edges(plan, 1)["f"] == [("u", 1, "raw")]
    assert edges(plan, 1)["b"] == [("u", 1, "raw"), ("f", 0, "raw")]


def test_lag_picks_the_instance_of_the_iteration_worked_on():
    plan, _ = build(task("u", reads="g", mutates="w", lag=1), task("f", reads="x w", writes="y"), task("b", reads="y w", writes="g"))
    assert edges(plan, 0) == {"u": [], "f": [], "b": [("f", 0, "raw")]}
    assert edges(plan, 1)["u"] == [("f", 1, "war"), ("b", 1, "raw")]
    assert edges(plan, 1)["f"] == [("u", 0, "raw")]


def test_slices_that_do_not_overlap_do_not_conflict():
    plan, _ = build(
        task("left", reads="x", writes="y[0:50]"),
        task("right", reads="x", writes="y[50:100]"),
        task("low", reads="y[10:20]", writes="a"),
        task("all", reads="y", writes="b"),
    )
    by_task = edges(plan, 0)
    assert by_task["right"] == []
    assert by_task["low"] == [("left", 0, "raw")]
    assert by_task["all"] == [("left", 0, "raw"), ("right", 0, "raw")]


def test_values_on_one_storage_always_conflict():
    plan, _ = build(task("f", reads="x", writes="y"), task("g", reads="x", writes="z[0:10]"), task("h", reads="x", writes="z"))
    aliased = replace(plan, values={**plan.values, "z": replace(plan.values["z"], storage="y")})
    assert edges(aliased, 0) == {"f": [], "g": [("f", 0, "waw")], "h": [("f", 0, "waw"), ("g", 0, "waw")]}


def test_readers_that_no_write_covers_stay_few():
    # `u` writes only a slice of what `f` reads, so no write ever covers f's read. Each period's read must replace the earlier ones.
    plan, _ = build(task("f", reads="x w", writes="y"), task("u", reads="y", mutates="w[0:10]"))
    assert edges(plan, 9)["u"] == [("u", 1, "raw"), ("f", 0, "raw")]
    dependencies = Dependencies(plan)
    assert dependencies.edges(3) == dependencies.edges(30)


def test_after_a_skipped_task_orders_nothing():
    plan, _ = build(task("late", reads="x", writes="y", lag=1), task("f", reads="x", writes="z", after="late"))
    assert edges(plan, 0)["f"] == []
    assert edges(plan, 1)["f"] == [("late", 0, "after")]


def test_the_drain_depends_on_the_remaining_tasks():
    # In full periods c waits for b, which waits for a. In the drain b has no iterations left, so c must wait for a itself.
    plan, _ = build(task("c", mutates="w", lag=2), task("a", mutates="w", lag=1), task("b", mutates="w"))
    assert edges(plan, 5)["c"] == [("b", 1, "raw")]
    assert edges(plan, 8, iterations=8)["c"] == [("b", 1, "raw")]
    assert edges(plan, 9, iterations=8)["c"] == [("a", 1, "raw")]


def test_waits_keep_the_latest_edge_of_each_other_lane():
    plan, _ = build(
        task("a", reads="x", writes="p", stream=1),
        task("b", reads="x", writes="q", stream=1),
        task("c", reads="x", writes="r"),
        task("d", reads="p q r", writes="s"),
    )
    dependencies = Dependencies(plan)
    assert len(dependencies.edges(0)[3]) == 3
    assert [(e.index, e.delta) for e in dependencies.waits(0)[3]] == [(1, 0)]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("slice", "[0,2,5]")], ((2, 5), (0, 8))),
        ([("slice", "[1,-3]")], ((0, 10), (5, 8))),
        ([("slice", "[0,2,9]"), ("slice", "[0,1,3]")], ((3, 5), (0, 8))),
        ([("select", "[0,-1]"), ("slice", "[0,0,4]")], ((9, 10), (0, 4))),
        ([("slice", "[0,1,9,3]"), ("slice", "[0,0,1]")], ((1, 9), (0, 8))),  # the hull of a strided slice, without the steps after it
        ([("slice", "[0,0,9223372036854775807]")], None),
        ([("transpose", "[0,1]"), ("slice", "[0,0,1]")], None),
        ([("slice", "[0,0,1]"), ("as_strided", "[[80],[1],0]")], None),
    ],
)
def test_the_box_is_what_the_first_slices_and_selects_keep(steps, expected):
    names = {
        "slice": "aten.slice.Tensor", "select": "aten.select.int", "transpose": "aten.transpose.int",
        "as_strided": "aten.as_strided.default",
    }  # fmt: skip
    views = tuple(ViewStep(names[kind], args) for kind, args in steps)
    assert box(Operand("v", (1,), (1,), "float32", views), (10, 8)) == expected


def test_boxes_overlap_where_they_share_an_element():
    assert overlap(((0, 5), (0, 8)), ((4, 6), (7, 9)))
    assert not overlap(((0, 5), (0, 8)), ((5, 6), (0, 8)))
    assert overlap(None, ((5, 6),))


NAMES = ("w1", "w2", "a", "b", "x")
CUTS = ("", "[0:2]", "[2:4]", "[1:3]")


@st.composite
def plans(draw) -> Plan:
    """Tasks with random lags and lanes that access a few values of four elements, or slices of them."""
    count = draw(st.integers(1, 6))
    timed = []
    for i in range(count):
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        roles = {"reads": [], "writes": [], "mutates": []}
        for name in names:
            role = "reads" if name == "x" else draw(st.sampled_from(("reads", "writes", "mutates")))
            roles[role].append(name + draw(st.sampled_from(CUTS)))
        after = draw(st.lists(st.sampled_from([f"t{j}" for j in range(i)]), max_size=1)) if i else []
        more = {role: " ".join(texts) for role, texts in roles.items()}
        timed.append(task(f"t{i}", **more, after=" ".join(after), lag=draw(st.integers(0, 2)), stream=draw(st.integers(0, 2))))
    return build(*timed, lengths=dict.fromkeys(NAMES, 4))[0]


def touched(plan: Plan, index: int, period: int) -> dict[tuple[str, int], dict[int, bool]]:
    """By storage instance: element -> whether the task writes it (else it only reads it)."""
    t = plan.tasks[index]
    accesses: dict[tuple[str, int], dict[int, bool]] = {}
    for operands, writes in ((t.reads, False), (t.mutates, True), (t.writes, True)):
        for o in operands:
            storage = plan.storage_of(o)
            elements = accesses.setdefault((storage, -1 if storage in plan.carried else period - t.lag), {})
            low, high = (box(o, (4,)) or ((0, 4),))[0]
            for element in range(low, high):
                elements[element] = elements.get(element, False) or writes
    return accesses


def hazards(plan: Plan, iterations: int) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of executions that access the same element of an instance, one of them writing, and the pairs that `after` orders."""
    order = [(period, index) for period, index, _ in program(plan.tasks, iterations)]
    uses = {at: touched(plan, at[1], at[0]) for at in order}
    names = [t.name for t in plan.tasks]
    pairs = set()
    for position, later in enumerate(order):
        for earlier in order[:position]:
            shared = uses[earlier].keys() & uses[later].keys()
            if any(uses[earlier][s][e] or uses[later][s][e] for s in shared for e in uses[earlier][s].keys() & uses[later][s].keys()):
                pairs.add((earlier, later))
        pairs |= {((later[0], names.index(n)), later) for n in plan.tasks[later[1]].after if (later[0], names.index(n)) in uses}
    return pairs


def reached(direct: dict[tuple[int, int], set[tuple[int, int]]]) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """Transitive closure; `direct` is in sequential order."""
    closed: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for at, before in direct.items():
        closed[at] = before.union(*(closed[b] for b in before)) if before else set()
    return closed


@pytest.mark.thorough
@settings(max_examples=300)
@given(plans(), st.integers(1, 7))
def test_edges_and_waits_order_every_hazard_and_nothing_else(plan, iterations):
    dependencies = Dependencies(plan)
    expected = hazards(plan, iterations)
    by_edges, by_waits = {}, {}
    last_of_task, last_of_lane = {}, {}
    for period, index, t in program(plan.tasks, iterations):
        at = (period, index)
        direct = {(period - e.delta, e.index) for e in dependencies.edges(period, iterations)[index]}
        assert direct <= by_edges.keys(), "an edge to what does not run, or runs later"
        assert all((earlier, at) in expected for earlier in direct)
        by_edges[at] = direct | ({last_of_task[index]} if index in last_of_task else set())  # a task is on one lane, so it is serial
        waits = {(period - e.delta, e.index) for e in dependencies.waits(period, iterations)[index]}
        by_waits[at] = waits | ({last_of_lane[t.lane]} if t.lane in last_of_lane else set())
        last_of_task[index] = last_of_lane[t.lane] = at
    closures = reached(by_edges), reached(by_waits)
    for earlier, later in expected:
        assert all(earlier in closure[later] for closure in closures)
