"""Each quick probe finds a whole simulated GPU well, and the fault of a broken one. On a real GPU, every one is run."""

import json
import math
from dataclasses import replace

import pytest
import torch

from calibrate.preflight.probe import WRONG, Context, answer
from calibrate.preflight.probes import attention as probes_attention
from calibrate.preflight.probes import calibration
from calibrate.preflight.registry import probes
from executors.kernels.lowering import attention
from simulator.plan.bodies.opcall import OpCall
from tests.fake_gpu import FACTS, FakeGpu, Times
from tests.support import raw_attention
from tests.support.first_gpus import (
    LONGER,
    SCALE,
    SMALL,
    BrokenByCaptures,
    Drifting,
    EmptySessions,
    FirstGpu,
    Garbling,
    OneBlock,
    OneQueue,
    Overlapping,
    Refusing,
    Twice,
    first_of_two,
    opened,
)

BY_NAME = {probe.name: probe for probe in probes(()) if probe.file is None}
US = 1e-6
#: A write that replaces one in the cache takes no time.
REPLACING = Times(bytes_per_s=1e8, rewrite_factor=0.0)

#: By probe: simulated GPUs with a fault, and what the answer says.
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
        (lambda: FirstGpu(facts=SMALL, callbacks=False), "drop turbodl:update=callback"),
        (lambda: FirstGpu(facts=SMALL, times=Times(call_s=0.5)), "the issuing thread must not wait"),
    ],
    "updates": [
        (lambda: Drifting("aten._fused_adam_"), "the update adam:fused must equal torch.optim's"),
        (lambda: Refusing("aten._fused_sgd_"), "the update sgd:fused must equal torch.optim's: RuntimeError: aten._fused_sgd_ is not"),
    ],
    "partitions": [
        (lambda: Overlapping(facts=SMALL), "2 parts in one graph share 64 SMs"),
        (lambda: Overlapping(facts=SMALL), "a partition must keep to its SMs: 4 parts replayed ran on [64, 64, 64, 64] of 32"),
        (lambda: FirstGpu(facts=SMALL, partitionable=False), "validate no plan on partitions"),
        (lambda: FirstGpu(facts=SMALL, compiler=False), "kernels of 2 parts in one graph fail"),
    ],
    "urgency": [
        (
            lambda: FirstGpu(facts=SMALL, times=Times(beside={"aten.mm": 2.0, "aten.neg": 2.0})),
            "priorities, which must shorten what is urgent",
        )
    ],
    "profiler": [(lambda: EmptySessions(facts=SMALL), "[[1, 0, 2], [0, 0, 0], [0, 0, 0]]")],
    "profiler-attached": [(lambda: FirstGpu(facts=SMALL, profiler=False), "let the profiler see kernels")],
    "numerics-fp32": [
        (lambda: Twice(facts=SMALL), "graph, fp32 must agree"),
        (lambda: Drifting("aten.native_batch_norm"), "two of plain PyTorch differ"),
        (lambda: Refusing("aten.addmm"), "must run: "),
    ],
    "numerics-bf16": [(lambda: Drifting("aten.native_batch_norm"), "two of plain PyTorch differ")],
    "attention": [
        (lambda: Drifting("aten._scaled_dot_product_flash_attention_for_cpu"), "plans must compute attention"),
        (lambda: Refusing("aten._scaled_dot_product_flash_attention_for_cpu"), "attention must run (float32)"),
    ],
    "yardstick": [
        (lambda: Drifting("aten._fused_adamw_", math.inf), "let plain PyTorch train under autocast to bf16: its loss became nan")
    ],
    "cadence": [(lambda: FirstGpu(facts=SMALL, times=Times(gap_s=30e-6)), "find what holds up every kernel: in a graph")],
    "launches": [
        (
            lambda: FirstGpu(facts=SMALL, times=Times(switch_s=9e-6)),
            "change lanes less often: it takes the host 9.0 us, and a launch 8.0 us",
        ),
        (lambda: FirstGpu(facts=SMALL, times=Times(graph_node_s=6e-6)), "launches of graphs: the host needs 6.0 us per node"),
    ],
    "kernels": [
        (lambda: Refusing("aten.convolution_backward"), "measure convolution backward: RuntimeError: aten.convolution_backward is not"),
        (lambda: FirstGpu(facts=SMALL, partitionable=False), "measure co runs on halves: SchedcastError: Fake GPU cannot be partitioned"),
    ],
    "keys": [(lambda: Refusing("aten.gelu_backward"), "calibration must measure aten.gelu_backward.default (bf16)")],
    "writes": [(lambda: OneBlock(REPLACING, SMALL), "on 8 outputs in turn is calibrated as 0.5")],
    "numerics-nhwc": [(lambda: Twice(facts=SMALL), "graph, fp32 must agree")],
    "several-gpus": [
        (lambda: first_of_two(Garbling), "the numbers of two GPUs, eager, fp32 must agree: data-parallel, plain differ"),
        (lambda: first_of_two(FakeGpu, joint_captures=False), "let one graph have the work of two GPUs"),
    ],
}


def answered(name: str, gpu: FirstGpu) -> dict:
    with opened(gpu, LONGER if name == "batch-norm" else SCALE) as context:
        return answer(BY_NAME[name], context)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", BY_NAME)
