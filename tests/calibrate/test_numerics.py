"""Plain PyTorch, with which plans are compared, trains the user's own module; unusual steps are trained exactly or refused."""

from dataclasses import replace

import pytest
import torch

from calibrate.cuda.bench import Effort
from calibrate.cuda.sampler import CudaSampler
from calibrate.cuda.testbed import GpuTestbed
from calibrate.numerics import Expected, Numerics, References, compare, reference
from calibrate.training import Training
from executors.cpu.backend import CpuBackend
from executors.cuda.backend import CudaBackend
from executors.kernels.lowering import recurrent
from executors.tensors import job_tensors
from simulator.machine.presets import load_machine
from simulator.model.capture.capture import capture
from simulator.model.job import Job
from simulator.strategies import registry as strategies
from tests.fake_gpu import FACTS, FakeGpu, Times
from tests.support import models
from tests.support.applicable import core_groups
from tests.support.gpu_testbeds import SMALL, open_testbed
from tests.support.jobs import MLP, job_of, planned
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.errors import Code


@pytest.mark.sampled(6)
@pytest.mark.parametrize("model", models.STATEFUL)
def test_five_steps_equal_plain_pytorch(model, two_cores, backend):
    # A conversion to float64 replaces parameters in their modules, but not in a user's list.
    precision, limit = ("fp32", 1e-5) if model == "parameter_in_a_list" else ("fp64", 1e-10)
    job = job_of(model, precision=precision)
    built = job.build()
    expected = Expected.of(job, built)
    for name in ("baseline", "turbodl"):
        numerics = compare(job, built, planned(name, job, two_cores), backend, expected)
        assert max(numerics.max_grad_error, numerics.max_param_error) <= limit, name


CHAOTIC = """
import torch

class Map(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.start = torch.nn.Parameter(torch.rand(4, 8))

    def forward(self, x):
        state = self.start
        for _ in range({times}):
            state = 4 * state * (1 - state)
        return x + state

def make(batch):
    return Map(), torch.zeros(batch, 8), torch.zeros(batch, 8), torch.nn.functional.mse_loss
"""


@pytest.mark.parametrize(("times", "judged_equal"), [(1, False), (24, True)])
def test_numbers_that_rounding_alone_changes_as_much_are_equal(tmp_path, two_cores, backend, times, judged_equal):
    """The logistic map doubles a difference each time: after 24 times, one rounding has become another number."""
    path = tmp_path / "model.py"
    path.write_text(CHAOTIC.replace("{times}", str(times)))
    job = Job(f"{path}:make", 4)
    strategy, options = strategies.parse("baseline")
    plan = strategy.plan(job, two_cores, None, options)
    far = Numerics(0.5, 0.01)
    judged = References(job, job.build(), 1, None).judged(plan, far, backend)
    assert judged.equal("fp32") is judged_equal
    assert not far.equal("fp32")
    same = Numerics(1e-6, 1e-7)
    assert References(job, job.build(), 1, None).judged(plan, same, backend) == replace(same, first_error=0.0), "nothing to judge"
    faster = strategy.plan(replace(job, lr=1.0), two_cores, None, options)
    for later in (far, same):
        assert not References(job, job.build(), 1, None).judged(faster, later, backend).equal("fp32"), "its first step differs already"


def test_a_tie_that_only_some_roundings_turn_is_no_fault():
    """In the second step an input of a ReLU is 7e-8 of the largest. Its sign, and with it 2 % of a gradient, is left to rounding."""
    job, machine = Job("resnet20", 8, image_size=16, precision="fp32"), core_groups(2)
    plan, backend, built = planned("owt:batch_norm=synchronized", job, machine), CpuBackend(machine), job.build()
    references = References(job, built, 2, None)
    assert references.judged(plan, compare(job, built, plan, backend, references.of(plan), 2), backend).equal("fp32")


@pytest.mark.parametrize("kept", ["weight::exp_avg_sq", "weight::step", "bias", "running_var", "num_batches_tracked"])
def test_all_that_training_keeps_is_compared(kept, two_cores, backend):
    job = job_of("batch_norm", optimizer="adamw")
    built, plan, expected = job.build(), planned("baseline", job, two_cores), Expected.of(job, job.build(), 2)
    assert compare(job, built, plan, backend, expected, 2).max_param_error <= 1e-10
    name = next(name for name in expected.kept if name.endswith(kept))
    wrong = expected.kept | {name: expected.kept[name] + 1}
    assert compare(job, built, plan, backend, replace(expected, kept=wrong), 2).max_param_error > 0.1


def test_noise_is_drawn_anew_for_every_microbatch(two_cores, backend):
    job = job_of("draws_noise", accumulate=2)
    assert largest_error(job, planned("forward-fusion", job, two_cores), backend) <= 1e-10


