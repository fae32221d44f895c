"""Capture one training step as a TrainingGraph, on CPU fake tensors: no memory, no arithmetic, the same keys on every machine.

A dispatch mode (`recorder`) records the aten ops that forward, loss and `torch.autograd.grad` issue below autograd. Layers come from a
stack kept by module hooks; a backward op has the layer under which its autograd node was made.
"""

import logging
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

from simulator.capture.gradients import finish
from simulator.capture.intercept import CanonicalForms
from simulator.capture.module_stack import Layers
from simulator.capture.recorder import Recorder, UnknownContentError
from simulator.graph import TrainingGraph
from simulator.models.built import Built, FactoryFailedError
from simulator.models.factory import training_step
from simulator.plan.task import BACKWARD, BUFFER, INPUT, PARAMETER
from traces.errors import StepcastError

# It prints a traceback for every exception that it passes on, which is ours to report.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

_NEEDS_REAL_NUMBERS = (UnknownContentError, FactoryFailedError)
_VALUE_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)


def capture(build: Callable[[], Built], batch: int, loss_scale: float = 1.0) -> TrainingGraph:
    """Capture forward, loss and backward (of the loss / `loss_scale`) of what `build` makes.

    `build` runs under fake tensors, so a model larger than this machine's memory can be captured; where it cannot (it reads values), it
    runs for real once and its tensors are replaced by fake ones. A step that reads values is run for real: nn.Transformer, say, looks
    whether its mask is causal. Raises StepcastError where what it reads depends on parameters or data.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        try:
            with fake, warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # copies of modules look at it, harmlessly
                built = build()
            return _record(_made_fake(built, fake), fake, batch, loss_scale)
        except _NEEDS_REAL_NUMBERS:
            return _record(_made_fake(build(), fake), fake, batch, loss_scale)
    except _VALUE_DEPENDENT:
        return _record(build(), None, batch, loss_scale)


def _made_fake(built: Built, fake: FakeTensorMode) -> Built:
    """`built` with its real tensors replaced by fake ones."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, FakeTensor):
            return fake.from_tensor(tensor.detach(), static_shapes=True)
        with fake:  # a deep copy of a fake tensor has another storage than its views, by which views could not be told
            if torch.ops.aten.alias.default(tensor).untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                return tensor
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    built.replace_tensors(convert)
    return built


def _record(built: Built, fake: FakeTensorMode | None, batch: int, loss_scale: float) -> TrainingGraph:
    """Record a step on fake tensors, or with `fake` None on real ones."""
    recorder = Recorder()
    module = built.module
    parameters = dict(module.named_parameters())
    for name, tensor in parameters.items():
        recorder.define(name, tensor, PARAMETER)
    for name, tensor in module.named_buffers():
        recorder.define(name, tensor, BUFFER)
    for name, tensor in built.named_inputs().items():
        recorder.define(name, tensor, INPUT)
    trainable = {name: p for name, p in parameters.items() if p.requires_grad}
    if not trainable:
        raise StepcastError("the model has no trainable parameter; expected at least one with requires_grad; unfreeze a layer")
    interrupting = (UnknownContentError, *_VALUE_DEPENDENT)
    canonical, layers = CanonicalForms(lambda: recorder.layer), Layers(module, recorder.enter)
    with training_step(batch, interrupting), fake or nullcontext(), recorder, canonical, layers:
        loss = built.run()
        _check_loss(loss)
        recorder.layer = "loss"
        scaled = loss if loss_scale == 1.0 else loss / loss_scale
        recorder.phase = BACKWARD
        gradients = torch.autograd.grad(scaled, list(trainable.values()), allow_unused=True)
    found = {name: recorder.operand(g) for (name, _), g in zip(trainable.items(), gradients, strict=True) if g is not None}
    if not found:
        raise StepcastError("the loss does not depend on any trainable parameter; check the model's loss")
    graph = TrainingGraph(
        batch=batch,
        ops=tuple(recorder.ops),
        values=recorder.values,
        storage_bytes=recorder.storage_bytes,
        inputs=tuple(built.named_inputs()),
        parameters=tuple(found),
        frozen=tuple(name for name in parameters if name not in found),
        layers={name: name.rpartition(".")[0] for name in parameters},
        gradients=found,
        loss=recorder.operand(loss).value,
        constants=recorder.constants,
        notes=tuple(dict.fromkeys(recorder.notes)),
    )
    return finish(graph)


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise StepcastError(f"the loss is {given}; expected a tensor with one element; reduce it with .mean() or .sum()")
    if not loss.requires_grad:
        raise StepcastError("the loss does not depend on any trainable parameter; check the model's loss")
