"""Plans in CUDA's forms on fake tensors of a CUDA device: PyTorch runs every op without memory, and finds devices that mix.

The fake kernels return the shapes and strides of CUDA's, so the kernels of attention that only a GPU has take part.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from calibrate.operands import OperandPool, fill
from calibrate.samples import compile_alone
from executors.binding import Binding, Forms, Instance
from executors.kernels.lowering import attention
from executors.kernels.registry import handlers
from executors.tensors import job_tensors
from simulator.engine.costs.model import measurable
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.model.ops.products import add_product
from simulator.plan.bodies.opcall import OpCall
from simulator.strategies import registry as strategies
from tests.support import models
from tests.support.jobs import planned
from tests.support.places import USER_MODELS
from traces.errors import SchedcastError

MACHINE, DEVICE = load_machine("h200"), torch.device("cuda:0")
FORMS = Forms(True, "stream", lambda value: None, capturable=True)
NETWORKS = {path.stem: f"{path}:make" for path in USER_MODELS if path.stem != "encoder_decoder"}  # its complex numbers have no bf16
NETWORKS |= {name: f"{models.__file__}:{name}" for name in ("bert", "gpt2", "densenet")}
STRATEGY_NETWORKS = {
    "convolutional": "lenet5", "attention": f"{models.__file__}:attention", "lstm": f"{models.__file__}:lstm8",
}  # fmt: skip
NETWORKS |= {"others": f"{models.__file__}:others", "lstm": f"{models.__file__}:lstm8"}


def _unavailable() -> str:
    try:
        with FakeTensorMode():
            torch.empty(2, device=DEVICE).mul(2)
    except Exception as error:
        return f"this build of PyTorch makes no fake CUDA tensors: {error}"
    return ""


pytestmark = pytest.mark.skipif(bool(_unavailable()), reason=_unavailable())


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors are fake, and what would ask the CUDA library itself is replaced. Graphs are captured before, with PyTorch's own methods."""
    with FakeTensorMode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_stream", lambda device=None: None)
        patch.setattr(Tensor, "record_stream", lambda tensor, stream: None)
        if torch.version.cuda is None:
            copy_all = torch._foreach_copy_
            patch.setattr(Tensor, "copy_", lambda target, source, non_blocking=False: (copy_all([target], [source]), target)[1])
            rows = {"memory_format": torch.contiguous_format}
            patch.setattr(Tensor, "contiguous", lambda tensor, **form: torch.empty_like(tensor, **(rows | form)))
            patch.setattr(torch.backends.cudnn, "enabled", False)
        yield


@pytest.fixture
def copied(monkeypatch) -> list[str]:
    """The values whose results are copied to get the plan's strides."""
    values: list[str] = []
    monkeypatch.setattr(Binding, "_report_copy", lambda binding, planned, result: values.append(planned.value))
    return values


