"""Capture one training step as a TrainingGraph on CPU fake tensors: no memory, no arithmetic, and the same cost keys on every machine.

A dispatch mode (`recorder`) records the aten ops that forward, loss and `torch.autograd.grad` issue below autograd. Module hooks keep a
stack of running modules, which gives each op its layer; a backward op has the layer in which its autograd node was made.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from simulator.model.built import Built, FactoryFailedError
from simulator.model.capture.gradients import finish
from simulator.model.capture.intercept import CanonicalForms, without_redraws
from simulator.model.capture.known_values import UnknownContentError
from simulator.model.capture.recomputed import recomputed
from simulator.model.capture.recorder import OwnTensorError, Recorder
from simulator.model.capture.repetition import StepWatch, check_inputs, check_same
from simulator.model.gradients import SCALE
from simulator.model.graph import TrainingGraph
from simulator.model.ops.mixed import casts_in_place
from simulator.model.user_code import time_limit, training_step
from simulator.plan.task import AGAIN, BACKWARD, BUFFER, INPUT, PARAMETER
from traces.errors import Code, SchedcastError
from traces.process import gc_paused


class Layers:
    """A context in which `enter(path)` is called with the innermost running module; in backward, with the module of the running node."""

    def __init__(self, module: torch.nn.Module, enter: Callable[[str], None]):
        self._module, self._enter = module, enter
        self.stack: list[str] = []
        self._handles: list[Any] = []
        self._seen: set[Any] = set()

    def __enter__(self):
        for name, module in self._module.named_modules():
            self._handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._push(name)))
            self._handles.append(module.register_forward_hook(lambda _m, _i, output: self._pop(output)))
        return self

    def __exit__(self, *error):
        for handle in self._handles:
            handle.remove()

    def _push(self, name: str) -> None:
        self.stack.append(name)
        self._enter(name)

    def _pop(self, output: Any) -> None:
        layer = self.stack.pop()
        self._claim(output, layer)
        self._enter(self.stack[-1] if self.stack else "loss")

    def _claim(self, output: Any, layer: str) -> None:
        """Assign every autograd node made since the last call to `layer`, so that its backward ops have this layer."""
        nodes = [t.grad_fn for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        while nodes:
            node = nodes.pop()
            if node in self._seen:
                continue
            self._seen.add(node)
            node.register_prehook(lambda _g, layer=layer: self._enter(layer))
            nodes += [following for following, _ in node.next_functions if following is not None]


# This logger prints a traceback for every exception that it passes on. Schedcast reports these itself, in one line.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

_NEEDS_REAL_TENSORS = (UnknownContentError, FactoryFailedError)


def capture(build: Callable[[], Built], batch: int, loss_scale: float = 1.0, repeats: bool = True) -> TrainingGraph:
    """Capture forward, loss and backward (of loss / `loss_scale`) of the model that `build` makes.

    With `repeats`, as for all models of users, the forward pass runs once more, and SchedcastError is raised if it differs or if a pass
    does not end in time.

    `build` runs under fake tensors, so a model larger than this machine's memory can be captured. If it fails under them, because it reads
    tensor values, or if the step reads values of what it made, it runs on real tensors, which are then replaced by fake ones. A step may
    read values that depend on nothing but the batch, buffers and literals: it is captured for the current values, and checks them in every
    step. Raises SchedcastError if values that a step reads depend on trainable parameters.
    """
    with gc_paused():
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with fake, without_redraws(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # copying a module does this; it is harmless
                built = build()
            return _record(_with_fake_tensors(built, fake), fake, batch, loss_scale, repeats, {})
        except _NEEDS_REAL_TENSORS:
            built = build()
            contents = _contents(built)
            return _record(_with_fake_tensors(built, fake), fake, batch, loss_scale, repeats, contents)


def _contents(built: Built) -> dict[str, torch.Tensor]:
    """The tensors by name whose values a step may read: all but the trainable parameters."""
    frozen = {name: p for name, p in built.module.named_parameters() if not p.requires_grad}
    return {**frozen, **dict(built.module.named_buffers()), **built.scaler, **built.named_inputs()}


def _with_fake_tensors(built: Built, fake: FakeTensorMode) -> Built:
    """Replace the real tensors of `built` by fake ones, and return it."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, FakeTensor):
            return fake.from_tensor(tensor.detach(), static_shapes=True)
        with fake:  # a deep copy of a fake tensor has another storage than its views, so that views could not be recognized
            if torch.ops.aten.alias.default(tensor).untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                return tensor
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    built.replace_tensors(convert)
    return built


