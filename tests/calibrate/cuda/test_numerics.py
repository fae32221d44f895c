"""Numbers on a GPU whose kernels add in an order that changes from run to run.

Keys whose first call on operands does more than later calls: batch-norm, layer-norm, attention and recurrent layers, timed alone.
"""

import pytest

from calibrate.cuda.bench import Effort
from calibrate.cuda.sampler import CudaSampler
from calibrate.cuda.testbed import GpuTestbed
from calibrate.numerics import Expected, Numerics, compare
from calibrate.training import Training
from executors.cuda.backend import CudaBackend
from executors.kernels.lowering import recurrent
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from tests.fake_gpu import FACTS, FakeGpu, Times
from tests.support import norm_models
from tests.support.gpu_testbeds import SMALL, open_testbed
from tests.support.jobs import MLP, planned

US = 1e-6
WHOLE = load_machine("h200")


def plan_of_model(model: str, **fields):
    """A job of one of the models, and its baseline's plan."""
    job = Job(f"{norm_models.__file__}:{model}", 4, **fields)
    return job, planned("baseline", job, WHOLE)


def samples_of(gpu: FakeGpu, plan, word: str):
    """The samples of the first key whose name begins with `word`."""
    keys = {key: task for key, task in plan.keys(WHOLE).items() if key.startswith(word)}
    sampler = CudaSampler(gpu, effort=Effort(rounds=2, most_copies=10, most_sets=4))
    sampler.measure(plan, keys)
    assert sampler.failures == {}
    assert sampler.notes == []
    return next(iter(sampler.samples.values()))


@pytest.mark.parametrize(
    ("model", "word"),
    [("batch_norm", "aten.native_batch_norm_backward"), ("attention", "aten._scaled_dot_product_flash_attention_for_cpu_b")],
)
def test_a_backward_key_is_as_long_cold_as_warm(model, word):
    """The cache makes no difference here, so the two are equal if no set of operands runs its forward op in a graph."""
    _, plan = plan_of_model(model)
    with FakeGpu(Times(kernel_s=lambda op, size: 50 * US, gap_s=0.0), FACTS) as gpu:
        samples = samples_of(gpu, plan, word)
    assert samples.cold_s == pytest.approx(samples.warm_s, rel=1e-6)
    assert min(samples.cold_s) >= 50 * US * (1 - 1e-6)


def test_a_recurrent_layer_flattens_its_weights_before_it_is_timed(monkeypatch):
    """cuDNN's functions are replaced by kernels of the simulated GPU; flattening is one kernel more at the first call on each set."""
    monkeypatch.setattr(recurrent, "cudnn_usable", lambda task, binding: True)
    monkeypatch.setattr(recurrent, "_run_cudnn", lambda x, weights, *rest: (x.new_ones(x.shape[0], x.shape[1], 5).neg_(),))
    monkeypatch.setattr(recurrent, "_flatten", lambda weights, *options: weights[0].neg())
    _, plan = plan_of_model("recurrent")
    with FakeGpu(Times(kernel_s=lambda op, size: 50 * US, gap_s=0.0), FACTS) as gpu:
        samples = samples_of(gpu, plan, "schedcast.rnn.default")
    assert samples.cold_s == pytest.approx(samples.warm_s, rel=1e-6)


@pytest.mark.parametrize("model", ["batch_norm", "layer_norm"])
def test_norms_in_bf16_can_be_timed_alone(model):
    """Their saved statistics are bf16 in a graph captured on the CPU, and float32 on CUDA, whose kernels take nothing else."""
    _, plan = plan_of_model(model, precision="bf16")
    with FakeGpu() as gpu:
        for direction in ("", "_backward"):
            assert min(samples_of(gpu, plan, f"aten.native_{model}{direction}.default").warm_s) > 0


@pytest.mark.parametrize("model", ["batch_norm", "layer_norm", "attention"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_their_plans_train_as_pytorch_does(model, precision, mode):
    job, plan = plan_of_model(model, precision=precision)
    built, gpu = job.build(), FakeGpu()
    backend = CudaBackend(WHOLE, gpu, mode)
    steps = 2 if mode == "eager" else 12
    with gpu:
        numerics = compare(job, built, plan, backend, Expected.of(job, built, steps, backend), steps)
    assert numerics.equal(precision), numerics


JOB = Job(MLP, 4)


def plan_of(name: str = "baseline"):
    return planned(name, JOB, load_machine("h200"))


def numerics_on(gpu: FakeGpu, wrong_by: float = 0.0) -> Numerics:
    """The numerics of the baseline, whose expected gradients are made wrong by a share of themselves."""
    backend, built = CudaBackend(load_machine("h200"), gpu), JOB.build()
    with gpu:
        expected = Expected.of(JOB, built, 2, backend)
        for tensor in expected.gradients.values():
            tensor.mul_(1 + wrong_by)
        return compare(JOB, built, plan_of(), backend, expected, 2)


def test_kernels_that_vary_are_no_difference():
    numerics = numerics_on(FakeGpu(varying={"aten.mm": 0.01}))
    assert numerics.max_grad_error > 1e-3, "more than the tolerance of fp32"
    assert numerics.reference_grad_error > 1e-3
    assert numerics.equal("fp32")


def test_a_difference_beyond_what_varies_is_one():
    assert not numerics_on(FakeGpu(varying={"aten.mm": 0.01}), wrong_by=1.0).equal("fp32")


def test_without_varying_kernels_the_tolerance_counts():
    numerics = numerics_on(FakeGpu(), wrong_by=2e-3)
    assert (numerics.reference_grad_error, numerics.reference_param_error) == (0.0, 0.0)
    assert not numerics.equal("fp32")


@pytest.mark.parametrize(
    ("numerics", "same"),
    [
        (Numerics(1e-4, 1e-4), True),
        (Numerics(2e-3, 0.0), False),
        (Numerics(2e-3, 0.0, reference_grad_error=1e-3), True),
        (Numerics(0.0, 2e-3, reference_grad_error=1e-3), False),
        (Numerics(float("inf"), 0.0, reference_grad_error=float("inf")), False),
    ],
)
def test_what_counts_as_the_same_numbers(numerics, same):
    assert numerics.equal("fp32") is same


def test_a_trainings_first_steps_are_judged_alike():
    with FakeGpu(facts=SMALL, varying={"aten.mm": 0.01}) as gpu:
        testbed: GpuTestbed = open_testbed(gpu)
        testbed.open(load_machine("h200"))
        training = Training.begin(JOB, testbed, {"baseline": plan_of()}, False, ["baseline"])
        assert training.numerics["baseline"].max_grad_error > 1e-3
        assert training.differences() == []
