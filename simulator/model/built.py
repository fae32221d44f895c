"""The result of a model factory, in one form for all factories."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from simulator.model.default_loss import PROBABILITIES, default_loss, takes_probabilities, unfit_loss
from simulator.model.ops.autocast import autocast
from simulator.model.ops.mixed import lowered
from traces.errors import Code, SchedcastError

# Batches as users write them: a tensor, or a tuple, list, mapping or dataclass of batches; anything else in them is not a tensor.


def arguments(module: torch.nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments with which a module is called on the inputs of a factory.

    A mapping has keyword arguments if the module's forward has these names; a tuple or list has positional arguments if forward takes that
    many. Otherwise, as with any other object, the inputs are a single argument.
    """
    if isinstance(inputs, Mapping) and _accepts(module, **inputs):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list) and (_accepts(module, *inputs) or not _accepts(module, inputs)):
        return tuple(inputs), {}
    return (inputs,), {}


def _accepts(module: torch.nn.Module, *positional: Any, **keywords: Any) -> bool:
    try:
        inspect.signature(module.forward).bind(*positional, **keywords)
    except (TypeError, ValueError):  # ValueError: it has no signature
        return False
    return True


def tensors_of(batch: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of a batch with its place, such as `NAME.mask.0`."""
    if isinstance(batch, torch.Tensor):
        yield name, batch
    for key, item in _items(batch):
        yield from tensors_of(item, f"{name}.{key}")


def mapped(batch: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a batch of the same form with every tensor converted."""
    if isinstance(batch, torch.Tensor):
        return convert(batch)
    items = {key: mapped(item, convert) for key, item in _items(batch)}
    if not items:
        return batch
    if _is_record(batch):
        return replace(batch, **items)
    kind = type(batch)
    if isinstance(batch, Mapping):
        return kind(items)
    return kind(*items.values()) if hasattr(batch, "_fields") else kind(items.values())


def _items(batch: Any) -> list[tuple[Any, Any]]:
    """The parts of a batch by key; none if it is no collection."""
    if _is_record(batch):
        return [(field.name, getattr(batch, field.name)) for field in fields(batch) if field.init]
    if isinstance(batch, Mapping):
        return list(batch.items())
    return list(enumerate(batch)) if isinstance(batch, tuple | list) else []


def _is_record(batch: Any) -> bool:
    return is_dataclass(batch) and not isinstance(batch, type)


def _places(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return module._parameters, module._buffers


def float_type(module: torch.nn.Module) -> torch.dtype | None:
    """The floating-point type of most parameters; None if there are none."""
    types = Counter(parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    return types.most_common(1)[0][0] if types else None


class FactoryFailedError(SchedcastError):
    """The user's factory raised an exception. Under fake tensors this may only mean that the factory reads tensor values."""


@dataclass
class Built:
    """A module in training mode with one batch: `inputs` are positional, `keywords` are by name, and `loss(output, target)` is a scalar.

    `scaler`: the carried tensors of a gradient scaler by name (`simulator.model.gradients`); empty without one.
    `autocast`: the lower precision in which `run` computes, and the kind of device whose rules autocast follows. `fused_dropout`: capture
    attention with dropout as the one op that PyTorch's own loop runs on a GPU. `lowered`: the precision of the copy of the parameters that
    computes (`simulator.model.ops.mixed`); empty if the parameters themselves do. `assumed`: what the factory did not specify, as ends of
    sentences.
    """

    module: torch.nn.Module
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    target: Any
    loss: Callable[[Any, Any], torch.Tensor]
    autocast: tuple[str, str] | None = None
    scaler: dict[str, torch.Tensor] = field(default_factory=dict)
    fused_dropout: bool = False
    lowered: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def float_type(self) -> torch.dtype | None:
        """See `float_type`."""
        return float_type(self.module)

    def named_inputs(self) -> dict[str, torch.Tensor]:
        """Return every input and target tensor by name: `input:0`, `input:mask`, `input:0.mask` if it is in a collection, `target:0`."""
        items = [*enumerate(self.inputs), *self.keywords.items()]
        named = {name: tensor for key, item in items for name, tensor in tensors_of(item, f"input:{key}")}
        return named | {f"target:{i}": tensor for i, (_, tensor) in enumerate(tensors_of(self.target, "target"))}

    def replace_tensors(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace every parameter, buffer, input and target by `convert(tensor)`. A tensor that is used twice is converted once.

        A tensor that `convert` returns as it is stays the same object.

        `Module.to` is not enough: it cannot replace fake tensors.
        """
        # By id. The originals are retained too, because the id of a freed tensor may be used again.
        converted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def once(item: torch.Tensor) -> torch.Tensor:
            if id(item) not in converted:
                with torch.no_grad():
                    tensor = convert(item)
                if tensor is not item and isinstance(item, torch.nn.Parameter):
                    tensor = torch.nn.Parameter(tensor.detach(), item.requires_grad)
                converted[id(item)] = (item, tensor)
            return converted[id(item)][1]

        for module in self.module.modules():
            for tensors in _places(module):
                for name, tensor in tensors.items():
                    tensors[name] = None if tensor is None else once(tensor)
        self.inputs, self.keywords, self.target = (mapped(batch, once) for batch in (self.inputs, self.keywords, self.target))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Within the block the module may be trained or moved; at its end every tensor is restored, with its former value.

        This takes one copy of all tensors. Gradients are dropped.
        """
        places = [tensors for module in self.module.modules() for tensors in _places(module)]
        contents = [dict(tensors) for tensors in places]
        batch = self.inputs, self.keywords, self.target
        originals = {id(tensor): tensor for _, tensor in tensors_of([contents, batch], "")}
        copies = {key: tensor.detach().clone() for key, tensor in originals.items()}
        try:
            yield
        finally:
            for tensors, content in zip(places, contents, strict=True):
                tensors.clear()
                tensors.update(content)
            self.inputs, self.keywords, self.target = batch
            with torch.no_grad():
                for key, tensor in originals.items():
                    if not torch.equal(tensor, copies[key]):  # what only stayed in its place, such as inputs, is not written
                        tensor.copy_(copies[key])
                    tensor.grad = None

    def run(self) -> torch.Tensor:
        """Run the forward pass and return the loss. Raises MissingLossError for a loss that takes only tensors if the output is none."""
        precision = lowered(self.module, self.lowered) if self.lowered else nullcontext()
        with precision, nullcontext() if self.autocast is None else autocast(*self.autocast):
            output = self.module(*self.inputs, **self.keywords)
            if self.loss is default_loss and takes_probabilities(output, self.target):
                self.assumed = tuple(dict.fromkeys([*self.assumed, PROBABILITIES]))
            try:
                return self.loss(output, self.target)
            except (AttributeError, TypeError) as error:
                if isinstance(output, torch.Tensor):
                    raise
                raise unfit_loss(output, error) from error


# Requirements of a factory's result. Each check refuses, in one line, what a plan cannot compute as PyTorch does.


def check_module(name: str, module: torch.nn.Module) -> None:
    """Raise SchedcastError for modules compiled or in TorchScript, lazy, complex or hooked parameters, and sparse gradients."""
    for layer, child in module.named_modules():
        place = f"layer {layer!r} of {name}" if layer else f"the model of {name}"
        if isinstance(child, torch.jit.ScriptModule):
            raise SchedcastError(
                f"{place} is TorchScript, whose ops cannot be captured; expected the Python module; remove torch.jit.script and trace",
                Code.MODEL,
            )
        if hasattr(child, "_orig_mod") or getattr(child, "_compiled_call_impl", None) is not None:
            raise SchedcastError(
                f"{place} is compiled by torch.compile, which is not modeled; expected a plain module; remove it, or give its _orig_mod",
                Code.MODEL,
            )
        if getattr(child, "sparse", False) is True:
            raise SchedcastError(f"{place} has sparse gradients, which are not modeled; make it with sparse=False", Code.MODEL)
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise SchedcastError(f"the model of {name} has lazy parameters; expected parameters with shapes; run one forward first", Code.MODEL)
    for label, parameter in module.named_parameters():
        if parameter.is_complex():
            raise SchedcastError(
                f"parameter {label!r} of {name} is complex, which is not modeled; expected real parameters; use torch.view_as_complex in"
                " forward",
                Code.MODEL,
            )
    check_hooks(name, module)


def check_hooks(name: str, module: torch.nn.Module) -> None:
    """Raise SchedcastError for hooks on parameters and buffers: they are Python code that a plan would skip.

    Hooks on modules and on activations are fine: what they compute is captured.
    """
    for label, tensor in (*module.named_parameters(), *module.named_buffers()):
        for registered, attribute in (
            ("register_hook", "_backward_hooks"),
            ("register_post_accumulate_grad_hook", "_post_accumulate_grad_hooks"),
        ):
            if getattr(tensor, attribute, None):
                raise SchedcastError(
                    f"tensor {label!r} of {name} has a hook ({registered}), which a plan cannot run; expected none; put what it does into"
                    " the model's forward or the loss"
                )


def check_tensors(name: str, built: Built) -> None:
    """Raise SchedcastError for a parameter, buffer, input or target that is not a dense tensor on the CPU."""
    for label, tensor in _all_tensors(built):
        if tensor.is_nested:
            problem = "a nested tensor; expected a dense one; pad it"
        elif tensor.layout != torch.strided:
            problem = f"a sparse tensor ({tensor.layout}); expected a dense one; use to_dense()"
        elif tensor.is_quantized:
            problem = f"a quantized tensor ({tensor.dtype}); expected one of floats; use dequantize()"
        elif tensor.device.type != "cpu":
            problem = f"on the device {tensor.device}; expected the CPU; --device chooses where to run"
        else:
            continue
        raise SchedcastError(f"{label} of {name} is {problem}")


def _all_tensors(built: Built) -> Iterator[tuple[str, torch.Tensor]]:
    yield from built.named_inputs().items()
    for label, tensor in (*built.module.named_parameters(), *built.module.named_buffers()):
        yield f"tensor {label!r}", tensor


def check_batch(name: str, batch: int, inputs: Mapping[str, torch.Tensor], inputs_for: Callable[[int], Mapping[str, torch.Tensor]]) -> None:
    """Raise SchedcastError if no input or target grows with the batch.

    Most have the batch in dimension 0. If none has, it may be in dimension 1, or flattened together with another dimension: then
    `inputs_for(2 * batch)` shows whether any shape depends on it.
    """
    shapes = {label: tuple(tensor.shape) for label, tensor in inputs.items()}
    if not shapes or any(shape[:1] == (batch,) for shape in shapes.values()):
        return
    if any(extent and extent % batch == 0 for shape in shapes.values() for extent in shape[:2]) and _grow(shapes, 2 * batch, inputs_for):
        return
    shown = ", ".join(f"{label} {shape}" for label, shape in list(shapes.items())[:4])
    raise SchedcastError(
        f"the factory {name} made {shown} for batch size {batch}; expected that many samples in dimension 0; use its argument"
    )


def _grow(shapes: Mapping[str, tuple[int, ...]], batch: int, inputs_for: Callable[[int], Mapping[str, torch.Tensor]]) -> bool:
    """Whether any shape differs for `batch` samples. If the factory fails for that many, it does use the batch size."""
    try:
        with torch.random.fork_rng(devices=()):
            others = inputs_for(batch)
    except SchedcastError:
        return True
    return {label: tuple(tensor.shape) for label, tensor in others.items()} != shapes


class CountedCalls(TorchFunctionMode):
    """A context that counts the calls of PyTorch's functions in `count`."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Count a call and make it."""
        self.count += 1
        return func(*args, **(kwargs or {}))
