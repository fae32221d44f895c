"""The errors of fitted costs are those of models left out whole, by class and by how far beyond the fitted keys they lie."""

import math
from dataclasses import replace

import pytest

from simulator.engine.costs.cost import FITTED
from simulator.engine.costs.fits import EVERY, LEAST_MODELS, LIMITS, SHIPPED, WIDE, Bin, LeftOut, left_out, shipped_left_out
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.roofline import Estimate, Point, fit
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.predict.intervals import TOGETHER, factors
from tests.support.small_plans import mm, value
from traces.documents.profile import Identity, KeyCost, Profile, Stats

H100 = load_machine("h100")


def product(rows: int, inner: int):
    task = mm("mm", value("a", (rows, inner), "input"), value("b", (inner, 512), "parameter"), value("c", (rows, 512), "activation"))
    return replace(task, device="cpu:0")


def profile(slow: dict[str, float]) -> Profile:
    """Eight products of each model; those of a model take `slow` times as long as its FLOPs say, all of them alike."""
    costs = {}
    for number, (model, factor) in enumerate(slow.items()):
        for rows in (16, 32, 48, 64, 96, 128, 192, 256):
            task = product(rows, 64 + number)
            work = task.body.work(task)
            stats = Stats.from_samples([work.flops * 1e-10 * factor])
            costs[f"{task.body.key(task)}@2"] = KeyCost(stats, stats, "matmul", work.flops, work.bytes, model=model)
    return Profile(identity=Identity(kind="cpu", cpu="toy", cores=2), costs=costs)


def fitted(known: Profile, rows: int):
    cost = CostModel(this_cpu(known), known).cost(product(rows, 100))
    assert cost.source == FITTED
    return cost


def test_models_that_differ_make_the_cost_of_the_next_one_uncertain():
    same, different = (profile(dict(zip("abcd", slow, strict=True))) for slow in ((1, 1, 1, 1), (1, 3, 1, 3)))
    assert fitted(same, 80).error < 0.1
    assert fitted(different, 80).error > math.log(3) / 2


def test_a_model_alone_says_nothing_of_the_next_one():
    """Its keys agree with each other; the shipped errors of other models count."""
    known = profile({"a": 1.0})
    assert CostModel(this_cpu(known), known)._fits.left_out is shipped_left_out()
    assert fitted(known, 80).error >= shipped_left_out().error("matmul", 0.0) > 0.1


def test_the_costs_of_a_class_err_together():
    known = profile({"a": 1.0})
    near, far = fitted(known, 80), fitted(known, 8000)
    assert near.common == far.common == "matmul@2"
    draws = [factors(f"matmul@2{TOGETHER}{error}", error) for error in (0.3, 0.6)]
    assert draws[0] ** 2 == pytest.approx(draws[1])


def test_residuals_are_weighted_by_seconds_within_a_model_and_alike_among_models():
    stats = {seconds: Stats.from_samples([seconds]) for seconds in (1.0, 3.0)}
    costs = {
        f"{model}{seconds}@2": KeyCost(stats[seconds], None, "conv", 1.0, 1.0, model=model)
        for model in "abcd"[:LEAST_MODELS]
        for seconds in (1.0, 3.0)
    }

    class Fits:
        def estimate(self, key: str, cost: KeyCost) -> Estimate:
            return Estimate(1.0, 0.0, 0.0)

    errors = left_out(Profile(identity=Identity(kind="cpu"), costs=costs), lambda model: Fits())
    rms = math.sqrt(3 / 4 * math.log(3) ** 2)
    assert errors.bins["conv"][0] == errors.bins[EVERY][0] == (LEAST_MODELS, pytest.approx(rms, abs=1e-3))
    assert errors.bins["conv"][1] == (0, 0.0)


def test_farther_is_never_surer():
    errors = LeftOut(("a",), {"conv": (Bin(5, 0.5), Bin(5, 0.2), Bin(1, 9.0), Bin(0, 0.0), Bin(5, 0.1)), EVERY: (Bin(5, 0.3),) * 5})
    told = [errors.error("conv", beyond) for beyond in (0.0, 1.0, LIMITS[2], 99.0, math.inf)]
    assert told == [0.5, 0.5, 0.5, 0.5, 0.1], "one model is too few; without keys of the class, its own bin counts"
    assert errors.error("conv.winograd", 0.0) == 0.5
    assert LeftOut((), {}).error("conv", 0.0) == WIDE


def test_the_shipped_errors_are_of_enough_models():
    errors = shipped_left_out()
    assert len(errors.models) >= LEAST_MODELS
    assert SHIPPED.name == "left_out.json"
    assert all(len(row) == len(LIMITS) + 1 and all(each.rms >= 0 for each in row) for row in errors.bins.values())
    assert errors.bins[EVERY][0].models >= LEAST_MODELS


# The fit recovers the law behind the times, and its error is that of unseen keys.


WORK = [(1e6 * 3**i, 1e5 * 2 ** ((7 * i) % 10)) for i in range(12)]