def test_the_reference_is_the_users_own_module_and_is_restored():
    built = job_of("cannot_be_copied").build()
    before = {name: tensor.clone() for name, tensor in built.module.state_dict().items()}
    weight = built.module.first.weight
    with built.restored():
        plain = reference(job_of("cannot_be_copied"), built, same_masks=False)
        assert plain.module is built.module
        plain.step()
        assert not weight.equal(before["first.weight"])
        built.replace_tensors(torch.clone)
        assert built.module.first.weight is not weight
    assert built.module.first.weight is weight
    assert weight.grad is None
    assert all(tensor.equal(before[name]) for name, tensor in built.module.state_dict().items())


def test_a_factory_that_makes_another_model_each_time_is_refused():
    job = job_of("draws_noise")
    graph = job.graph()
    built = job.build()
    built.module.first = torch.nn.Linear(4, 5, dtype=torch.float64)
    with refuses(Code.MODEL, r"makes another model each time: first.weight is \(5, 4\) of torch.float64, and was \(4, 4\)"):
        job_tensors(job, built, graph)


def test_a_changed_copy_of_a_job_has_graphs_of_its_own():
    from dataclasses import replace

    job = job_of("draws_noise")
    assert job.graph().values["first.weight"].dtype == "float64"
    assert replace(job, precision="fp32").graph().values["first.weight"].dtype == "float32"


def test_a_batch_may_be_flattened_but_must_heed_its_size():
    from simulator.model.factory import Factory, call_factory

    def flattened(batch: int):
        return torch.nn.Linear(3, 2), torch.randn(8 * batch, 3), torch.zeros(8 * batch, dtype=torch.int64)

    assert capture(lambda: call_factory(Factory("mine", flattened, None), 4), batch=4).values["input:0"].shape == (32, 3)
    with refuses(Code.REQUEST, r"made input:0 \(32, 3\), target:0 \(32,\) for batch size 4; .*use its argument"):
        call_factory(Factory("mine", lambda _: flattened(4), None), 4)


# Numbers on a GPU whose kernels add in an order that changes from run to run.
# Keys whose first call on operands does more than later calls: batch-norm, layer-norm, attention and recurrent layers, timed alone.


US = 1e-6
WHOLE = load_machine("h200")


def job_and_plan(model: str, **fields):
    """A job of one of the models, and its baseline's plan."""
    job = Job(f"{models.__file__}:{model}", 4, **fields)
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
    _, plan = job_and_plan(model)
    with FakeGpu(Times(kernel_s=lambda op, size: 50 * US, gap_s=0.0), FACTS) as gpu:
        samples = samples_of(gpu, plan, word)
    assert samples.cold_s == pytest.approx(samples.warm_s, rel=1e-6)
    assert min(samples.cold_s) >= 50 * US * (1 - 1e-6)


def test_a_recurrent_layer_flattens_its_weights_before_it_is_timed(monkeypatch):
    """cuDNN's functions are replaced by kernels of the simulated GPU; flattening is one kernel more at the first call on each set."""
    monkeypatch.setattr(recurrent, "cudnn_usable", lambda task, binding: True)
    monkeypatch.setattr(recurrent, "_run_cudnn", lambda x, weights, *rest: (x.new_ones(x.shape[0], x.shape[1], 5).neg_(),))
    monkeypatch.setattr(recurrent, "_flatten", lambda weights, *options: weights[0].neg())
    _, plan = job_and_plan("recurrent")
    with FakeGpu(Times(kernel_s=lambda op, size: 50 * US, gap_s=0.0), FACTS) as gpu:
        samples = samples_of(gpu, plan, "schedcast.rnn.default")
    assert samples.cold_s == pytest.approx(samples.warm_s, rel=1e-6)


@pytest.mark.parametrize("model", ["batch_norm", "layer_norm"])
def test_norms_in_bf16_can_be_timed_alone(model):
    """Their saved statistics are bf16 in a graph captured on the CPU, and float32 on CUDA, whose kernels take nothing else."""
    _, plan = job_and_plan(model, precision="bf16")
    with FakeGpu() as gpu:
        for direction in ("", "_backward"):
            assert min(samples_of(gpu, plan, f"aten.native_{model}{direction}.default").warm_s) > 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", ["batch_norm", "layer_norm", "attention"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_their_plans_train_as_pytorch_does(model, precision, mode):
    job, plan = job_and_plan(model, precision=precision)
    built, gpu = job.build(), FakeGpu()
    backend = CudaBackend(WHOLE, gpu, mode)
    steps = 2 if mode == "eager" else 12
    with gpu:
        numerics = compare(job, built, plan, backend, Expected.of(job, built, steps, backend), steps)
    assert numerics.equal(precision), numerics


@pytest.mark.parametrize(("strategy", "mode"), [("turbodl", "eager"), ("baseline", "graph")])
def test_attention_with_dropout_trains_as_one_op_as_pytorch_does(strategy, mode):
    job = Job(f"{models.__file__}:attention_dropping", 4).on("gpu")
    plan, built, gpu = planned(strategy, job, WHOLE), job.build(), FakeGpu()
    assert any(task.body.random and "attention" in task.body.target for task in plan.tasks if task.body.op)
    backend = CudaBackend(WHOLE, gpu, mode)
    steps = 2 if mode == "eager" else 12
    with gpu:
        numerics = compare(job, built, plan, backend, Expected.of(job, built, steps, backend), steps)
    assert max(numerics.max_grad_error, numerics.max_param_error) <= 1e-6


