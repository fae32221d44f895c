"""Traces that are no evidence for a job are refused in one line, with the share that was matched."""

import pytest

from calibrate.traced.from_trace import profile_from_trace
from simulator.model.job import Job
from tests.support.plan_traces import Recorder
from traces.errors import SchedcastError

JOB = Job("lenet5", 4, optimizer="sgd")


@pytest.fixture
def refusal(tmp_path):
    """Takes a recorder and the job that its trace is said to be of; returns the message."""

    def refused(recorder, job=JOB):
        with pytest.raises(SchedcastError) as caught:
            profile_from_trace(recorder.trace.save(tmp_path / "trace.json.gz"), job)
        return str(caught.value)

    return refused


#: By case: the job that was recorded, how, and what the refusal says.
REFUSED = {
    "another model": (
        Job("alexnet_cifar", 4, optimizer="sgd"), {}, "is not a training step of lenet5 with batch 4 (matched: ",
        "% of the expected time of lenet5, expected at least 80.0 % of each)",
    ),
    "another batch": (
        Job("lenet5", 8, optimizer="sgd"), {}, "matched: ",
        "another batch or image size than --batch 4: its first op takes [8, 1, 32, 32], that of the job [4, 1, 32, 32]",
    ),
    "inference": (
        JOB, {"backward": False, "update": False},
        "has no backward pass: inference only (matched: 100.0 % of its kernel time with lenet5); record training steps",
    ),
    "no shapes": (
        JOB, {"shapes": False}, "without shapes", "(matched by order and names alone: 100.0 % of lenet5); record with record_shapes=True",
    ),
    "CUDA graphs": (JOB, {"launch": "cudaGraphLaunch"}, "100.0 % of its kernel time was launched by CUDA graphs"),
    "compiled code": (JOB, {"kernel": "triton_poi_fused_{}"}, "under torch.compile: 100.0 % of its kernel time is in generated kernels"),
    "another precision": (JOB, {"kernel": "sm80_xmma_gemm_tf32f32_{}"}, "computes in TF32: 100.0 %"),
    "half precision": (JOB, {"kernel": "volta_fp16_s884gemm_{}"}, "computes in 16 bits: 100.0 %"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_trace_of_something_else_is_refused_by_what_it_is(refusal, case):
    job, options, *said = REFUSED[case]
    message = refusal(Recorder(job, **options).steps(2))
    assert [words for words in said if words not in message] == []


def test_another_model_with_other_gradients(refusal):
    recorder = Recorder(JOB).steps(2)
    for number, event in enumerate([event for event in recorder.trace.events if event["name"] == "aten::addmm"]):
        recorder.trace.op("torch::autograd::AccumulateGrad", event["ts"], 1.0, [[5, number % 3 + 1]], thread=3)
    assert "is of another model than lenet5: it computes gradients of 3 parameters, of which 0 have the shapes" in refusal(recorder)


def test_two_models(refusal):
    recorder = Recorder(JOB)
    other = Recorder(Job("vgg11", 4, 32, optimizer="sgd"))
    for _ in range(3):
        recorder.steps(1)
        other.host_us, other.gpu_us, other.trace = recorder.host_us, recorder.gpu_us, recorder.trace
        for task in other.plan.tasks[:40]:
            other.op(task)
        recorder.host_us, recorder.gpu_us = other.host_us, other.gpu_us
    message = refusal(recorder)
    assert "has another model or other work beside lenet5: most of it is " in message
    assert "(matched: " in message
    assert "100.0 % of the expected time of lenet5" in message


def test_no_operators(refusal):
    recorder = Recorder(JOB).steps(1)
    recorder.trace.events = [event for event in recorder.trace.events if event["cat"] != "cpu_op"]
    recorder.trace.events = [event for event in recorder.trace.events if not event["name"].startswith("Optimizer")]
    assert "has no ops of PyTorch on the host; record with ProfilerActivity.CPU" in refusal(recorder)


def test_an_unknown_gpu(refusal):
    recorder = Recorder(JOB).steps(1)
    recorder.trace.gpus = []
    assert "does not say which GPU it is of" in refusal(recorder)
    recorder.trace.gpus = [{"id": 0, "name": "NVIDIA X9000", "numSms": 7}]
    assert "NVIDIA X9000" in refusal(recorder)


def test_another_optimizer_or_form(refusal):
    recorder = Recorder(JOB).steps(2)
    assert "trains with SGD; give its optimizer, as in --optimizer sgd" in refusal(recorder, Job("lenet5", 4, optimizer="adam"))
    assert "updates in the foreach form; give --optimizer sgd:foreach" in refusal(recorder, Job("lenet5", 4, optimizer="sgd", form="for"))
