"""Each check of gpu-first finds a whole simulated GPU well, and the fault of a broken one. On a real GPU, every check is made."""

import pytest
import torch

from calibrate.preflight import cold_sets
from calibrate.preflight.check import WRONG, CheckContext, Finding
from calibrate.preflight.registry import CHECKS
from tests.fake_gpu import Times
from tests.support.first_gpus import (
    LONGER,
    SCALE,
    SMALL,
    BrokenByCaptures,
    Drifting,
    EmptySessions,
    FirstGpu,
    OneQueue,
    Overlapping,
    Refusing,
    Twice,
    opened,
)

BY_NAME = {check.name: check for check in CHECKS}

#: By check: simulated GPUs with a fault, and what the answer says.
FAULTS = {
    "versions": [
        (lambda: FirstGpu(facts=SMALL, compiler=False), "let NVRTC compile kernels"),
        (lambda: FirstGpu(facts=SMALL, profiler=False), "the profiler is refused"),
        (lambda: FirstGpu(facts=SMALL, partitionable=False), "make green contexts work"),
        (lambda: FirstGpu(facts=SMALL, callbacks=False), "let streams call the host"),
    ],
    "streams": [
        (lambda: OneQueue(facts=SMALL), "68 streams have 33"),
        (lambda: FirstGpu(facts=SMALL, streams=40), "let plans have more than 32 lanes"),
    ],
    "events": [(lambda: Twice(facts=SMALL), "1 became 7")],
    "captures": [(lambda: BrokenByCaptures(facts=SMALL), "must leave the GPU usable: RuntimeError: operation not permitted")],
    "host-calls": [
        (lambda: FirstGpu(facts=SMALL, callbacks=False), "leave turbodl:update=callback out"),
        (lambda: FirstGpu(facts=SMALL, times=Times(call_s=0.5)), "the issuing thread must not wait"),
    ],
    "updates": [
        (lambda: Drifting("aten._fused_adam_"), "the update adam:fused must equal torch.optim's"),
        (lambda: Refusing("aten._fused_sgd_"), "the update sgd:fused must equal torch.optim's: RuntimeError: aten._fused_sgd_ is not"),
    ],
    "halves": [
        (lambda: Overlapping(facts=SMALL), "in one graph, both ran on 64 SMs"),
        (lambda: FirstGpu(facts=SMALL, partitionable=False), "validate no plan on partitions"),
        (lambda: FirstGpu(facts=SMALL, compiler=False), "kernels of both halves in one graph fail"),
    ],
    "profiler": [(lambda: EmptySessions(facts=SMALL), "[[1, 0, 2], [0, 0, 0], [0, 0, 0]]")],
    "profiler-attached": [(lambda: FirstGpu(facts=SMALL, profiler=False), "let the profiler see kernels")],
    "numerics-fp32": [
        (lambda: Twice(facts=SMALL), "graph, fp32 must agree"),
        (lambda: Drifting("aten.native_batch_norm"), "plain PyTorch differs from itself"),
        (lambda: Refusing("aten.addmm"), "must run: "),
    ],
    "numerics-bf16": [(lambda: Drifting("aten.native_batch_norm"), "plain PyTorch differs from itself")],
    "attention": [
        (lambda: Drifting("aten._scaled_dot_product_flash_attention_for_cpu"), "plans must compute attention"),
        (lambda: Refusing("aten._scaled_dot_product_flash_attention_for_cpu"), "attention must run (float32)"),
    ],
    "cadence": [(lambda: FirstGpu(facts=SMALL, times=Times(gap_s=30e-6)), "find what holds up every kernel: in a graph")],
    "keys": [(lambda: Refusing("aten.gelu_backward"), "calibration must measure aten.gelu_backward.default (bf16)")],
    "numerics-nhwc": [(lambda: Twice(facts=SMALL), "graph, fp32 must agree")],
}


def answer(name: str, gpu: FirstGpu) -> tuple[Finding, CheckContext]:
    with opened(gpu, LONGER if name == "batch-norm" else SCALE) as context:
        return BY_NAME[name].run(context), context


@pytest.mark.parametrize("name", BY_NAME)
def test_a_gpu_without_faults_is_well(name):
    finding, context = answer(name, FirstGpu(facts=SMALL))
    assert (finding.verdict, finding.mend) == ("ok", ()), finding.means
    assert finding.means
    assert context.figures


def test_every_check_is_shown_able_to_fail():
    assert {*FAULTS, "batch-norm"} == set(BY_NAME), "a batch-norm has a test of its own"


@pytest.mark.parametrize(("name", "gpu", "said"), [(n, gpu, said) for n, faults in FAULTS.items() for gpu, said in faults])
def test_a_fault_is_found(name, gpu, said):
    faulty = gpu()
    faulty.races_allowed = True
    finding, _ = answer(name, faulty)
    assert finding.verdict == "differs"
    assert said in finding.means
    assert any(said in mend.text for mend in finding.mend)


@pytest.mark.parametrize(("share", "verdict"), [(1.0, "ok"), (0.5, "differs"), ("it cannot be captured", "differs")])
def test_a_batch_norm_calibrated_in_less_than_its_time_is_found(monkeypatch, share, verdict):
    """Sets that were not run once before the capture give a time that is far off, which the figures show."""
    monkeypatch.setattr(
        cold_sets, "_calibrated", lambda context: share if isinstance(share, str) else share * context.figures["backward_s"]
    )
    finding, context = answer("batch-norm", FirstGpu(facts=SMALL))
    assert finding.verdict == verdict
    assert [mend.worth for mend in finding.mend] == ([] if verdict == "ok" else [WRONG])
    assert context.figures["lazy_run_first_s"] == pytest.approx(context.figures["backward_s"])
    assert context.figures["lazy_not_run_first_s"] < context.figures["backward_s"] / 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch sees none")
@pytest.mark.parametrize("name", BY_NAME)
def test_a_real_gpu_is_well(name):
    from executors.cuda.torch_driver import gpu

    driver = gpu()
    finding = BY_NAME[name].run(CheckContext(driver))
    driver.use(torch.cuda.default_stream(driver.device))
    assert finding.verdict == "ok", finding.means