def points(law, noise=0.0):
    """Points whose times follow `law(flops, bytes)`, alternately longer and shorter by the factor exp(noise)."""
    return [Point(f, b, table_s=f / 1e9 + b / 1e9, seconds=law(f, b) * math.exp(noise * (-1) ** i)) for i, (f, b) in enumerate(WORK)]


def test_a_roofline_is_found():
    fitted = fit(points(lambda f, b: max(f / 1e10, b / 1e8)))
    assert fitted.law == "roofline"
    assert fitted.error < 0.05
    assert fitted.predict(Point(1e9, 1e5, 1.0)) == pytest.approx(0.1, rel=0.05)
    assert fitted.predict(Point(1e5, 1e8, 1.0)) == pytest.approx(1.0, rel=0.05)


def test_a_power_law_is_found():
    fitted = fit(points(lambda f, b: 1e-6 * f**0.5))
    assert fitted.law == "log-linear"
    assert fitted.predict(Point(1e8, 1e6, 1.0)) == pytest.approx(1e-2, rel=1e-3)


def test_a_table_that_is_off_by_a_factor_is_scaled():
    fitted = fit(points(lambda f, b: 3 * (f / 1e9 + b / 1e9)))
    assert fitted.law == "scaled"
    assert fitted.error == pytest.approx(0.0, abs=1e-9)
    assert fitted.predict(Point(1.0, 1.0, 2.0)) == pytest.approx(6.0)


def test_the_error_is_that_of_keys_left_out():
    fitted = fit(points(lambda f, b: 3 * (f / 1e9 + b / 1e9), noise=0.2))
    assert 0.15 < fitted.error < 0.5


def test_three_keys_are_too_few():
    assert fit(points(lambda f, b: 1.0)[:3]) is None
    assert fit([Point(1.0, 1.0, 1.0, seconds=0.0)] * 9) is None


def test_keys_without_flops_or_bytes_can_be_fitted():
    fitted = fit([Point(0.0, b, b / 1e9, seconds=1e-6 + b / 1e8) for b in (1e3, 1e4, 1e5, 1e6, 1e7)])
    assert fitted.predict(Point(0.0, 1e8, 0.1)) == pytest.approx(1.0, rel=0.3)
    assert fit([Point(0.0, 0.0, 1e-6, seconds=2e-6)] * 5).predict(Point(0.0, 0.0, 1e-6)) == pytest.approx(2e-6)


def test_beyond_the_fitted_keys_the_scaled_table_predicts():
    fitted = fit(points(lambda f, b: max(f / 1e10, b / 1e8)))
    near, far = Point(1e9, 1e6, 7.0), Point(1e15, 1e6, 7.0)
    assert fitted.at(near) == (fitted.predict(near), fitted.error, 0.0)
    assert fitted.at(far)[:2] == (fitted.scale.predict(far), fitted.scale.error)
    assert fitted.beyond(far) == pytest.approx(math.log(1e15 / WORK[-1][0]), rel=1e-3)
    assert fitted.scale.error > fitted.error


@pytest.mark.filterwarnings("error")
def test_less_than_one_flop_is_none():
    """A damaged profile may say so; dividing by it would overflow."""
    tiny = [Point(5e-324, b, table_s=1e-6, seconds=2e-9 * b) for _, b in WORK]
    assert fit(tiny).predict(Point(0.0, 1e6, 1.0)) == pytest.approx(2e-3, rel=0.1)


def gpu_product(edge: int, dtype: str):
    names = ("a", "input"), ("b", "parameter"), ("c", "activation")
    return replace(mm("mm", *(replace(value(name, (edge, edge), kind), dtype=dtype) for name, kind in names)), device="cuda:0")


def known_products(dtype: str, of_peak: float) -> Profile:
    """Small products in a data type, which reach that share of an H100's peak."""
    costs = {}
    for edge in range(256, 4096, 256):
        task = gpu_product(edge, dtype)
        work = task.body.work(task)
        stats = Stats.from_samples([work.flops / (of_peak * H100.devices[0].peak_flops["bf16"])])
        costs[f"{task.body.key(task)}@132"] = KeyCost(stats, stats, "matmul", work.flops, work.bytes, model="a")
    return Profile(identity=Identity(kind="gpu", gpu="NVIDIA H100 80GB HBM3", sms=132), costs=costs)


def test_measured_products_count_in_the_precision_that_their_keys_name():
    """A profile's products in bf16 were taken for products in float32, so that larger ones came out at five times the peak."""
    known = known_products("bfloat16", 0.5)
    cost = CostModel(H100, known).cost(task := gpu_product(65536, "bfloat16"))
    assert cost.source == FITTED
    assert 0.4 < task.body.work(task).flops / cost.cold_s / H100.devices[0].peak_flops["bf16"] < 0.9


def test_no_product_is_faster_than_the_peak():
    cost = CostModel(H100, known_products("bfloat16", 3.0)).cost(task := gpu_product(2000, "bfloat16"))
    assert cost.cold_s == pytest.approx(task.body.work(task).flops / H100.devices[0].peak_flops["bf16"])
