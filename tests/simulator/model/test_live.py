"""A live module is captured as its factory would be, and stays as it is."""

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

from simulator.model.job import Job
from simulator.model.live import live_factory, undisturbed
from tests.support import mlp
from tests.support.jobs import MLP
from tests.support.refusals import refuses
from traces.errors import Code


def captured(job: Job):
    with undisturbed():
        return job.graph()


def live(module: nn.Module, inputs, target=None, **how) -> tuple[Job, object]:
    factory, samples = live_factory(module, inputs, target, **how)
    return Job(factory.name, samples), factory


def ops(graph) -> list[tuple]:
    return [(op.body.target, op.layer, op.phase) for op in graph.ops]


@pytest.fixture
def module() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3))


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 6), torch.randint(3, (8,))


def test_a_live_module_has_the_graph_of_its_factory():
    module, inputs, target = mlp.make(4)
    job, factory = live(module, inputs, target)
    assert ops(captured(job)) == ops(Job(MLP, 4).graph())
    assert factory.name.startswith("live:")


def test_nothing_of_the_user_changes(module, batch):
    functional.cross_entropy(module(batch[0]), batch[1]).backward()
    module.eval()
    kept = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    gradient = module[0].weight.grad
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    job, factory = live(module, *batch)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        captured(job)
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
    assert all(torch.equal(kept[name], tensor) for name, tensor in module.state_dict().items())
    assert module[0].weight.grad is gradient
    assert not module.training
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == numpy.random.get_state()[1]).all()
    assert factory.kept  # the graph


def test_the_same_module_is_captured_once(module, batch):
    job, first = live(module, *batch)
    graph = captured(job)
    again, second = live(module, *batch)
    assert second is first
    assert captured(again) is graph


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.append(nn.ReLU()),
        lambda module: setattr(module[2], "p", 0.1),
        lambda module: module[0].weight.requires_grad_(False),
        lambda module: module.double(),
    ],
)
def test_a_changed_module_is_captured_anew(module, batch, change):
    _, first = live(module, *batch)
    change(module)
    assert live(module, *batch)[1] is not first


class Configured(nn.Module):
    """Reads all that a forward can read: an option of a layer, a config, a list, a class, a closure, a default and a global."""

    factor = 1

    def __init__(self):
        super().__init__()
        self.linear, self.tied = nn.Linear(6, 3), nn.Linear(6, 3)
        self.pool = nn.AvgPool1d(1)
        self.config = SimpleNamespace(attention="sdpa", inner={"scales": [1.0]})
        self.after = [torch.relu]
        self.register_buffer("table", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x) * self.factor * self.config.inner["scales"][0]
        for function in self.after:
            out = function(out)
        return scaled(out) if self.config.attention == "sdpa" else out


SCALE = 1.0


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def squared(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return functional.relu(model(inputs)).square().mean()


@pytest.mark.parametrize(
    "change",
    [
        lambda module, patch: setattr(module.pool, "stride", (2,)),
        lambda module, patch: setattr(module.config, "attention", "eager"),
        lambda module, patch: module.config.inner["scales"].append(2.0),
        lambda module, patch: module.after.append(torch.tanh),
        lambda module, patch: setattr(module, "forward", lambda x: x.sum()),
        lambda module, patch: setattr(module.linear, "forward", lambda x: x),
        lambda module, patch: setattr(module.tied, "weight", module.linear.weight),
        lambda module, patch: module.linear.register_forward_hook(lambda *given: None),
        lambda module, patch: nn.utils.parametrizations.weight_norm(module.linear),
        lambda module, patch: module.linear.eval(),
        lambda module, patch: patch.setattr(Configured, "factor", 2),
        lambda module, patch: patch.setattr(f"{__name__}.SCALE", 2.0),
        lambda module, patch: patch.setattr(scaled, "__code__", (lambda x: x).__code__),
        lambda module, patch: patch.setattr(functional, "relu", torch.tanh),
        lambda module, patch: patch.setattr(nn.Linear, "forward", lambda self, x: x),
        lambda module, patch: patch.setenv("ATTENTION", "eager"),
        lambda module, patch: torch.set_default_dtype(torch.float64),
    ],
)
def test_what_a_capture_reads_decides_whether_a_module_is_captured_anew(change, monkeypatch):
    module, inputs = Configured(), torch.randn(8, 6)
    _, first = live(module, inputs, step=squared)
    assert live(module, inputs, step=squared)[1] is first
    try:
        change(module, monkeypatch)
        assert live(module, inputs, step=squared)[1] is not first
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_loss_of_the_same_code_is_the_same_loss(module, batch):
    def smoothed(amount: float) -> Callable:
        return lambda output, target: functional.cross_entropy(output, target, label_smoothing=amount)

    _, first = live(module, *batch, loss=smoothed(0.1))
    assert live(module, *batch, loss=smoothed(0.1))[1] is first
    assert live(module, *batch, loss=smoothed(0.2))[1] is not first


def test_what_a_module_holds_may_change_unseen_and_then_it_is_captured_anew(module, batch):
    module.rows = iter([1, 2])
    _, first = live(module, *batch, step=lambda model, given: None)
    assert live(module, *batch, step=lambda model, given: None)[1] is not first


def test_a_hook_on_a_parameter_is_refused(module, batch):
    module[0].weight.register_hook(lambda gradient: gradient * 2)
    with refuses(Code.REQUEST, r"tensor '0.weight' of Sequential has a hook \(register_hook\)"):
        live(module, *batch)


def test_numbers_count_if_a_step_reads_them():
    def step(model: nn.Module, mask: torch.Tensor) -> torch.Tensor:
        out = model(torch.ones(4, 6))
        return out.mean() if mask.all() else (out * mask).mean()

    module, mask = nn.Linear(6, 3), torch.ones(4, 3)
    job, first = live(module, mask, step=step)
    ops_before = len(captured(job).ops)
    with torch.no_grad():
        module.weight.zero_()
    assert live(module, mask, step=step)[1] is first
    mask[0, 0] = 0
    job, second = live(module, mask, step=step)
    assert second is not first
    assert len(captured(job).ops) > ops_before


def test_a_model_of_transformers_has_the_attention_that_it_is_told_to_have():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8, vocab_size=50)
    module, tokens = transformers.LlamaForCausalLM(config), torch.randint(50, (2, 4))
    batch = {"input_ids": tokens, "labels": tokens}
    job, first = live(module, batch)
    assert any("scaled_dot_product" in op.name for op in captured(job).ops)
    assert live(module, batch)[1] is first
    module.set_attn_implementation("eager")
    job, second = live(module, batch)
    assert second is not first
    assert not any("scaled_dot_product" in op.name for op in captured(job).ops)


