"""Calibrate, predict, run and compare on a simulated GPU, whose kernels' times nothing but measuring can tell: the circle must close."""

from dataclasses import replace

import mlp
import pytest
from fake_gpu import FACTS, FakeGpu

from calibrate.cuda.bench import Effort
from calibrate.cuda.stand import GpuStand
from calibrate.validation import validate
from simulator.job import Job
from traces.profile import Profile

#: Rates are measured on what a share of the memory holds, on this machine's CPU.
SMALL = replace(FACTS, memory_bytes=256 << 20)
QUICK = Effort(rounds=3, graph_s=5e-5, most_copies=8, most_sets=4)
STRATEGIES = ["baseline", "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on"]


def stand_on(gpu: FakeGpu, mode: str = "eager", **fields) -> GpuStand:
    return GpuStand(gpu, mode, effort=QUICK, anchor_edge=32, transfer_sizes=(4096, 65536, 1 << 20), **fields)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("model", [f"{mlp.__file__}:make", "lenet5"], ids=["mlp", "lenet5"])
def test_predicted_is_measured(model, mode):
    job = Job(model, 4, optimizer="adam")
    with FakeGpu(facts=SMALL) as gpu:
        stand = stand_on(gpu, mode)
        profile = Profile(identity=stand.identity)
        outcome = validate(job, STRATEGIES, {}, profile, stand=stand, mode=mode)
    assert outcome.same_numbers
    assert outcome.validation.mode == mode
    errors = {row.strategy + str(row.options): row.error for row in outcome.validation.results}
    print(errors)
    assert all(abs(error) < 0.03 for error in errors.values()), errors
    assert outcome.validation.aa_spread < 0.01
