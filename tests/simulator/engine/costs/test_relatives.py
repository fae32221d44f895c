"""Keys of another batch or image size are scaled from the measured key of the same op."""

import math
from dataclasses import replace

import pytest

from simulator.engine.costs.cost import DATASHEET, FITTED, MEASURED, Z_90
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.relatives import Relatives, ThreadRatios, scaling_error
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.keys import cost_key
from simulator.strategies import registry as strategies
from tests.support.small_plans import mm, value
from traces.documents.profile import Identity, KeyCost, Profile, Stats


def relatives(*keys):
    return Relatives([("family", key) for key in keys])


def test_the_nearest_key_differs_by_one_factor():
    known = relatives("mm|f32[8,100]|f32[100,10]@80", "mm|f32[16,100]|f32[100,10]@80", "mm|f32[16,50]|f32[100,10]@80")
    key, log = known.nearest("family", "mm|f32[64,100]|f32[100,10]@80")
    assert (key, log) == ("mm|f32[16,100]|f32[100,10]@80", pytest.approx(math.log(4)))


def test_all_extents_that_differ_do_so_by_the_same_factor():
    known = relatives("conv|f32[8,3,32,32]|f32[6,3,5,5]@80")
    assert known.nearest("family", "conv|f32[8,3,64,64]|f32[6,3,5,5]@80")[1] == pytest.approx(math.log(2))
    assert known.nearest("family", "conv|f32[16,3,64,64]|f32[6,3,5,5]@80")[1] == pytest.approx(math.log(2))
    assert known.nearest("family", "conv|f32[16,3,96,96]|f32[6,3,5,5]@80") is None


def test_there_is_no_relative_in_another_family_or_on_other_sms():
    known = relatives("mm|f32[8,100]@80")
    assert known.nearest("other", "mm|f32[16,100]@80") is None
    assert known.nearest("family", "mm|f32[16,100]@40") is None


def test_little_error_comes_with_little_scaling():
    assert scaling_error(0.3, math.log(1.1)) < 0.05
    assert scaling_error(0.3, math.log(8)) == 0.3


def test_what_is_special_about_a_layer_stays_at_another_batch():
    """Every second layer was measured at three times the time by FLOPs; a fit over all layers cannot know which."""
    machine = load_machine("v100")
    strategy, options = strategies.parse("baseline")
    profile = Profile(identity=Identity(kind="gpu", gpu="Tesla V100-SXM2-16GB", sms=80))
    slow = {}
    for index, task in enumerate(strategy.plan(Job("lenet5", 64), machine, None, options).tasks):
        work = task.body.work(task)
        seconds = (1e-5 + work.flops / 5e12 + work.bytes / 5e11) * (3 if index % 2 else 1)
        stats = Stats(seconds, seconds, seconds, seconds, 1)
        profile.costs.setdefault(cost_key(task, machine), KeyCost(stats, None, work.op_class, work.flops, work.bytes))
        slow.setdefault(task.name, index % 2)
    model = CostModel(machine, profile)
    convolutions = {}
    for task in strategy.plan(Job("lenet5", 128), machine, None, options).tasks:
        cost = model.cost(task)
        if task.body.kind == "op" and ".mm." in task.body.target:
            assert cost.source == FITTED
            convolutions[task.name] = (cost.cold_s, slow[task.name])
    assert min(s for s, is_slow in convolutions.values() if is_slow) > 2 * max(s for s, is_slow in convolutions.values() if not is_slow)


# An op on several threads takes no longer than on one, and no less than its part of that.


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
    assert [cost.source for cost in costs_of(48, Profile(identity=Identity(kind="cpu", cores=2)))] == [DATASHEET, DATASHEET]
