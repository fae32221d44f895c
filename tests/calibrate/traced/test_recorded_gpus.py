"""Public traces of a V100 and an H100: matched shares, the recorded step predicted, layers held out, other batches."""

from functools import cache
from pathlib import Path

import pytest

from calibrate.traced.from_trace import Traced, profile_from_trace
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import gpu_machine
from simulator.model.job import Job
from simulator.predict.forecast import forecast_many
from tests.support.shared_data import shared_folder
from traces.documents.comparison import PYTORCH
from traces.errors import SchedcastError

KINETO = shared_folder("kineto")
pytestmark = pytest.mark.skipif(KINETO is None, reason="needs the shared measurements (kineto)")

RESNET = ("v100_resnet50_bs32_1gpu_oldschema.json.gz", Job("resnet50", 32, optimizer="momentum", form="for"))
VGG = ("h100_vgg13_bs512_adam_one_step.json.gz", Job("vgg13", 512, optimizer="adam", precision="tf32"))
#: Seconds from the device synchronization before VGG-13's step to the one behind it.
VGG_STEP_S = 0.3481


@cache
def traced(name: str, job: Job) -> Traced:
    return profile_from_trace(Path(KINETO) / name, job)


def forecasts(result: Traced, job: Job, strategies: list[str]) -> dict:
    machine = gpu_machine(result.profile)
    return dict(forecast_many(job, strategies, {}, machine, CostModel(machine, result.profile, job.precision)))


@pytest.mark.parametrize(("name", "job", "steps"), [(*RESNET, 6), (*VGG, 1)])
def test_nearly_all_kernel_time_belongs_to_the_job(name, job, steps):
    result = traced(name, job)
    assert result.share >= 0.95
    assert (result.steps, dict(result.missing)) == (steps, {})


@pytest.mark.parametrize(("name", "job"), [RESNET, VGG])
def test_the_recorded_step_is_predicted(name, job):
    result = traced(name, job)
    assert result.check.step_s == pytest.approx(result.step_s, rel=0.05)


@pytest.mark.parametrize(("name", "job"), [RESNET, VGG])
def test_half_of_the_layers_are_priced_by_the_other_half(name, job):
    result = traced(name, job)
    assert result.check.held_out_s == pytest.approx(result.step_s, rel=0.1)
    assert abs(result.check.held_out_kernels) < 0.3


def test_vgg13_takes_as_long_as_from_one_synchronization_to_the_next():
    result = forecasts(traced(*VGG), VGG[1], ["baseline"])
    assert result["baseline"].timeline.step_s == pytest.approx(VGG_STEP_S, rel=0.02)
    assert result[PYTORCH].timeline.step_s == pytest.approx(VGG_STEP_S, rel=0.02)


def test_resnet50_without_its_data_loading_takes_as_long_as_its_host_or_its_kernels():
    result = traced(*RESNET)
    plain = forecasts(result, RESNET[1], ["baseline"])[PYTORCH]
    kernels_s = sum(cost.cold_s for cost in plain.costs)
    assert kernels_s < plain.timeline.step_s < result.step_s < result.period_s
    assert result.period_s - result.outside_s == pytest.approx(plain.timeline.step_s, rel=0.05)


@pytest.mark.parametrize("batch", [128, 256, 384])
def test_vgg13_at_another_batch_takes_nearly_proportional_time(batch):
    job = Job("vgg13", batch, optimizer="adam", precision="tf32")
    (baseline,) = [f for name, f in forecasts(traced(*VGG), job, ["baseline"]).items() if name == "baseline"]
    proportional_s = VGG_STEP_S * batch / 512
    assert proportional_s * 0.95 < baseline.timeline.step_s < proportional_s * 1.15
    assert baseline.shares.fitted > 0.9
    low_s, high_s = baseline.interval_s
    assert low_s < proportional_s * 1.03, "a smaller batch takes a little longer per image"
    assert proportional_s < high_s


def test_every_strategy_of_one_gpu_is_predicted_with_measured_costs():
    result = forecasts(traced(*RESNET), RESNET[1], ["baseline", "backward-fusion", "forward-fusion", "turbodl"])
    assert all(forecast.shares.guessed == 0 and forecast.shares.measured > 0.95 for forecast in result.values())


@pytest.mark.parametrize(
    ("name", "job", "words"),
    [
        (RESNET[0], Job("resnet101", 32, optimizer="momentum", form="for"), "of another model than resnet101"),
        (RESNET[0], Job("resnet50", 64, optimizer="momentum", form="for"), "another batch or image size"),
        (VGG[0], Job("vgg16", 512, optimizer="adam", precision="tf32"), "of another model than vgg16"),
        (VGG[0], Job("vgg13", 512, optimizer="adam"), "computes in TF32"),
        ("v100_cnn_1gpu.json.gz", Job("resnet50", 32), "recorded without shapes"),
        ("a100_dlrm_rank3of8.json.gz", Job("resnet50", 32), "of another model than resnet50"),
    ],
)
def test_other_jobs_are_refused(name, job, words):
    with pytest.raises(SchedcastError, match=words):
        profile_from_trace(Path(KINETO) / name, job)
