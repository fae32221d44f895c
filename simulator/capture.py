"""Capture one training step as a TrainingGraph, on CPU fake tensors: no memory, no arithmetic, the same keys on every machine.

A dispatch mode records the aten ops that forward, loss and `torch.autograd.grad` issue below autograd. Storages tell views from new
tensors, so views never become ops. Layers come from a stack kept by module hooks; a backward op has the layer under which its autograd
node was made. This is the one file that touches PyTorch's private fake-tensor and dispatch-mode modules.
"""

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from traces.errors import StepcastError

from .aten_json import encode, name_of
from .bodies.opcall import OpCall
from .factory import training_step
from .gradients import finish
from .graph import Op, TrainingGraph
from .intercept import CanonicalForms
from .plan import ACTIVATION, BACKWARD, BUFFER, FORWARD, GRADIENT, INPUT, PARAMETER, Operand, Value, ViewStep

# It prints a traceback for every exception that it passes on, which is ours to report.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

#: Tensor arguments that an op changes although its schema does not say so (statistics of batch-norm in training).
HIDDEN_MUTATIONS = {"aten.native_batch_norm.default": (3, 4)}
#: Ops whose joint form computes dX and dW at once, chosen by their `output_mask`. They are recorded as two ops.
SPLIT_BY_MASK = frozenset(
    {"aten.convolution_backward.default", "aten.native_layer_norm_backward.default", "aten.native_group_norm_backward.default"}
)
RANDOM = ("rand", "normal", "multinomial", "uniform")
MAX_CONSTANT_ELEMENTS = 65_536


class _UnknownContentError(Exception):
    """The step reads a tensor that the factory made under fake tensors and did not register."""


class FactoryFailedError(StepcastError):
    """The user's factory raised; under fake tensors that may only mean that it needs real numbers."""


_NEEDS_REAL_NUMBERS = (_UnknownContentError, FactoryFailedError)
_VALUE_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)


