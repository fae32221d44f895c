"""The reference runs plain PyTorch's training loop and trains users' models."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from executors.reference import Hooked, Reference, split
from simulator.plan.bodies.update import hyper_parameters
from tests.support.places import SUPPORT, USER_MODELS
from tests.support.refusals import refuses
from traces.errors import Code


def build(path: Path, batch: int = 4):
    """(module, inputs, target, loss) of a user's model file, in float64."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(1)
    net, inputs, target, *loss = module.make(batch)
    inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    target = target.double() if target.is_floating_point() else target
    return net.double(), inputs, target, loss[0] if loss else None


def reference(path: Path, **options) -> Reference:
    """A Reference of a user's model file with adam:for and a high learning rate."""
    return Reference(*build(path), "adam", "for", hyper_parameters("adam", lr=0.01), **options)


@pytest.mark.parametrize("path", USER_MODELS, ids=lambda path: path.stem)
def test_user_models_train(path):
    training = reference(path, dropout_seed=0)
    before = {name: p.clone() for name, p in training.parameters().items()}
    losses = [training.step() for _ in range(15)]
    assert all(loss.isfinite() and not loss.requires_grad for loss in losses)
    assert losses[-1] < losses[0]
    gradients = training.gradients()
    moved = {name for name, p in training.parameters().items() if not torch.equal(p, before[name])}
    assert moved == set(gradients)


def test_frozen_and_unused_parameters_have_no_gradient():
    training = reference(SUPPORT / "user_models" / "frozen_regression.py")
    training.step()
    assert set(training.parameters()) - set(training.gradients()) == {
        "projection.weight", "projection.bias", "pretraining_head.weight", "pretraining_head.bias",
    }  # fmt: skip


@pytest.mark.parametrize("path", USER_MODELS, ids=lambda path: path.stem)
def test_the_same_dropout_seed_gives_the_same_run(path):
    first, second = (reference(path, accumulate=2, clip_norm=0.5, dropout_seed=3) for _ in range(2))
    for _ in range(3):
        assert torch.equal(first.step(), second.step())
    assert all(torch.equal(first.parameters()[name], p) for name, p in second.parameters().items())


def test_masks_change_from_step_to_step_and_between_microbatches():
    module = nn.Sequential(nn.Dropout(0.5))
    outputs = []
    module.register_forward_hook(lambda _, __, output: outputs.append(output.detach()))
    module.scale = nn.Parameter(torch.ones(()))
    training = Reference(
        module, (torch.ones(4, 50),), torch.ones(4, 50), lambda y, t: (module.scale * y - t).square().mean(), "sgd", "for", accumulate=2,
        dropout_seed=0,
    )  # fmt: skip
    training.step()
    training.step()
    assert len(outputs) == 4
    assert len({tuple(output.flatten().tolist()) for output in outputs}) == 4


def test_it_equals_the_loop_that_a_user_writes():
    def model() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
        return net, torch.randn(6, 6, dtype=torch.float64), torch.randint(3, (6,))

    net, x, y = model()
    training = Reference(net, (x,), y, None, "adamw", "foreach", (), accumulate=3, clip_norm=0.1)
    mine, x, y = model()
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-3, weight_decay=1e-2, foreach=True)
    for _ in range(4):
        optimizer.zero_grad()
        total = 0.0
        for start in (0, 2, 4):
            loss = F.cross_entropy(mine(x[start : start + 2]), y[start : start + 2])
            (loss / 3).backward()
            total += loss.item() / 3
        nn.utils.clip_grad_norm_(mine.parameters(), 0.1)
        optimizer.step()
        assert training.step().item() == pytest.approx(total, rel=1e-14)
    for name, parameter in mine.named_parameters():
        assert torch.equal(training.parameters()[name], parameter.detach())
        assert torch.equal(training.gradients()[name], parameter.grad)


def test_a_batch_is_split_in_any_container():
    x = torch.arange(6)
    halves = [x[:3], x[3:]]
    assert all(map(torch.equal, split(x, 2), halves))
    assert [chunk[1] for chunk in split((x, "mode"), 2)] == ["mode", "mode"]
    assert all(torch.equal(chunk["x"][0], half) for chunk, half in zip(split({"x": [x]}, 2), halves, strict=True))
    assert split((), 2) == [(), ()]
    with refuses(Code.BATCH):
        split(x, 4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fusion", ["forward", "backward"])
@pytest.mark.parametrize("path", USER_MODELS, ids=lambda path: path.stem)
def test_hooks_train_as_the_plain_loop_does(path, fusion):
    """Shared, frozen and unused parameters are among the models, and the learning rate changes after two steps."""
    options = {"rates": [(2, 0.001)], "dropout_seed": 0, **({"clip_norm": 0.5, "accumulate": 2} if fusion == "forward" else {})}
    plain = reference(path, **options)
    hooked = Hooked(*build(path), "adam", "for", hyper_parameters("adam", lr=0.01), **options).fuse(fusion)
    for _ in range(4):
        assert torch.equal(plain.step(), hooked.step())
    if fusion == "forward":
        used = plain.gradients()
        waiting = {name for name, p in hooked.module.named_parameters() if not torch.equal(p, plain.parameters()[name])}
        assert waiting == set(used), "the last update of every trained layer waits for its next forward"
    assert all(torch.equal(hooked.parameters()[name], p) for name, p in plain.parameters().items())


def test_hooks_in_backward_refuse_what_needs_all_gradients():
    for options in ({"clip_norm": 1.0}, {"accumulate": 2}):
        hooked = Hooked(*build(USER_MODELS[0]), "adam", "for", **options)
        with refuses(Code.MODEL, "before all gradients are known"):
            hooked.fuse("backward")
