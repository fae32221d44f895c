"""Canonical ops in their CUDA forms, on CPU tensors: they call PyTorch's own kernels and give the numbers of plain PyTorch."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from calibrate.cpu.sampler import Sampler
from calibrate.numerics import Expected, compare, reference
from calibrate.samples import compile_alone
from executors.binding import Binding, Forms, Instance
from executors.kernels.lowering import attention, batch_norm
from executors.kernels.lowering.dropout import draw_seed
from executors.kernels.registry import handlers
from executors.tensors import job_tensors
from simulator.model.job import Job
from simulator.plan.bodies.opcall import ListedOp, OpCall, OpList
from simulator.plan.plan import Plan
from simulator.plan.task import INPUT, Operand, Storage, Task, Value
from simulator.strategies import registry as strategies
from tests.support import raw_attention
from tests.support.jobs import planned
from tests.support.places import SUPPORT
from tests.support.refusals import refuses
from traces.errors import Code

MODELS = SUPPORT / "user_models"
LIMIT = 1e-10
KEYED, STREAM = Forms(cuda=True, seed=torch.manual_seed), Forms(cuda=True, draws="stream")


def errors(job: Job, forms: Forms, machine, backend, monkeypatch, steps: int = 5, attend=nullcontext) -> float:
    """The largest error of the baseline against plain PyTorch with the same dropout masks. `attend`: a context for PyTorch's steps."""
    built = job.build()
    with built.restored():
        plain = reference(job, built, same_masks=True)
        plain.draws, plain.seed_generator = forms.draws, forms.seed
        for _ in range(steps):
            with attend():
                plain.step()
        expected = Expected.now(plain)
    monkeypatch.setattr("executors.cpu.backend.Binding", partial(Binding, forms=forms))
    strategy, options = strategies.parse("baseline")
    torch.manual_seed(job.seed)  # the seed of "stream" draws
    result = compare(job, built, strategy.plan(job, machine, None, options), backend, expected, steps)
    return max(result.max_grad_error, result.max_param_error)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("forms", [KEYED, STREAM], ids=["keyed", "stream"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("model", ["language_model", "vision_transformer"])
def test_plain_pytorch_draws_the_masks_of_the_fused_op(model, accumulate, forms, two_cores, backend, monkeypatch):
    job = Job(f"{MODELS / model}.py:make", 4, precision="fp64", accumulate=accumulate, seed=3)
    assert errors(job, forms, two_cores, backend, monkeypatch) <= LIMIT


def test_different_masks_give_a_large_error(two_cores, backend, monkeypatch):
    job = Job(f"{MODELS / 'language_model'}.py:make", 4, precision="fp64")
    forms = Forms(cuda=True, seed=lambda value: torch.manual_seed(value % 1000))
    built = job.build()
    monkeypatch.setattr("executors.cpu.backend.Binding", partial(Binding, forms=forms))
    plan = planned("baseline", job, two_cores)
    assert compare(job, built, plan, backend, Expected.of(job, built)).max_grad_error > 1e-3


def operand(name: str, *shape: int, dtype: str = "float64") -> Operand:
    return Operand(name, shape, tuple(torch.empty(shape).stride()), dtype)


def plan_alone(task: Task, *fed: str) -> Plan:
    """A plan of one task. `fed`: the names of its inputs that are fed."""
    operands = {o.value: o for o in (*task.inputs, *task.writes)}
    values = {n: Value(n, o.shape, o.strides, o.dtype, "cpu:0", INPUT if n in fed else "activation", n) for n, o in operands.items()}
    return Plan("test", (task,), values, {n: Storage(n, o.bytes, "cpu:0") for n, o in operands.items()})


def run(plan: Plan, tensors: dict[str, torch.Tensor], forms: Forms, seed: int = 0, iteration: int = 0) -> dict[str, torch.Tensor]:
    """The plan's values after its tasks have run, by name."""
    binding = Binding(plan, tensors, lambda _: torch.device("cpu"), seed, forms)
    works = [handlers()[task.body.kind](task, binding) for task in plan.tasks]
    instance = Instance(iteration, len(binding.slot), [])
    binding.feed(instance, tensors)
    for work in works:
        work(instance)
    return {name: instance.slots[slot] for name, slot in binding.slot.items()}


def dropout_task(train: str = "true") -> Task:
    body = OpCall("aten.native_dropout.default", f'[{{"$":0}},0.25,{train}]', outputs=(0, 1))
    return Task("drop", body, "cpu:0", reads=(operand("x", 20, 30),), writes=(operand("y", 20, 30), operand("keep", 20, 30, dtype="bool")))


def test_keyed_dropout_is_the_op_after_seeding():
    x = torch.randn(20, 30, dtype=torch.float64)
    values = run(plan_alone(dropout_task(), "x"), {"x": x}, KEYED, seed=5, iteration=2)
    torch.manual_seed(draw_seed(5, 2, 0))
    expected, keep = torch.native_dropout(x, 0.25, True)
    assert torch.equal(values["y"], expected)
    assert torch.equal(values["keep"], keep)


def test_keyed_feature_dropout_is_the_op_after_seeding():
    task = Task("mask", OpCall("aten.bernoulli_.float", '[{"$":0},0.75]', outputs=()), "cpu:0", mutates=(operand("x", 20, 30),))
    values = run(plan_alone(task, "x"), {"x": torch.empty(20, 30, dtype=torch.float64)}, KEYED, seed=5, iteration=2)
    torch.manual_seed(draw_seed(5, 2, 0))
    assert torch.equal(values["x"], torch.empty(20, 30, dtype=torch.float64).bernoulli_(0.75))


def test_stream_draws_come_from_the_generator_in_issue_order():
    x = torch.randn(20, 30, dtype=torch.float64)
    torch.manual_seed(1)
    values = run(plan_alone(dropout_task(), "x"), {"x": x}, STREAM)
    torch.manual_seed(1)
    assert torch.equal(values["y"], torch.native_dropout(x, 0.25, True)[0])


def test_dropout_outside_training_draws_nothing():
    x = torch.randn(20, 30, dtype=torch.float64)
    for forms in (Forms(), KEYED):
        assert torch.equal(run(plan_alone(dropout_task("false"), "x"), {"x": x}, forms)["y"], x)


@pytest.mark.parametrize("forms", [Forms(), KEYED], ids=["cpu", "cuda"])
def test_steps_of_a_list_run_in_the_backends_form_too(forms):
    drop = dropout_task()
    double = OpCall("aten.mul.Scalar", '[{"$":0},2.0]')
    steps = (ListedOp(double, drop.reads, (operand("inner", 20, 30),)), ListedOp(drop.body, (operand("inner", 20, 30),), drop.writes))
    x = torch.randn(20, 30, dtype=torch.float64)
    values = run(plan_alone(replace(drop, body=OpList(steps)), "x"), {"x": x}, forms, seed=5, iteration=2)
    assert torch.equal(values["y"], run(plan_alone(drop, "x"), {"x": 2 * x}, forms, seed=5, iteration=2)["y"])
    assert not torch.equal(values["y"], run(plan_alone(drop, "x"), {"x": 2 * x}, forms, seed=5, iteration=3)["y"])


def test_unknown_draws_and_a_missing_seed_function_are_refused():
    with pytest.raises(ValueError, match="expected keyed or stream"):
        Forms(cuda=True, draws="random")
    with pytest.raises(ValueError, match="the function that seeds"):
        run(plan_alone(dropout_task(), "x"), {"x": torch.randn(20, 30)}, Forms(cuda=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("model", ["tied_cnn", "unet"])
def test_batch_norm_runs_the_implementation_that_pytorch_chooses(model, layout, two_cores, backend, monkeypatch):
    job = Job(f"{MODELS / model}.py:make", 4, precision="fp64", layout=layout, accumulate=2, optimizer="adam")
    assert errors(job, KEYED, two_cores, backend, monkeypatch) <= LIMIT


KINDS_OF_NORM = """
import torch
from torch import nn

class Kinds(nn.Module):
    def __init__(self):
        super().__init__()
        frozen, partly = nn.BatchNorm2d(4).eval(), nn.BatchNorm2d(4)
        frozen.running_mean.normal_()
        partly.bias.requires_grad_(False)
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False),
            nn.Conv2d(4, 4, 1), frozen, nn.Conv2d(4, 4, 1), partly, nn.Tanh(),
        )
        self.volume, self.line, self.row = nn.BatchNorm3d(2), nn.BatchNorm1d(4, momentum=0.3), nn.BatchNorm1d(4, affine=False)

    def forward(self, x):
        x = self.body(x[:, :, ::2].transpose(2, 3))
        x = self.volume(x.unflatten(1, (2, 2))).flatten(1, 2)
        return self.row(self.line(x.flatten(2).tanh()).mean(-1))

def make(batch_size):
    return Kinds(), (torch.randn(batch_size, 3, 6, 5),), torch.randint(0, 4, (batch_size,))
"""


def test_every_kind_of_batch_norm(tmp_path, two_cores, backend, monkeypatch):
    (tmp_path / "kinds.py").write_text(KINDS_OF_NORM)
    job = Job(f"{tmp_path / 'kinds.py'}:make", 4, precision="fp64", optimizer="momentum")
    assert errors(job, KEYED, two_cores, backend, monkeypatch) <= LIMIT


def test_results_saved_by_batch_norm_are_freed_by_its_backward(two_cores):
    job = Job(f"{MODELS / 'tied_cnn'}.py:make", 4)
    plan = planned("baseline", job, two_cores)
    built = job.build()
    tensors = job_tensors(job, built, job.graph())
    binding = Binding(plan, tensors, lambda _: torch.device("cpu"), 0, KEYED)
    works = [(task, handlers()[task.body.kind](task, binding)) for task in plan.tasks]
    saved_slots = [slot for name, slot in binding.slot.items() if name.endswith("::saved")]
    assert len(saved_slots) == 3
    instance = Instance(0, len(binding.slot), [])
    binding.feed(instance, tensors)
    counts = []
    for task, work in works:
        work(instance)
        if "batch_norm" in task.name:
            counts.append(sum(instance.slots[slot] is not None for slot in saved_slots))
    assert counts == [1, 2, 3, 2, 1, 0]


def test_a_batch_norm_backward_without_its_forward_runs_the_forward_once(two_cores):
    job = Job(f"{MODELS / 'tied_cnn'}.py:make", 4, precision="fp64")
    plan = planned("baseline", job, two_cores)
    task = next(task for task in plan.tasks if "native_batch_norm_backward" in task.name)
    tensors = {o.value: torch.rand(o.shape, dtype=torch.float64) + 0.5 for o in task.inputs}
    x, mean, invstd = (task.inputs[i].value for i in (1, 5, 6))
    alone = plan_alone(task, *tensors)
    cuda = run(alone, tensors, KEYED)
    # Given the statistics that belong to x, which the forward op finds by itself, the canonical form computes the same.
    tensors |= dict(
        zip((mean, invstd), torch.ops.aten.native_batch_norm(tensors[x], None, None, None, None, True, 0.1, 1e-5)[1:], strict=True)
    )
    plain = run(alone, tensors, Forms())
    for write in task.writes:
        torch.testing.assert_close(cuda[write.value], plain[write.value], rtol=1e-12, atol=1e-12)
    binding = Binding(alone, tensors, lambda _: torch.device("cpu"), 0, KEYED)
    work = handlers()["op"](task, binding)
    instance = Instance(0, len(binding.slot), [])
    binding.feed(instance, tensors)
    calls = []
    forward = batch_norm._normalize
    with patch.object(batch_norm, "_normalize", lambda *args: calls.append(args) or forward(*args)):
        for _ in range(3):
            work(instance)
    assert len(calls) == 1


ATTENTION = """
import torch
from torch import nn
from torch.nn import functional as F

class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(6, 16)
        self.packed = nn.MultiheadAttention(16, 2, batch_first=True)
        self.dropping = nn.MultiheadAttention(16, 2, dropout=0.2, batch_first=True)
        self.qkv, self.few, self.output = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 5)
        self.learned = nn.Parameter(torch.randn(7, 7))
        self.register_buffer("added", torch.randn(1, 2, 1, 7))

    def forward(self, x):
        x = self.inputs(x)
        x = x + self.packed(x, x, x, need_weights=False)[0] + self.dropping(x, x, x, need_weights=False)[0]
        query, key, value = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        visible = torch.ones(7, 7, dtype=torch.bool, device=x.device).tril()
        mixed = [
            F.scaled_dot_product_attention(query, key, value, is_causal=True),
            F.scaled_dot_product_attention(key.contiguous(), query, value, attn_mask=visible),
            F.scaled_dot_product_attention(query, key[:, :, :5], value[:, :, :5], scale=0.3),
            F.scaled_dot_product_attention(query, value, key, attn_mask=self.added),
            F.scaled_dot_product_attention(query, key, value, attn_mask=self.learned),
            F.scaled_dot_product_attention(query[0], key[0], value[0], is_causal=True),
            F.scaled_dot_product_attention(query, key, value[..., :4]).repeat(1, 1, 1, 2),
            F.scaled_dot_product_attention(query, key[:, :1], value[:, :1], enable_gqa=True),
        ]
        return self.output(sum(mixed).transpose(1, 2).flatten(2).mean(1) + self.few(x).mean(1))

def make(batch_size):
    return Attends(), (torch.randn(batch_size, 7, 6),), torch.randint(0, 5, (batch_size,))
"""


@pytest.fixture
def attends(tmp_path) -> str:
    (tmp_path / "attends.py").write_text(ATTENTION)
    return f"{tmp_path / 'attends.py'}:make"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("forms", [Forms(), KEYED, STREAM], ids=["cpu", "keyed", "stream"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_attention_runs_the_kernel_that_pytorch_runs(attends, optimizer, forms, two_cores, backend, monkeypatch):
    job = Job(attends, 4, precision="fp64", optimizer=optimizer, accumulate=2)
    assert errors(job, forms, two_cores, backend, monkeypatch) <= LIMIT


@pytest.mark.sampled(2)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_attention_in_its_math_form(attends, optimizer, two_cores, backend, monkeypatch):
    monkeypatch.setattr(attention, "choice", lambda call: "math")
    job = Job(attends, 4, precision="fp64", optimizer=optimizer)
    assert errors(job, KEYED, two_cores, backend, monkeypatch, attend=lambda: sdpa_kernel(SDPBackend.MATH)) <= LIMIT


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["plain", "math"])
def test_every_op_can_be_timed_alone_in_its_form(attends, form, two_cores, backend, monkeypatch):
    if form == "math":
        monkeypatch.setattr(attention, "choice", lambda call: "math")
    monkeypatch.setattr("calibrate.cpu.sampler.compile_alone", lambda *arguments: compile_alone(*arguments[:4], forms=KEYED))
    for source in (attends, f"{MODELS / 'tied_cnn'}.py:make"):
        plan = planned("baseline", Job(source, 4), two_cores)
        sampler = Sampler(backend)
        keys = {task.name: task for task in plan.tasks}
        sampler.add(plan, keys)
        for turn in range(2):
            sampler.sample(list(keys), turn)
        assert not sampler.failures


@pytest.mark.parametrize("padded", [1, 32])
def test_a_backward_kernel_finds_logsumexp_in_memory_as_its_forward_left_it(padded, attends, two_cores, backend, monkeypatch):
    """In the plan's strides, those of the CPU's kernel, T is not the innermost dimension."""
    raw_attention.install(monkeypatch, padded)
    assert errors(Job(attends, 4, precision="fp64"), KEYED, two_cores, backend, monkeypatch) <= LIMIT


class Calls(TorchDispatchMode):
    """Records the arguments of attention ops, with tensors replaced by their shapes and strides."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "scaled_dot_product" in str(func):
            self.seen.append((str(func), *tree_map_only(torch.Tensor, lambda t: (t.shape, t.stride()), (args, kwargs or {}))))
        return func(*args, **(kwargs or {}))


MASKS = [None, (5, 7), (2, 1, 1, 7), (1, 3, 5, 1)]
CASES = [("flash", None), *((kernel, mask) for kernel in ("efficient", "cudnn") for mask in MASKS)]


@pytest.mark.parametrize(("kernel", "mask"), CASES)
def test_a_fused_kernels_backward_gets_the_arguments_that_autograd_passes(kernel, mask):
    query, key, value = (torch.empty(2, 3, n, 16, dtype=torch.bfloat16, device="meta", requires_grad=True) for n in (5, 7, 7))
    bias = mask and torch.empty(mask, dtype=torch.bfloat16, device="meta")
    call, used = attention.Call(query, key, value, bias, False, 0.3), attention.KERNELS[kernel]
    with Calls() as automatic:
        out = used.forward(call)[0]
        torch.autograd.grad(out, [query, key, value], torch.empty_like(out))
    with Calls() as ours, torch.no_grad():
        out, logsumexp, saved = used.forward(call)
        gradients = used.backward(torch.empty_like(out), call, out, logsumexp, saved)
    assert len(ours.seen) == 2
    assert ours.seen == automatic.seen
    assert [g.shape for g in gradients] == [x.shape for x in (query, key, value)]


def test_attention_lets_pytorch_choose():
    call = attention.Call(*(torch.randn(2, 3, 5, 8) for _ in range(3)), None, False, None)
    assert attention.choice(call) == "cpu"
    assert attention.choice(call._replace(value=torch.randn(2, 3, 5, 4))) == "math"
    for backend, name in [("EFFICIENT_ATTENTION", "efficient"), ("CUDNN_ATTENTION", "cudnn"), ("MATH", "math")]:
        with patch.object(attention._aten._fused_sdp_choice, "default", lambda *_, b=backend, **__: int(getattr(SDPBackend, b).value)):
            assert attention.choice(call) == name


def test_context_parallelism_merges_no_result_of_the_kernel_that_a_plan_asks_for():
    call = attention.Call(*(torch.randn(2, 3, 5, 8) for _ in range(3)), None, True, None, kernel="cudnn")
    with refuses(Code.MODEL, "use --attention pytorch"):
        attention._merging_choice(call)
