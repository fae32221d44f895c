"""Bytes over time. Values hold 400 bytes; names in w are parameters, in x inputs."""

from simulator.engine import simulate
from simulator.machine import Link
from simulator.memory import access_counts, carried_bytes, last_accesses, memory_over_time, peaks
from simulator.plan import INPUT
from tests.tiny import build, copy, cpu, gpu, task


def training():
    return build(
        task("f", 1.0, reads="x w", writes="y"),
        task("b", 1.0, reads="x y w", writes="g"),
        task("u", 1.0, reads="g", mutates="w"),
    )


def test_who_reads_last_and_how_many_read():
    plan, _ = training()
    assert last_accesses(plan) == [(), ("x", "y"), ("g",)]
    assert access_counts(plan) == {"x": 2, "y": 2, "g": 2}
    assert carried_bytes(plan) == {"d": 400}


def test_the_last_reader_is_found_across_lags():
    plan, _ = build(task("u", reads="g", mutates="w", lag=1), task("f", reads="x w", writes="g"))
    assert last_accesses(plan) == [("g",), ("x",)]


def test_activations_live_from_first_write_to_last_read():
    plan, costs = training()
    timeline = simulate(plan, cpu(), costs, iterations=1)
    # w always; x from the start to the end of b; y likewise; g while b and u run.
    assert timeline.memory == {"d": ((0.0, 1200), (1.0, 1600), (2.0, 800), (3.0, 400))}
    assert [(use.name, use.peak_bytes) for use in timeline.devices] == [("d", 1600)]


def test_an_input_is_there_before_it_is_read():
    plan, costs = build(task("first", 1.0, reads="x1", writes="y"), task("second", 1.0, reads="x2 y", writes="z"))
    assert simulate(plan, cpu(), costs, iterations=1).memory == {"d": ((0.0, 1200), (1.0, 1200), (2.0, 0))}
    fed_late = build(task("first", 1.0, reads="x1", writes="y"), task("second", 1.0, reads="y", writes="q"), kinds={"q": INPUT})
    assert simulate(fed_late[0], cpu(), fed_late[1], iterations=1).memory["d"][0] == (0.0, 1200)


def test_a_lag_keeps_an_instance_into_the_next_period():
    plan, costs = build(task("u", 1.0, reads="g", mutates="w", lag=1), task("f", 1.0, reads="x w", writes="g"))
    timeline = simulate(plan, cpu(), costs, iterations=2)
    assert [(s.task, s.period, s.iteration) for s in timeline.spans] == [("f", 0, 0), ("u", 1, 0), ("f", 1, 1), ("u", 2, 1)]
    assert timeline.memory == {"d": ((0.0, 1200), (1.0, 800), (2.0, 1200), (3.0, 800), (4.0, 400))}


def test_each_device_holds_its_own_storages():
    plan, costs = build(
        task("f", 1.0, reads="x w", writes="y", on="p"), copy("c", "p", "q", "y", "z"), task("g", 1.0, reads="z", writes="v", on="q")
    )
    timeline = simulate(plan, gpu("p", "q", links=(Link("p", "q", 0.0, 400.0),)), costs, iterations=1)
    assert timeline.memory == {"p": ((0.0, 1200), (1.0, 800), (2.0, 400)), "q": ((0.0, 0), (1.0, 400), (2.0, 800), (3.0, 0))}
    assert peaks(timeline.memory) == {"p": 1200, "q": 800}


def test_what_is_not_over_stays():
    plan, costs = training()
    spans = simulate(plan, cpu(), costs, iterations=1).spans
    assert memory_over_time(plan, spans[:1]) == {"d": ((0.0, 1200),)}
    assert memory_over_time(plan, ()) == {"d": ((0.0, 400),)}
