"""The numeric kernels of `simulator.plan.bodies.update`: those of torch.optim, called through its functional interface.

Every optimizer's state exists before the first step, and its step count is a float32 tensor on the parameter's device. On CUDA updates run
in their capturable form, which a CUDA graph can replay.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim.adadelta import adadelta
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from executors.binding import Binding, Instance, same_strides, with_strides
from simulator.plan.bodies.update import STATE, Update, check_form, hyper_parameters
from simulator.plan.task import Task
from traces.errors import SchedcastError

#: Add to many tensors, and multiply them into new ones, in one launch. They are the only private PyTorch functions used here.
_add_to_all, _times = torch._foreach_add_, torch._foreach_mul

_CAPTURABLE = frozenset({"rmsprop", "adadelta", "adam", "adamw"})  # the optimizers that have the argument `capturable`

_OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "nesterov": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adadelta": torch.optim.Adadelta,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def _adagrad(
    parameters: list[Tensor], grads: list[Tensor], sums: list[Tensor], steps: list[Tensor], capturable: bool = False, **options: Any
) -> None:
    """Adagrad for CUDA graphs: passes host counts to torch.optim and counts the steps here.

    Without learning-rate decay Adagrad does not use the step count, but all its forms except "fused" read it on the host.
    """
    if options["fused"] or not capturable:
        adagrad(parameters, grads, sums, steps, **options)
    else:
        adagrad(parameters, grads, sums, [torch.zeros(()) for _ in steps], **options)
        if options["foreach"]:
            _add_to_all(steps, 1)
        else:  # one launch per count, as in the for-loop forms of the other optimizers
            for step in steps:
                step.add_(1)


def _nesterov(parameters: list[Tensor], grads: list[Tensor], buffers: list[Tensor | None], **options: Any) -> None:
    """SGD with Nesterov's momentum. Without weight decay, torch.optim's foreach form adds the momentum to the gradients themselves."""
    changed = options["foreach"] and not options["weight_decay"]
    sgd(parameters, list(_times(grads, 1.0)) if changed else grads, buffers, **options)


_KERNELS: dict[str, Callable] = {
    "sgd": lambda parameters, grads, **options: sgd(parameters, grads, [None] * len(parameters), **options),
    "momentum": sgd,
    "nesterov": _nesterov,
    "adagrad": _adagrad,
    "rmsprop": lambda parameters, grads, squares, steps, **options: rmsprop(parameters, grads, squares, [], [], steps, **options),
    "adadelta": adadelta,
    "adam": lambda parameters, grads, means, squares, steps, **options: adam(parameters, grads, means, squares, [], steps, **options),
    "adamw": lambda parameters, grads, means, squares, steps, **options: adamw(parameters, grads, means, squares, [], steps, **options),
}

#: Required arguments of torch.optim's functions that always have torch.optim's default values here.
_FIXED: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False},
    "momentum": {"dampening": 0.0, "nesterov": False, "maximize": False},
    "nesterov": {"dampening": 0.0, "nesterov": True, "maximize": False},
    "adagrad": {"lr_decay": 0.0, "maximize": False},
    "rmsprop": {"momentum": 0.0, "centered": False, "maximize": False},
    "adadelta": {"maximize": False},
    "adam": {"amsgrad": False, "maximize": False},
    "adamw": {"amsgrad": False, "maximize": False},
}


def _form_options(optimizer: str, form: str, capturable: bool) -> dict[str, bool]:
    check_form(optimizer, form)
    options = {"foreach": form == "foreach"}
    if optimizer not in ("rmsprop", "adadelta"):
        options["fused"] = form == "fused"
    if optimizer in _CAPTURABLE:
        options["capturable"] = capturable
    return options


@cache
def _options(optimizer: str, form: str, hyper: tuple[tuple[str, float], ...], capturable: bool) -> dict[str, Any]:
    options = {**_FIXED[optimizer], **dict(hyper_parameters(optimizer, **dict(hyper))), **_form_options(optimizer, form, capturable)}
    return {**options, "capturable": capturable} if optimizer == "adagrad" else options


def apply_update(
    body: Update,
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    capturable: bool = False,
    iteration: int = 0,
    overflow: Tensor | None = None,
) -> None:
    """Update parameters and state in place, at the learning rate of `iteration`.

    `grads` and `tensors`: the task's reads and mutates, in the order that `Update` documents, all on one device. Gradients are not
    changed; those listed by `misplaced` must have been copied before. `capturable`: use the form that a CUDA graph can replay.
    `overflow`: a scalar; if it is 1, nothing is updated. The fused forms read it on the device, the others on the host, as PyTorch's do.
    """
    if overflow is not None and body.form != "fused" and overflow.item() == 1.0:
        return
    width = 1 + len(STATE[body.optimizer])
    operands = [list(tensors[position::width]) for position in range(width)]
    options = _options(body.optimizer, body.form, body.hyper_at(iteration), capturable)
    on_device = {"found_inf": overflow} if overflow is not None and body.form == "fused" else {}
    with torch.no_grad():
        _KERNELS[body.optimizer](operands[0], list(grads), *operands[1:], **options, **on_device)


def misplaced(body: Update, grads: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[int]:
    """The gradients, by position, that must be copied to their parameter's strides before the update.

    Fused kernels walk over memory: on CUDA they refuse other strides, on the CPU they add the wrong elements. Foreach kernels fall back to
    one kernel per parameter. Autograd never shows them such a gradient, because it copies the gradient to the parameter's strides when it
    stores it (torch/csrc/autograd/utils/grad_layout_contract.h), and the executors must not, either: a convolution's weight gradient comes
    in cuDNN's choice of layout.
    """
    if body.form == "for":
        return []
    parameters = tensors[:: 1 + len(STATE[body.optimizer])]
    return [i for i, (g, p) in enumerate(zip(grads, parameters, strict=True)) if not same_strides(g, p.stride())]


def compile_update(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that applies the task's update. Parameters and state are carried tensors; gradients come from the instance."""
    body, capturable = task.body, binding.forms.capturable and task.body.capturable
    check_form(body.optimizer, body.form)
    if body.may_skip and binding.forms.cuda and body.form != "fused":
        raise SchedcastError(
            f"on a GPU, the {body.form} form of {body.optimizer} decides on the host whether a step with a gradient scaler is skipped;"
            " expected a form that decides on the GPU; use a fused one such as adam:fused, or --precision amp"
        )
    gradients = [binding.getter(operand) for operand in body.gradients(task)]
    get_overflow = binding.getter(task.reads[-1]) if body.may_skip else None
    tensors = [binding.getter(operand) for operand in task.mutates]
    width = 1 + len(STATE[body.optimizer])
    copied: list[int] | None = None  # known after the first call: an op's strides do not change between calls

    own_count = binding.forms.cuda and not body.capturable and body.form != "fused"
    counts = _host_counts(body) if own_count else {}

    def run(instance: Instance) -> None:
        nonlocal copied
        grads = [get(instance) for get in gradients]
        operands = [counts[position] if position in counts else get(instance) for position, get in enumerate(tensors)]
        if copied is None:
            copied = misplaced(body, grads, operands)
        for i in copied:
            grads[i] = with_strides(grads[i], operands[i * width].stride())
        apply_update(body, grads, operands, capturable, instance.iteration, get_overflow and get_overflow(instance))

    return run