def test_a_gpu_without_faults_is_well(name):
    fields = answered(name, FirstGpu(facts=SMALL))
    assert (fields["status"], fields["fixes"]) == ("done", []), fields["why"]
    assert fields["why"]
    assert fields["figures"]
    json.dumps(fields, allow_nan=False)


def test_every_probe_is_shown_able_to_fail():
    assert {*FAULTS, "batch-norm"} == set(BY_NAME), "a batch-norm has a test of its own"


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("name", "gpu", "said"), [(n, gpu, said) for n, faults in FAULTS.items() for gpu, said in faults])
def test_a_fault_is_found(name, gpu, said):
    faulty = gpu()
    faulty.races_allowed = True
    fields = answered(name, faulty)
    assert fields["status"] == "done"
    assert said in fields["why"]
    assert any(said in fix["text"] for fix in fields["fixes"])


def test_figures_are_the_simulated_gpus():
    """A small cache takes little time to flush."""
    law = {"graph_node_s": 0.5 * US, "graph_branch_s": 3 * US}
    times = Times(
        kernel_s=lambda op, size: 5 * US, gap_s=1 * US, cross_gap_s=2 * US, switch_s=1.5 * US, replay_s=7 * US,
        beside={"aten.mm of bfloat16": 3.0}, **law,
    )  # fmt: skip
    whole = {"sms_seen": [16] * 8, "shared": 0}
    with opened(FirstGpu(times, replace(FACTS, cache_bytes=4096))) as context:
        figures = {
            name: answer(BY_NAME[name], context)["figures"]
            for name in ("partitions", "cadence", "launches", "host-calls", "kernels", "profiler")
        }
        streams = answer(BY_NAME["streams"], context)["figures"]
    assert figures["partitions"]["8 parts"] == [16] * 8
    assert [figures["partitions"][f"8 parts {how}"] for how in ("eagerly", "replayed", "in one graph")] == [whole] * 3
    assert (streams["priorities"], streams["most_urgent"]) == ([-5, 0], -5)
    cadence = {"in a graph": 6 * US, "across two streams of a graph": 8 * US, "eagerly": 5 * US, "from graph to graph": 5 * US}
    assert figures["cadence"]["seconds"] == pytest.approx(cadence)
    assert figures["launches"]["switch_s"] == pytest.approx(1.5 * US)
    assert figures["launches"]["law"] == pytest.approx({"graph_launch_s": 7 * US, **law})
    calls = {"eager_s": 12 * US, "one_of_10_ms_s": 0.01, "two_of_10_ms_on_two_streams_s": 0.01}
    assert figures["host-calls"]["cost"] == pytest.approx(calls, rel=0.01)
    kernels = figures["kernels"]
    assert list(kernels["seconds_by_sms"]["gemm"]) == ["132", "64", "32", "16"]
    assert [round(pair["slow_downs"][0]) for pair in kernels["co_runs_on_halves"]] == [3, 3, 3, 3, 1]
    assert figures["profiler"]["product"]["profiler_s"] == pytest.approx(5 * US)


def test_one_output_stays_in_the_cache_and_those_of_calibration_do_not():
    (read_s, gap_s), figures = ((24 << 10) / 1e8, 3 * US), answered("writes", FirstGpu(REPLACING, SMALL))["figures"]
    expected = {"one_output_s": read_s + gap_s, "outputs_in_turn_s": 2 * read_s + gap_s, "calibrated_s": 2 * read_s + gap_s}
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    assert figures["one_output_over_outputs_in_turn"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("stored", ["as it comes", "in the plan's strides"])
def test_attention_whose_backward_finds_other_memory_is_found(stored, monkeypatch):
    """The probe runs a plan, so that it sees what the executors do between the two kernels."""
    raw_attention.install(monkeypatch)
    monkeypatch.setattr(probes_attention, "choice", attention.choice)
    if stored == "in the plan's strides":
        monkeypatch.setattr(OpCall, "opaque", ())
    fields = answered("attention", FirstGpu(facts=SMALL))
    wrong = [fix["text"] for fix in fields["fixes"] if fix["worth"] == WRONG]
    assert len(wrong) == (0 if stored == "as it comes" else 4)
    assert all("as PyTorch does: they differ by" in text for text in wrong)


@pytest.mark.parametrize(("share", "verdict"), [(1.0, "ok"), (0.5, "differs"), ("it cannot be captured", "differs")])
def test_a_batch_norm_calibrated_in_less_than_its_time_is_found(monkeypatch, share, verdict):
    """Sets that were not run once before the capture give a time that is far off, which the figures show."""
    monkeypatch.setattr(
        calibration, "_calibrated", lambda context: share if isinstance(share, str) else share * context.figures["backward_s"]
    )
    fields = answered("batch-norm", FirstGpu(facts=SMALL))
    assert [fix["worth"] for fix in fields["fixes"]] == ([] if verdict == "ok" else [WRONG])
    assert fields["figures"]["lazy_run_first_s"] == pytest.approx(fields["figures"]["backward_s"])
    assert fields["figures"]["lazy_not_run_first_s"] < fields["figures"]["backward_s"] / 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch sees none")
@pytest.mark.parametrize("name", BY_NAME)
def test_a_real_gpu_is_well(name):
    from executors.cuda.torch_driver import gpu

    driver = gpu()
    fields = answer(BY_NAME[name], Context(driver))
    driver.use(torch.cuda.default_stream(driver.device))
    assert (fields["status"], fields["fixes"]) == ("done", []), fields["why"]
