"""What a factory must return to be trained by a plan. Each check refuses, in one line, what a plan cannot compute as PyTorch does."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch.nn.parameter import is_lazy

from simulator.model.built import Built
from traces.errors import SchedcastError


def check_module(name: str, module: torch.nn.Module) -> None:
    """Raise SchedcastError for compiled modules, lazy, complex or hooked parameters, and sparse gradients."""
    for layer, child in module.named_modules():
        place = f"layer {layer!r} of {name}" if layer else f"the model of {name}"
        if hasattr(child, "_orig_mod") or getattr(child, "_compiled_call_impl", None) is not None:
            raise SchedcastError(f"{place} is compiled by torch.compile, which is not modelled; expected a plain module; leave compile out")
        if getattr(child, "sparse", False) is True:
            raise SchedcastError(f"{place} has sparse gradients, which are not modelled; make it with sparse=False")
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise SchedcastError(f"the model of {name} has lazy parameters; expected parameters with shapes; run one forward in the factory")
    for label, parameter in module.named_parameters():
        if parameter.is_complex():
            raise SchedcastError(
                f"parameter {label!r} of {name} is complex, which is not modelled; expected real parameters; use torch.view_as_complex in"
                " forward"
            )
    check_hooks(name, module)


def check_hooks(name: str, module: torch.nn.Module) -> None:
    """Raise SchedcastError for hooks on parameters and buffers: they are Python code that a plan would leave out.

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
    """Whether any shape is another for `batch` samples. If the factory fails for that many, it heeds them."""
    try:
        with torch.random.fork_rng(devices=()):
            others = inputs_for(batch)
    except SchedcastError:
        return True
    return {label: tuple(tensor.shape) for label, tensor in others.items()} != shapes