def _host_counts(body: Update) -> dict[int, Tensor]:
    """Step counts on the host, as PyTorch's own loop keeps them, by position among the update's mutates."""
    names = STATE[body.optimizer]
    width = 1 + len(names)
    places = (p * width + 1 + names.index("step") for p in range(len(body.parameters)) if "step" in names)
    return {place: torch.ones((), dtype=torch.float32, device="cpu") for place in places}


def initial_state(optimizer: str, parameter: Tensor) -> dict[str, Tensor]:
    """The state before the first step, in the order of `STATE[optimizer]`: zeros in the parameter's layout, and the step count."""
    detached = parameter.detach()
    return {
        name: torch.zeros((), dtype=torch.float32, device=parameter.device) if name == "step" else torch.zeros_like(detached)
        for name in STATE[optimizer]
    }


def torch_optimizer(
    optimizer: str, form: str, parameters: Iterable[Tensor], hyper: Sequence[tuple[str, float]] = (), capturable: bool = False
) -> torch.optim.Optimizer:
    """The torch.optim optimizer that computes the same as `apply_update`, for a plain training loop over `parameters`.

    `capturable`: use the form that a CUDA graph can replay, which rounds the bias corrections differently. The default is PyTorch's.
    """
    parameters = list(parameters)
    arguments: dict = dict(hyper_parameters(optimizer, **dict(hyper)))
    if "beta1" in arguments:
        arguments["betas"] = (arguments.pop("beta1"), arguments.pop("beta2"))
    if optimizer == "nesterov":
        arguments["nesterov"] = True
    return _OPTIMIZERS[optimizer](parameters, **arguments, **_form_options(optimizer, form, capturable))


def state_dict(
    optimizer: str,
    form: str,
    parameters: Sequence[Tensor],
    states: Sequence[Mapping[str, Tensor]],
    hyper: Sequence[tuple[str, float]] = (),
) -> dict:
    """The state_dict of `torch_optimizer(...)`, with copies of `states` (one mapping per parameter, in the same order)."""
    plain = torch_optimizer(optimizer, form, parameters, hyper)
    exported = plain.state_dict()
    exported["state"] = {
        index: {name: tensor.detach().clone() for name, tensor in state.items()}
        for index, state in enumerate(states)
        if state  # torch.optim has no entry for a parameter without state
    }
    if form != "fused" and optimizer not in _CAPTURABLE:
        for state in exported["state"].values():
            if "step" in state:
                state["step"] = state["step"].cpu()  # torch.optim stores this count in host memory
    return exported


HANDLERS = {"update": compile_update}