def _record(
    built: Built, fake: FakeTensorMode, batch: int, loss_scale: float, repeats: bool, contents: Mapping[str, torch.Tensor]
) -> TrainingGraph:
    """Record a step on fake tensors. `contents`: as in `Recorder`."""
    recorder = _recorder(built, contents)
    parameters = dict(built.module.named_parameters())
    trainable = {name: p for name, p in parameters.items() if p.requires_grad}
    if not trainable:
        raise SchedcastError("the model has no trainable parameter; expected at least one with requires_grad; unfreeze a layer", Code.MODEL)
    watch = StepWatch(built)
    with _recording(built, recorder, fake, batch, limited=repeats):
        loss = built.run()
        forward_ops = len(recorder.ops)
        watch.check()
        _check_loss(loss)
        if watch.draws.happened():
            recorder.layer = ""
            recorder.assume("draws random numbers of Python or NumPy, which a plan would not draw again; predicted with those drawn now")
        recorder.layer = "loss"
        scaled = loss if loss_scale == 1.0 else loss / loss_scale
        if built.scaler:
            scaled = scaled * built.scaler[SCALE]
        recorder.phase = BACKWARD
        gradients = torch.autograd.grad(scaled, list(trainable.values()), allow_unused=True)
    check_inputs(recorder.ops, recorder.values, tuple(built.named_inputs()))
    if repeats:
        _check_second_forward(built, recorder, forward_ops, fake=fake, batch=batch, watch=watch, contents=contents)
    operands = {name: recorder.operand(g) for (name, _), g in zip(trainable.items(), gradients, strict=True) if g is not None}
    if not operands:
        raise SchedcastError("the loss does not depend on any trainable parameter; check the model's loss")
    made = frozenset(operand.value for operand in operands.values())
    graph = TrainingGraph(
        batch=batch,
        ops=casts_in_place(recorder.ops, frozenset(operands), made) if built.lowered else tuple(recorder.ops),
        values=recorder.values,
        storage_bytes=recorder.storage_bytes,
        inputs=tuple(built.named_inputs()),
        parameters=tuple(operands),
        layers={name: name.rpartition(".")[0] for name in parameters},
        gradients=operands,
        loss=recorder.operand(loss).value,
        constants=recorder.constants,
        draws=recorder.draws,
        assumptions=recorder.assumptions,
        checkpoint="the model's own" if any(AGAIN in op.name for op in recorder.ops) else "",
        taken=built.assumed,
    )
    return finish(graph)


def _recorder(built: Built, contents: Mapping[str, torch.Tensor] = MappingProxyType({}), earlier: Recorder | None = None) -> Recorder:
    """A recorder that knows the parameters, buffers and inputs of `built`."""
    recorder = Recorder(earlier, contents)
    for kind, tensors in (
        (PARAMETER, built.module.named_parameters()),
        (BUFFER, built.module.named_buffers()),
        (BUFFER, built.scaler.items()),
        (INPUT, built.named_inputs().items()),
    ):
        for name, tensor in tensors:
            if earlier is None or not earlier.made(tensor):
                recorder.define(name, tensor, kind)
    return recorder


@contextmanager
def _recording(built: Built, recorder: Recorder, fake: FakeTensorMode, batch: int, limited: bool) -> Iterator[None]:
    """Within the block `recorder` records, ops are issued in canonical forms, and every error is reported with the user's line.

    With `limited` the block has the time limit of a user's code.
    """
    handled_by_capture = (UnknownContentError, OwnTensorError)
    canonical, layers = CanonicalForms(lambda: recorder.layer, built.fused_dropout), Layers(built.module, recorder.enter)
    limit = time_limit(f"the training step for batch size {batch}", limited, lambda: recorder.calls)
    with training_step(batch, handled_by_capture), limit, fake, recorder, canonical, layers, recomputed(recorder, layers.stack):
        yield


def _check_second_forward(
    built: Built,
    first: Recorder,
    forward_ops: int,
    fake: FakeTensorMode,
    batch: int,
    watch: StepWatch,
    contents: Mapping[str, torch.Tensor],
) -> None:
    """Run the forward pass once more. Raises SchedcastError unless it issues the ops that `first` has recorded."""
    second = _recorder(built, contents, first)
    watch.draws.repeat()
    try:
        with _recording(built, second, fake, batch, limited=True):
            built.run()
    except (
        OwnTensorError
    ):  # a table made in the first step, such as positions: the plan makes it again in every step, with the same numbers
        return
    check_same(first.ops[:forward_ops], second.ops, watch)
    changed = next((name for name, text in second.constants.items() if first.constants.get(name) != text), None)
    if changed is not None:
        raise SchedcastError(
            f"two forward passes in a row use other numbers in {second.values[changed].shape}, a tensor that they make in Python or NumPy;"
            " expected the same ones; make it with torch, or once"
        )


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shown = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        change = "return the loss" if loss is None else "reduce it with .mean() or .sum()"
        raise SchedcastError(f"the loss is {shown}; expected a tensor with one element; {change}", Code.MODEL)
    if not loss.requires_grad:
        raise SchedcastError("the loss does not depend on any trainable parameter; check the model's loss")
