"""An op on several threads takes no longer than on one, and no less than its part of that."""

import math
from dataclasses import replace

import pytest

from simulator.engine.costs.cost import FITTED, GUESSED, MEASURED, Z_90
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.relatives import ThreadRatios
from simulator.machine.this_cpu import this_cpu
from tests.support.small_plans import mm, value
from traces.documents.profile import Identity, KeyCost, Profile, Stats

ROWS = (8, 16, 32, 64, 128, 256)


def product(rows: int, device: str = "cpu:0"):
    task = mm("mm", value("a", (rows, 64), "input"), value("b", (64, 512), "parameter"), value("c", (rows, 512), "activation"))
    return replace(task, device=device)


def profile(together: float, alone_s: float = 1e-10) -> Profile:
    """Products that take `alone_s` per FLOP on one thread, and `together` times that on two."""
    costs = {}
    for rows in ROWS:
        task = product(rows)
        work = task.body.work(task)
        for share, seconds in (("2", work.flops * alone_s), ("2-threads", work.flops * alone_s * together)):
            stats = Stats(seconds, seconds, seconds, seconds, 9)
            costs[f"{task.body.key(task)}@{share}"] = KeyCost(stats, stats, "matmul", work.flops, work.bytes)
    return Profile(identity=Identity(kind="cpu", cpu="toy", cores=2), costs=costs)


def costs_of(rows: int, known: Profile):
    """The cost of a product on one thread and on two."""
    model = CostModel(this_cpu(known), known)
    return model.cost(product(rows)), model.for_pytorch.cost(product(rows, "cpu"))


@pytest.mark.parametrize(("together", "expected"), [(0.6, 0.6), (0.1, 0.5), (5.0, 1.0)])
@pytest.mark.parametrize("rows", [48, 1 << 20])
def test_an_op_that_was_not_measured_stays_within_its_bounds(together, expected, rows):
    """Also far beyond what was measured, where a fit on the times of two threads may be wrong by any factor."""
    alone, both = costs_of(rows, profile(together))
    assert (alone.source, both.source) == (FITTED, FITTED)
    assert both.cold_s / alone.cold_s == pytest.approx(expected)
    assert both.warm_s / alone.warm_s == pytest.approx(expected)
    assert alone.error <= both.error <= math.hypot(alone.error, math.log(2) / 2 / Z_90) + 1e-9


def test_what_was_measured_stays_as_it_is():
    alone, both = costs_of(ROWS[0], profile(5.0))
    assert both.source == MEASURED
    assert both.cold_s == pytest.approx(5 * alone.cold_s)


def test_without_ops_measured_in_both_ways_the_middle_of_the_bounds_is_assumed():
    known = profile(0.6)
    known.costs = {key: cost for key, cost in known.costs.items() if not key.endswith("2-threads")}
    alone, both = costs_of(48, known)
    assert both.cold_s / alone.cold_s == pytest.approx(math.sqrt(0.5))
    ratio = ThreadRatios(known).ratio("matmul", alone.cold_s, "2-threads", 2)
    assert ratio.value * math.exp(Z_90 * ratio.error) == pytest.approx(1.0)
    assert ratio.value * math.exp(-Z_90 * ratio.error) == pytest.approx(0.5)


def test_short_and_long_ops_have_ratios_of_their_own():
    """Tiny ops do not divide their work; the nearest ops by time decide."""
    known = profile(1.0)
    for number, key in enumerate(key for key in list(known.costs) if key.endswith("2-threads")):
        seconds = known.costs[key].warm.median_s
        for copy in range(5):
            small, large = (Stats(s, s, s, s, 9) for s in (1e-6 * (1 + copy / 10), 1e-1 * (1 + copy / 10)))
            for name, one, ratio in (("small", small, 1.0), ("large", large, 0.5)):
                both = Stats(one.median_s * ratio, 0.0, 0.0, 0.0, 9)
                known.costs[f"{name}{number}{copy}@2"] = KeyCost(one, one, "conv", 1.0, seconds)
                known.costs[f"{name}{number}{copy}@2-threads"] = KeyCost(both, both, "conv", 1.0, seconds)
    ratios = ThreadRatios(known)
    assert ratios.ratio("conv", 1e-6, "2-threads", 2).value == pytest.approx(1.0)
    assert ratios.ratio("conv", 1e-1, "2-threads", 2).value == pytest.approx(0.5)


def test_what_only_the_table_knows_comes_from_the_table():
    assert [cost.source for cost in costs_of(48, Profile(identity=Identity(kind="cpu", cores=2)))] == [GUESSED, GUESSED]