def test_another_batch_has_as_many_samples_of_every_tensor(module, batch):
    factory, samples = live_factory(module, *batch)
    with undisturbed():
        graph = Job(factory.name, 20).graph()
    shapes = {name: graph.values[name].shape for name in graph.inputs}
    assert (samples, shapes) == (8, {"input:0": (20, 6), "target:0": (20,)})


@dataclass
class Pair:
    """A batch as a dataclass, with a number that is no tensor."""

    left: torch.Tensor
    right: torch.Tensor
    scale: float = 2.0


class Adds(nn.Module):
    """Takes a dataclass and returns its own loss."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, pair: Pair) -> dict:
        return {"loss": (self.linear(pair.left) + pair.right).square().mean() * pair.scale}


def test_inputs_may_be_a_dataclass_and_the_loss_the_models_own():
    job, factory = live(Adds(), Pair(torch.randn(5, 3), torch.randn(5, 2)))
    with refuses(Code.MODEL, "the module no longer exists"):
        captured(job)  # nothing else holds it
    held = Adds()
    job, factory = live(held, Pair(torch.randn(5, 3), torch.randn(5, 2)))
    assert {op.layer for op in captured(job).ops} >= {"linear"}
    assert factory


def test_a_step_of_the_user_computes_the_loss(module, batch):
    def step(model: nn.Module, given: tuple) -> torch.Tensor:
        inputs, labels = given
        return functional.cross_entropy(model(inputs), labels) * 2

    job, factory = live(module, batch, step=step)
    own, other = live(module, *batch)
    assert len(captured(job).ops) > len(captured(own).ops)
    assert factory is not other


def test_tied_parameters_stay_tied():
    module = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)})
    module["b"].weight = module["a"].weight
    job, factory = live(module, torch.randn(2, 4), step=lambda m, x: m["b"](m["a"](x)).sum())
    assert captured(job).parameters == ("model.a.weight",)
    assert factory


def test_a_module_that_cannot_be_copied_is_refused_in_one_line(batch):
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo):
            raise RuntimeError("never twice")

    module = Stubborn(6, 3)
    job, factory = live(module, *batch)
    with refuses(Code.REQUEST, "Stubborn cannot be copied: RuntimeError: never twice"):
        captured(job)
    assert factory


def test_a_batch_without_samples_is_refused(module):
    with refuses(Code.REQUEST, "the batch has no tensor with a dimension"):
        live_factory(module, torch.tensor(1.0))


def test_a_factory_lives_as_long_as_it_is_held(module, batch):
    job, factory = live(module, *batch)
    del factory
    gc.collect()
    with refuses(Code.MODEL, f"no live model '{job.model}'"):
        _ = job.factory


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_layout_of_images_keeps_the_types_of_the_module(dtype, layout):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10)).to(dtype)
    factory, samples = live_factory(module, torch.randn(2, 3, 8, 8, dtype=dtype), torch.randint(10, (2,)))
    built = Job(factory.name, samples, layout=layout).build()
    assert {tensor.dtype for tensor in (*module.parameters(), *built.module.parameters(), *built.inputs)} == {dtype}
    assert built.inputs[0].is_contiguous(memory_format=torch.channels_last) == (layout == "nhwc")
