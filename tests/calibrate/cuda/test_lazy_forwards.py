"""Keys whose first call on operands runs more than later calls do: batch-norm, layer-norm, attention and recurrent layers, timed alone."""

import pytest

from calibrate.cuda.bench import Effort
from calibrate.cuda.sampler import CudaSampler
from calibrate.numerics import Expected, compare
from executors.cuda.backend import CudaBackend
from executors.kernels.lowering import recurrent
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from tests.fake_gpu import FACTS, FakeGpu, Times
from tests.support import norm_models
from tests.support.jobs import planned

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
