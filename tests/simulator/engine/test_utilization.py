"""MFU: the FLOPs of products and convolutions at the data sheet's peaks, over the step."""

import pytest

from simulator.engine.costs.model import CostModel
from simulator.engine.utilization import mfu, planned_mfu, seconds_at_peak
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.predict.answers import prediction
from simulator.predict.forecast import answer, plan_of
from simulator.predict.target import Target
from tests.support.jobs import MLP

H100 = load_machine("h100")


@pytest.fixture
def layers(tmp_path):
    """A convolution whose output has 4 * 6 * 6 elements of 3 * 3 * 3 products, and a linear layer from these to 10, of 8 samples."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from torch import nn, rand, randint\n"
        "def make(batch):\n"
        "    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10))\n"
        "    return model, rand(batch, 3, 8, 8), randint(10, (batch,))\n"
    )
    return f"{path}:make"


def test_convolutions_count_in_tf32_and_products_in_fp32_by_default(layers):
    """Forward and two products in backward; the first layer has no gradient of its input."""
    peaks = H100.devices[0].peak_flops
    convolution, linear = 2 * 8 * 144 * 27, 2 * 8 * 144 * 10
    for precision, own in (("default", ("tf32", "fp32")), ("tf32", ("tf32", "tf32")), ("bf16", ("bf16", "bf16"))):
        job = Job(layers, 8, precision=precision)
        model = CostModel(H100, None, precision if precision != "bf16" else None)
        plan = plan_of(job, "pytorch", Target(H100, model))
        expected = 2 * convolution / peaks[own[0]] + 3 * linear / peaks[own[1]]
        assert planned_mfu(plan, H100, 1e-3, model.precision) == pytest.approx(expected / 1e-3)


def test_a_document_has_it_and_a_cpu_has_none():
    known = []
    for machine in (H100, this_cpu()):
        result = answer(Job(MLP, 4), "baseline", Target.of(CostModel(machine)))
        known.append((prediction(result, None, "fp32").mfu, planned_mfu(result.plan, machine, result.timeline.step_s, "fp32")))
    assert known[0][0] == known[0][1]
    assert known[0][0] is not None
    assert known[1] == (None, None)


def test_the_same_work_on_more_devices_uses_a_smaller_share_of_them():
    machine = load_machine("p100x4", devices=2)
    one, two = (
        planned_mfu(plan_of(Job(MLP, 4), text, Target.of(CostModel(machine))), machine, 1e-3, "fp32")
        for text in ("baseline", "data-parallel")
    )
    assert two == pytest.approx(one / 2)


def test_eight_bits_are_twice_as_fast_as_sixteen():
    device = H100.devices[0]
    assert seconds_at_peak(device, 1e12, "c10::Float8_e4m3fn") == seconds_at_peak(device, 5e11, "bf16")
    assert mfu(seconds_at_peak(load_machine("p100").devices[0], 1e12, "c10::Float8_e4m3fn"), 1.0) is None