JOB = Job(MLP, 4)
#: Gradient descent at a rate of 1 is the logistic map, x becomes 3.9 x (1 - x): a difference grows from step to step.
DESCENT = """
import torch

class Descent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.linspace(0.1, 0.4, 8))

    def forward(self, zeros):
        return zeros + self.x * self.x * (1.3 * self.x - 1.45)

def make(batch):
    return Descent(), torch.zeros(batch, 8), torch.zeros(batch, 8), lambda out, target: out.sum() / batch
"""


def on_an_h200(name: str = "baseline"):
    return planned(name, JOB, load_machine("h200"))


def numerics_on(gpu: FakeGpu, wrong_by: float = 0.0, job: Job = JOB, steps: int = 2) -> Numerics:
    """The numerics of the baseline, whose expected gradients are made wrong by a share of themselves."""
    machine, built = load_machine("h200"), job.build()
    backend, plan = CudaBackend(machine, gpu), planned("baseline", job, machine)
    with gpu:
        references = References(job, built, steps, backend)
        expected = references.of(plan)
        for tensor in expected.gradients.values():
            tensor.mul_(1 + wrong_by)
        numerics = compare(job, built, plan, backend, expected, steps)
        return replace(numerics, first_error=0.0) if wrong_by else references.judged(plan, numerics, backend)


@pytest.fixture
def descent(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(DESCENT)
    return Job(f"{path}:make", 4, optimizer="sgd", lr=1.0)


def test_kernels_that_vary_are_no_difference(descent):
    numerics = numerics_on(FakeGpu(varying={"aten.mul": 1e-5}), 0.0, descent, 12)
    assert numerics.max_grad_error > 1e-3, "more than the tolerance of fp32"
    assert numerics.reference_grad_error > 1e-3
    assert numerics.first_error < 1e-3
    assert numerics.equal("fp32")


def test_kernels_that_vary_do_not_excuse_the_first_step():
    assert numerics_on(FakeGpu(varying={"aten.mm": 0.01})).first_error > 1e-3
    assert not numerics_on(FakeGpu(varying={"aten.mm": 0.01})).equal("fp32")


def test_a_difference_beyond_what_varies_is_one():
    assert not numerics_on(FakeGpu(varying={"aten.mm": 1e-4}), wrong_by=1.0).equal("fp32")


def test_both_sides_run_with_cudnns_deterministic_kernels(two_cores, backend, monkeypatch):
    """The flag is PyTorch's own; here a layer of the module, and a program's task, see it while they run."""
    seen = []
    built, expected = JOB.build(), Expected.of(JOB, JOB.build(), 1)
    monkeypatch.setattr(type(backend), "load", lambda *args, **named: seen.append(torch.backends.cudnn.deterministic))
    built.module.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cudnn.deterministic))
    Expected.of(JOB, built, 1)
    with pytest.raises(AttributeError):
        compare(JOB, built, planned("baseline", JOB, two_cores), backend, expected, 1)
    assert (seen, torch.backends.cudnn.deterministic) == ([True, True], False)


def test_without_varying_kernels_the_tolerance_counts():
    numerics = numerics_on(FakeGpu(), wrong_by=2e-3)
    assert (numerics.reference_grad_error, numerics.reference_param_error) == (0.0, 0.0)
    assert not numerics.equal("fp32")


@pytest.mark.parametrize(
    ("numerics", "same"),
    [
        (Numerics(1e-4, 1e-4), True),
        (Numerics(2e-3, 0.0), False),
        (Numerics(2e-3, 0.0, reference_grad_error=1e-3), False),
        (Numerics(2e-3, 0.0, reference_grad_error=1e-3, first_error=1e-6), True),
        (Numerics(0.0, 2e-3, reference_grad_error=1e-3, first_error=1e-6), False),
        (Numerics(1e-4, 1e-4, first_error=2e-3), False),
        (Numerics(1.0, 1e-4, 0.44, 1e-3), False),  # gradients of zero
        (Numerics(1.0, 1e-4, 0.44, 1e-3, first_error=1e-6), False),
        (Numerics(float("inf"), 0.0, reference_grad_error=float("inf")), False),
    ],
)
def test_what_counts_as_the_same_numbers(numerics, same):
    assert numerics.equal("fp32") is same


def test_a_trainings_first_steps_are_judged_alike(descent, monkeypatch):
    monkeypatch.setattr("calibrate.training.CHECKED_STEPS", 12)
    with FakeGpu(facts=SMALL, varying={"aten.mul": 1e-5}) as gpu:
        testbed: GpuTestbed = open_testbed(gpu)
        testbed.open(load_machine("h200"))
        plan = planned("baseline", descent, load_machine("h200"))
        training = Training.begin(descent, testbed, {"baseline": plan}, False, ["baseline"])
        assert training.numerics["baseline"].max_grad_error > 1e-3
        assert training.differences() == []
