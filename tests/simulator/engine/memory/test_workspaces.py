"""What the library of matrix products keeps allocated for each lane is part of the predicted memory."""

from dataclasses import replace

from simulator.engine.costs.model import CostModel
from simulator.engine.memory.over_time import workspace_bytes
from simulator.predict.forecast import forecast
from tests.support.small_plans import W1, W2, H, X, Y, machine, mm, plan_of

SIZE = 32 << 20


def keeping(size: int):
    """A GPU whose lanes keep `size` bytes each."""
    plain = machine()
    return replace(plain, devices=tuple(replace(device, workspace_bytes=size) for device in plain.devices))


def two_lanes():
    return plan_of([mm("first", X, W1, H), mm("second", H, W2, Y, stream=1)], [X, W1, W2, H, Y])


def test_every_lane_with_a_product_keeps_a_workspace():
    assert workspace_bytes(two_lanes(), keeping(SIZE)) == {"cuda:0": 2 * SIZE}
    assert workspace_bytes(two_lanes(), keeping(0)) == {}


def test_the_peak_and_what_it_consists_of_include_them():
    plan = two_lanes()
    with_them, without = (forecast(plan, m, CostModel(m)) for m in (keeping(SIZE), keeping(0)))
    assert with_them.peak_bytes["cuda:0"] == without.peak_bytes["cuda:0"] + 2 * SIZE
    assert with_them.memory_bytes["memory:0"] == without.memory_bytes["memory:0"] + 2 * SIZE
    assert with_them.at_peak[0].bytes == with_them.peak_bytes["cuda:0"]
    assert with_them.at_peak[0].by_kind["scratch"] == 2 * SIZE
    assert "scratch" not in without.at_peak[0].by_kind
    assert set(with_them.timeline.memory_kinds["cuda:0"].held_bytes["scratch"]) == {2 * SIZE}