def on_device(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors like these on the device, fake ones within a mode that makes them."""
    return {name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=DEVICE) for name, t in tensors.items()}


def run_on_fakes(job: Job, strategy: str = "baseline") -> tuple[Binding, Instance]:
    """Run all tasks of a strategy's iteration once, the late ones at last. The instance keeps every value."""
    plan = planned(strategy, job, MACHINE)
    tensors = job_tensors(job, job.build(), job.graph())
    with fake_tensors():
        fakes = on_device(tensors)
        binding = Binding(plan, fakes, lambda _: DEVICE, 0, FORMS)
        works = [handlers()[task.body.kind](task, binding) for task in sorted(plan.tasks, key=lambda task: task.lag)]
        instance = Instance(0, len(binding.slot), [])
        binding.feed(instance, fakes)
        for work in works:
            work(instance)
    return binding, instance


def opaque_values(binding: Binding) -> set[str]:
    return {w.value for op in binding.ops for i, w in zip(op.body.outputs, op.writes, strict=True) if i in op.body.opaque}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_task_runs_on_one_device(name, precision, copied, monkeypatch):
    monkeypatch.setattr(attention, "choice", lambda call: "efficient")
    binding, instance = run_on_fakes(Job(NETWORKS[name], 4, precision=precision, optimizer="adam"))
    assert {tensor.device for tensor in instance.slots if isinstance(tensor, Tensor)} == {DEVICE}
    assert not opaque_values(binding) & set(copied)


KERNELS = {"efficient": ("fp32", "bf16"), "flash": ("bf16",), "cudnn": ("bf16",)}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("opaque", [True, False])
@pytest.mark.parametrize("length", ["attention", "attention32"])
@pytest.mark.parametrize(("kernel", "precision"), [(kernel, p) for kernel, precisions in KERNELS.items() for p in precisions])
def test_a_fused_kernels_results_are_not_copied(kernel, precision, length, opaque, copied, monkeypatch):
    """Where nothing was opaque, the logsumexp of flash, and of memory-efficient attention of a length that is not padded, would be."""
    monkeypatch.setattr(attention, "choice", lambda call: kernel)
    if not opaque:
        monkeypatch.setattr(OpCall, "opaque", ())
    run_on_fakes(Job(f"{models.__file__}:{length}", 4, precision=precision))
    in_rows = kernel == "flash" or (kernel == "efficient" and length == "attention32")
    assert [value.rpartition("/")[2] for value in copied] == ([f"{attention.FORWARD.split('.')[1]}:1"] if in_rows and not opaque else [])


def test_a_plan_that_asks_for_cudnns_attention_runs_it_without_pytorchs_choice(monkeypatch):
    job = Job("lm:form=llama,layers=1,d_model=32,heads=2,ffn=64,vocab=50", 4, 16, precision="bf16", attention="cudnn")
    ran: list[str] = []
    used = attention.KERNELS["cudnn"]
    monkeypatch.setitem(attention.KERNELS, "cudnn", used._replace(forward=lambda call: ran.append("forward") or used.forward(call)))
    run_on_fakes(job)
    assert ran == ["forward"]


def test_a_product_of_16_bits_is_added_to_a_sum_in_float32_in_one_call():
    with fake_tensors():
        total = torch.empty(3, 4, device=DEVICE)
        left, right = (torch.empty(shape, device=DEVICE, dtype=torch.bfloat16) for shape in ((3, 8), (8, 4)))
        with Products() as products:
            add_product(total, left, right)
    assert products.names == ["aten.addmm.dtype_out"]


class Products(TorchDispatchMode):
    """Records the names of ops with an `out`, and answers with that."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if kwargs is None or "out" not in kwargs:
            return func(*args, **(kwargs or {}))
        self.names.append(str(func))
        return kwargs["out"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["convolutional", "attention", "lstm"])
@pytest.mark.parametrize("strategy", [name for name in strategies.names(1) if name != "baseline"])
def test_every_strategys_tasks_run_on_one_device(strategy, name, monkeypatch):
    monkeypatch.setattr(attention, "choice", lambda call: "efficient")
    job = Job(STRATEGY_NETWORKS[name], 4, optimizer="adam")
    try:
        _, instance = run_on_fakes(job, strategy)
    except SchedcastError as error:
        pytest.skip(f"{strategy} refuses the model: {error}")
    assert {tensor.device for tensor in instance.slots if isinstance(tensor, Tensor)} == {DEVICE}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_key_runs_alone_as_calibration_runs_it(name, precision, monkeypatch):
    monkeypatch.setattr(attention, "choice", lambda call: "efficient")
    plan = planned("baseline", Job(NETWORKS[name], 4, precision=precision, optimizer="adam"), MACHINE)
    pool = OperandPool()
    operands = {key: (task, fill(task, plan, pool, cuda=True)) for key, task in plan.keys(MACHINE).items() if measurable(task)}
    with fake_tensors():
        for key, (task, tensors) in operands.items():
            compiled = compile_alone(task, plan, on_device(tensors), lambda _: DEVICE, FORMS)
            assert {result.device for result in compiled.results() if isinstance(result, Tensor)} <= {DEVICE}, key
