"""The walk of a plan through the cache. Values have 400 bytes."""

from simulator.engine.recipes import Cache, resident_shares
from simulator.engine.simulation import simulate
from tests.support.tiny import build, cpu, task


def test_the_least_recently_used_bytes_are_evicted():
    cache = Cache(1000)
    assert [cache.touch(name, 400, 400) for name in (1, 2, 3, 2)] == [0.0, 0.0, 0.0, 1.0]
    assert cache.touch(1, 400, 400) == 0.5  # half of it was evicted for 3
    assert cache.touch(2, 400, 400) == 1.0


def test_a_storage_larger_than_the_cache_fills_it():
    cache = Cache(1000)
    assert cache.touch(1, 4000, 4000) == 0.0
    assert cache.touch(1, 4000, 4000) == 0.25


def test_bytes_of_a_storage_are_loaded_bit_by_bit():
    cache = Cache(1000)
    assert [cache.touch(1, 200, 400) for _ in range(2)] == [0.0, 0.5]
    cache.drop(1)
    assert cache.touch(1, 200, 400) == 0.0


def shares(plan, cache_bytes):
    return resident_shares(plan, cpu(cache_bytes=cache_bytes))


def test_a_large_cache_holds_all_but_the_input():
    plan, _ = build(task("f", reads="x w", writes="y"), task("b", reads="y w", writes="g"), task("u", reads="g", mutates="w"))
    assert shares(plan, 10**6) == [0.5, 1.0, 1.0]
    assert shares(plan, 0) == [0.0, 0.0, 0.0]


def layers(*order):
    """The backward of three layers, which writes g1, g2 and g3, and their updates, in the given order."""
    backward = {f"b{i}": task(f"b{i}", reads=f"w{i} y", writes=f"g{i}") for i in "321"}
    updates = {f"u{i}": task(f"u{i}", reads=f"g{i}", mutates=f"w{i}") for i in "321"}
    first = task("f", reads="x", writes="y")
    return build(first, *({**backward, **updates}[name] for name in order))[0]


def test_an_update_right_after_its_backward_reads_gradient_and_parameter_from_the_cache():
    apart = shares(layers("b3", "b2", "b1", "u3", "u2", "u1"), 1200)
    fused = shares(layers("b3", "u3", "b2", "u2", "b1", "u1"), 1200)
    assert apart[4:] == [0.0, 0.0, 0.0]
    assert [fused[2], fused[4], fused[6]] == [1.0, 1.0, 1.0]


def test_a_task_that_reads_nothing_misses_nothing():
    assert shares(build(task("fill", writes="y"))[0], 0) == [1.0]


def test_instances_of_long_lags_are_walked():
    plan, _ = build(task("late", reads="g", mutates="w", lag=3), task("f", reads="x", writes="g"))
    assert shares(plan, 10**6)[0] == 1.0


def test_time_lies_between_cold_and_warm():
    plan, costs = build(task("f", 1.0, cold_s=3.0, reads="x w", writes="y"))
    machine = cpu(cache_bytes=10**6)
    assert simulate(plan, machine, costs, iterations=1).step_s == 2.0  # w is in the cache, x is not
    assert simulate(plan, machine, costs, iterations=1, use_cache=False).step_s == 3.0


def test_parameters_that_no_longer_fit_are_read_again():
    plan, _ = build(*(task(f"f{i}", reads=f"w{i}", writes=f"y{i}") for i in range(4)))
    assert shares(plan, 2000) == [1.0] * 4
    assert shares(plan, 1600) == [0.0] * 4  # written values take up cache too