@dataclass
class Built:
    """What a model factory returned, in one form: `inputs` positional, `keywords` by name, `loss(output, target)`."""

    module: torch.nn.Module
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    target: Any
    loss: Callable[[Any, Any], torch.Tensor]

    def named_inputs(self) -> dict[str, torch.Tensor]:
        """Every input and target tensor by name: `input:0`, `input:mask`, `target:0`."""
        found = {f"input:{i}": t for i, t in enumerate(self.inputs)} | {f"input:{k}": t for k, t in self.keywords.items()}
        found |= {f"target:{i}": t for i, t in enumerate(tree_leaves(self.target))}
        return {name: t for name, t in found.items() if isinstance(t, torch.Tensor)}

    def replace_tensors(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Put `convert(tensor)` in place of every parameter, buffer, input and target, keeping ties between them.

        Not `Module.to`, which cannot swap fake tensors.
        """
        memo: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the originals too: a freed one's id may come again

        def once(item: Any) -> Any:
            if not isinstance(item, torch.Tensor):
                return item
            if id(item) not in memo:
                made = convert(item.detach() if isinstance(item, torch.nn.Parameter) else item)
                memo[id(item)] = (item, torch.nn.Parameter(made, item.requires_grad) if isinstance(item, torch.nn.Parameter) else made)
            return memo[id(item)][1]

        for module in self.module.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    table[name] = once(tensor)
        self.inputs = tuple(map(once, self.inputs))
        self.keywords = {name: once(item) for name, item in self.keywords.items()}
        self.target = tree_map(once, self.target)

    def run(self) -> torch.Tensor:
        """Forward and loss."""
        return self.loss(self.module(*self.inputs, **self.keywords), self.target)


def capture(build: Callable[[], Built], batch: int, loss_scale: float = 1.0) -> TrainingGraph:
    """Capture forward, loss and backward (of the loss / `loss_scale`) of what `build` makes.

    `build` runs under fake tensors, so a model larger than this machine's memory can be captured; where it cannot (it reads values), it
    runs for real once and its tensors are replaced by fake ones. Raises StepcastError for steps that depend on tensor values.
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
    except _VALUE_DEPENDENT as error:
        raise StepcastError(
            f"the training step reads tensor values to decide what to do ({error}); expected a step whose ops do not depend on the data;"
            " remove .item(), boolean indexing or value-dependent branches"
        ) from error


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


def _record(built: Built, fake: FakeTensorMode, batch: int, loss_scale: float) -> TrainingGraph:
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
    with training_step(batch, (_UnknownContentError, *_VALUE_DEPENDENT)), fake, recorder, CanonicalForms(), _Layers(module, recorder):
        loss = built.run()
        _check_loss(loss)
        recorder.layer = "loss"
        scaled = loss if loss_scale == 1.0 else loss / loss_scale
        recorder.phase = BACKWARD
        gradients = torch.autograd.grad(scaled, list(trainable.values()), allow_unused=True)
    found = {name: recorder.operand(g) for (name, _), g in zip(trainable.items(), gradients, strict=True) if g is not None}
    if not found:
        raise StepcastError("the loss does not depend on any trainable parameter; check the model's loss")
    layers = {name: name.rpartition(".")[0] for name in parameters}
    graph = TrainingGraph(
        batch=batch,
        ops=tuple(recorder.ops),
        values=recorder.values,
        storage_bytes=recorder.storage_bytes,
        inputs=tuple(built.named_inputs()),
        parameters=tuple(found),
        frozen=tuple(name for name in parameters if name not in found),
        layers=layers,
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


class Recorder(TorchDispatchMode):
    """Turns dispatched aten ops into `Op`s; keeps every tensor alive so that identities stay unique."""

    def __init__(self):
        super().__init__()
        self.ops: list[Op] = []
        self.values: dict[str, Value] = {}
        self.storage_bytes: dict[str, int] = {}
        self.constants: dict[str, Any] = {}
        self.notes: list[str] = []
        self.phase, self.layer = FORWARD, ""
        self._operands: dict[int, Operand] = {}
        self._offsets: dict[str, int] = {}
        self._by_storage: dict[int, str] = {}
        self._alive: list[Any] = []
        self._names: dict[str, int] = {}

    def define(self, name: str, tensor: torch.Tensor, kind: str) -> Operand:
        """Make `tensor` a value called `name`; a second value on a known storage lies on that storage."""
        self._alive.append(tensor)
        storage = tensor.untyped_storage()
        shared = self._by_storage.setdefault(storage._cdata, name)
        if shared == name:
            self.storage_bytes[name] = storage.nbytes()
        self.values[name] = Value(name, tuple(tensor.shape), tuple(tensor.stride()), name_of(tensor.dtype), "", kind, shared)
        self._offsets[name] = tensor.storage_offset()
        self._operands[id(tensor)] = self.values[name].operand()
        return self._operands[id(tensor)]

    def operand(self, tensor: torch.Tensor) -> Operand:
        """The operand of a tensor seen before; a tensor seen for the first time is a constant of the model or a new face of a known one."""
        known = self._operands.get(id(tensor))
        if known is not None:
            return known
        base = self._by_storage.get(tensor.untyped_storage()._cdata)
        if base is None:
            return self._constant(tensor)
        face = Operand(base, tuple(tensor.shape), tuple(tensor.stride()), name_of(tensor.dtype))
        if not self._whole(tensor, face):
            args, _ = encode(([*tensor.shape], [*tensor.stride()], tensor.storage_offset()), {})
            face = replace(face, views=(ViewStep("aten.as_strided.default", args),))
        self._remember(tensor, face)
        return face

    def _constant(self, tensor: torch.Tensor) -> Operand:
        if isinstance(tensor, FakeTensor):
            raise _UnknownContentError
        if tensor.numel() > MAX_CONSTANT_ELEMENTS:
            raise StepcastError(
                f"the model keeps a tensor of {tensor.numel()} elements outside its parameters and buffers; expected it registered;"
                " use register_buffer"
            )
        name = f"constant:{len(self.constants)}"
        with unset_fake_temporarily():
            self.constants[name] = tensor.tolist()
        return self.define(name, tensor, BUFFER)

    def _remember(self, tensor: torch.Tensor, operand: Operand) -> None:
        self._alive.append(tensor)
        self._operands[id(tensor)] = operand

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the op on fake tensors and record it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        results = [r for r in _as_list(result) if isinstance(r, torch.Tensor)]
        if results or func._schema.is_mutable:
            mask = _mask_position(func)
            if mask is not None and args[mask][0] and any(args[mask][1:]):
                only_x = [True] + [False] * (len(args[mask]) - 1)
                rest = [False, *args[mask][1:]]
                outs = list(result)
                self._op(func, (*args[:mask], only_x, *args[mask + 1 :]), kwargs, [outs[0], *[None] * (len(outs) - 1)])
                self._op(func, (*args[:mask], rest, *args[mask + 1 :]), kwargs, [None, *outs[1:]])
            else:
                self._op(func, args, kwargs, _as_list(result))
        return result

    def _op(self, func, args, kwargs, results: list[Any]) -> None:
        mutated = _mutated(func, args, kwargs)
        if not mutated and self._view(func, args, kwargs, results):
            return
        if func.is_view and self._knows(args[0]):  # as a task it would hide that two values share memory
            raise StepcastError(f"{func} in layer {self.layer!r} gives a view that capture cannot follow; please report the model")
        encoder = _Inputs(self, mutated)
        text, named = encode(args, kwargs, encoder)
        reads, mutates = encoder.finish()
        text, named = encoder.renumber(text), encoder.renumber(named)
        name = self._name(func)
        writes, outputs = [], []
        known = {id(t) for t in mutated}
        for position, tensor in enumerate(results):
            if not isinstance(tensor, torch.Tensor) or id(tensor) in known:
                continue
            if tensor.untyped_storage()._cdata in self._by_storage:
                self.operand(tensor)  # an in-place op's result, seen as a new object
                continue
            kind = GRADIENT if self.phase == BACKWARD else ACTIVATION
            writes.append(self.define(name if not position else f"{name}:{position}", tensor, kind))
            outputs.append(position)
        if any(part in str(func).split(".")[1] for part in RANDOM):
            self.notes.append(f"draws random numbers in {self.layer or 'the model'} ({func})")
        body = OpCall(str(func), text, named, tuple(outputs), _flops(func, args, kwargs, results))
        self.ops.append(Op(name, body, self.phase, self.layer, "", reads, tuple(writes), mutates))

    def _knows(self, tensor: Any) -> bool:
        """Whether it lies on a storage seen before; a real tensor among fake ones is a constant, and nobody changes that."""
        return isinstance(tensor, FakeTensor) and tensor.untyped_storage()._cdata in self._by_storage

    def _view(self, func, args, kwargs, results: list[Any]) -> bool:
        """Remember results that alias the first tensor argument as views of it; False when the op computes something."""
        source = next((a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)), None)
        tensors = [r for r in results if isinstance(r, torch.Tensor)]
        if source is None or any(t.untyped_storage()._cdata != source.untyped_storage()._cdata for t in tensors):
            return False
        base = self.operand(source)
        text, _ = encode(args[1:], {})
        for position, tensor in enumerate(tensors):
            if id(tensor) in self._operands:
                continue
            face = Operand(base.value, tuple(tensor.shape), tuple(tensor.stride()), name_of(tensor.dtype))
            if self._whole(tensor, face):  # a view that undoes earlier ones, such as t of t
                self._remember(tensor, face)
                continue
            face = replace(face, views=base.views)
            if face != base or source.storage_offset() != tensor.storage_offset():
                step = ViewStep(str(func), text if not kwargs else encode(args[1:], kwargs)[0], position if len(tensors) > 1 else None)
                face = replace(face, views=(*base.views, step))
            self._remember(tensor, face)
        return True

    def _whole(self, tensor: torch.Tensor, face: Operand) -> bool:
        return tensor.storage_offset() == self._offsets[face.value] and face == self.values[face.value].operand()

    def _name(self, func) -> str:
        base = f"{self.layer or 'model'}/{str(func).split('.')[1]}"
        count = self._names[base] = self._names.get(base, 0) + 1
        return base if count == 1 else f"{base}#{count}"


def _mask_position(func) -> int | None:
    if str(func) not in SPLIT_BY_MASK:
        return None
    return next(i for i, argument in enumerate(func._schema.arguments) if argument.name == "output_mask")


def _as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result]


def _mutated(func, args, kwargs) -> list[torch.Tensor]:
    """Tensor arguments that the op changes, by its schema or the table of hidden mutations."""
    found = []
    for position, argument in enumerate(func._schema.arguments):
        hidden = position in HIDDEN_MUTATIONS.get(str(func), ()) and args[5]
        if hidden or (argument.alias_info is not None and argument.alias_info.is_write):
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [t for t in tree_leaves(given) if isinstance(t, torch.Tensor)]
    return found


def _flops(func, args, kwargs, results) -> float:
    if func is torch.ops.aten.convolution_backward.default:  # the registry's formula takes a grouped convolution's dW for a dense one
        grad_out, inputs, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
        outer = inputs if transposed else grad_out
        return 2.0 * outer.numel() * (weight.numel() // weight.shape[0]) * (mask[0] + mask[1])
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0.0
    return float(formula(*args, **kwargs, out_val=results[0] if len(results) == 1 else tuple(results)))


class _Inputs:
    """Numbers an op's tensor arguments: first those it reads, then those it changes."""

    def __init__(self, recorder: Recorder, mutated: list[torch.Tensor]):
        self._recorder = recorder
        self._mutated = {id(t) for t in mutated}
        self._reads: dict[Operand, int] = {}
        self._mutates: dict[Operand, int] = {}

    def __call__(self, tensor: torch.Tensor) -> str:
        """A placeholder for the tensor, final only after `renumber`."""
        operand = self._recorder.operand(tensor)
        table, mark = (self._mutates, "m") if id(tensor) in self._mutated else (self._reads, "r")
        return f"{mark}{table.setdefault(operand, len(table))}"

    def finish(self) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        """(reads, mutates)."""
        return tuple(self._reads), tuple(self._mutates)

    def renumber(self, text: str) -> str:
        """Replace placeholders by positions in reads + mutates."""
        for mark, table, first in (("r", self._reads, 0), ("m", self._mutates, len(self._reads))):
            for position in table.values():
                text = text.replace(f'{{"$":"{mark}{position}"}}', f'{{"$":{first + position}}}')
        return text


class _Layers:
    """Keeps the recorder's layer: the innermost running module, and in backward the module whose autograd node runs."""

    def __init__(self, module: torch.nn.Module, recorder: Recorder):
        self._module, self._recorder = module, recorder
        self._stack: list[str] = []
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
        self._stack.append(name)
        self._recorder.layer = name

    def _pop(self, output: Any) -> None:
        layer = self._stack.pop()
        self._claim(output, layer)
        self._recorder.layer = self._stack[-1] if self._stack else "loss"

    def _claim(self, output: Any, layer: str) -> None:
        """Give every autograd node made since the last claim to `layer`, so that its backward ops carry it."""
        nodes = [t.grad_fn for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        while nodes:
            node = nodes.pop()
            if node in self._seen:
                continue
            self._seen.add(node)
            node.register_prehook(lambda _g, layer=layer: setattr(self._recorder, "layer", layer))
            nodes += [following for following, _ in node.next_functions if following is not None]
