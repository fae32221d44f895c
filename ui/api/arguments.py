"""What users write in Python: other names and values of arguments, what they mean, and refusals in Python's words.

Imports nothing heavy, as `schedcast` itself.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from traces.arguments import check_type, typed
from traces.errors import Code, SchedcastError, UnknownNameError

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: By what others call an argument of `predict`, its name here.
SYNONYMS: Mapping[str, str] = MappingProxyType({
    "machine": "on", "gpu": "on", "device": "on", "batch_size": "batch", "criterion": "loss", "loss_fn": "loss", "strategies": "strategy",
    "gradient_accumulation_steps": "accumulate", "accumulation_steps": "accumulate", "grad_accum": "accumulate",
    "max_grad_norm": "clip_norm", "clip_grad_norm": "clip_norm", "gradient_clip_val": "clip_norm",
    "seq_len": "seq", "seq_length": "seq", "sequence_length": "seq", "max_length": "seq", "learning_rate": "lr",
    "dtype": "precision", "amp": "precision", "autocast": "precision", "mixed_precision": "precision",
    "gradient_checkpointing": "checkpoint", "activation_checkpointing": "checkpoint", "num_devices": "devices", "num_gpus": "devices",
})  # fmt: skip
#: What others call a precision.
_PRECISIONS = {
    "bfloat16": "bf16", "float32": "fp32", "float": "fp32", "float64": "fp64", "double": "fp64", "true": "amp", "false": "default",
    "bf16-mixed": "amp", "16-mixed": "amp-fp16",
}  # fmt: skip
_HALF = ("fp16", "float16", "half")
#: Losses by the names of functions and classes of torch.nn, without underscores: the function.
_LOSSES = {
    "crossentropy": "cross_entropy", "ce": "cross_entropy", "mse": "mse_loss", "l1": "l1_loss", "mae": "l1_loss", "nll": "nll_loss",
    "smoothl1": "smooth_l1_loss", "huber": "huber_loss", "bcewithlogits": "binary_cross_entropy_with_logits",
    "binarycrossentropywithlogits": "binary_cross_entropy_with_logits", "kldiv": "kl_div",
}  # fmt: skip


def asked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function of Python's door: it refuses arguments of other types than its signature has, and in Python's words."""
    checked = typed(function)

    @wraps(function)
    def answering(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return checked(*args, **kwargs)
        except SchedcastError as error:
            error.args = (in_python(str(error)), *error.args[1:])
            raise

    return answering


#: An option of the command line with its value, if one follows; words that are no values; and a command, whose options stay.
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)(?: ('[^']*'|[\w.:/,=-]*[\w]))?")
_WORDS = frozenset({
    "is", "are", "was", "needs", "need", "takes", "take", "or", "and", "both", "must", "names", "name", "applies", "splits", "joins", "has",
    "have", "had", "to", "in", "on", "at", "of", "with", "runs", "gives", "as", "a", "the", "also", "already", "by", "for", "from", "says",
    "can", "cannot", "not", "than", "would",
})  # fmt: skip
_COMMAND = re.compile(r"schedcast (?:predict|calibrate|validate|run|search|demo|strategies|machines|models|profiles)[^;,.]*")
#: By the name of an option, that of the argument.
_ARGUMENTS = {"machine": "on", "image-size": "image_size", "profile": "on"}


def in_python(text: str) -> str:
    """A sentence about options of the command line, about arguments. Commands that it names stay as they are.

    >>> in_python("--batch 3 is not divisible by --accumulate 2; this would fit with --checkpoint full")
    'batch=3 is not divisible by accumulate=2; this would fit with checkpoint="full"'
    >>> in_python("autocast to bf16 (--precision); schedcast calibrate --device cuda makes one")
    'autocast to bf16 (precision=); schedcast calibrate --device cuda makes one'
    """
    parts, end = [], 0
    for command in _COMMAND.finditer(text):
        parts += [_OPTION.sub(_argument, text[end : command.start()]), command[0]]
        end = command.end()
    return "".join([*parts, _OPTION.sub(_argument, text[end:])])


def _argument(option: re.Match[str]) -> str:
    name, value = option[1], option[2]
    argument = _ARGUMENTS.get(name, name.replace("-", "_"))
    if name == "set":
        return "an option in strategy="
    if value is None:
        return f"{argument}="
    if value in _WORDS:
        return f"{argument} {value}"
    plain = value.strip("'")
    return f"{argument}={plain}" if re.fullmatch(r"-?[\d.]+", plain) else f'{argument}="{plain}"'


def renamed(own: Mapping[str, Any], others: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that a function has, and the others, with those that users call differently under their names here.

    Raises SchedcastError for an argument that is given under two names.
    """
    named: dict[str, Any] = dict(own)
    rest: dict[str, Any] = {}
    for name, value in others.items():
        meant = SYNONYMS.get(name, name)
        place = named if meant in own else rest
        if place.get(meant) is not None and value is not None:
            raise SchedcastError(f"{name}= and {meant}= mean the same; give one of the two")
        place[meant] = value if name not in ("gradient_checkpointing", "activation_checkpointing") else _checkpoint(value)
    return named, rest


def machine_of(on: Any) -> str | Path | None:
    """The machine of `on`: a name, a path, or a device of PyTorch."""
    if on is None or isinstance(on, str | Path):
        return on
    if type(on).__name__ == "device":
        return str(on)
    check_type("on=", on, str | Path | None)
    raise TypeError(on)


def strategies_of(given: Any) -> tuple[str, ...]:
    """The strategies of one text, or of several."""
    texts = [given] if isinstance(given, str) else [] if given is None else given
    check_type("strategy=", texts, Sequence[str])
    return tuple(texts)


def loss_of(given: Any) -> Any:
    """The function of a loss: itself, or one of PyTorch's by its name or class. Raises SchedcastError for another."""
    if isinstance(given, type):
        return given()
    if given is None or callable(given):
        return given
    check_type("loss=", given, str | None)
    from torch.nn import functional

    letters = re.sub(r"[^a-z0-9]", "", given.lower())
    name = _LOSSES.get(letters.removesuffix("loss")) or _LOSSES.get(letters)
    if name is None:
        known = ("cross_entropy", "mse", "l1", "smooth_l1", "huber", "nll", "bce_with_logits", "kl_div")
        raise UnknownNameError("loss", given, known, "or give a function, loss=lambda output, target: ...")
    return getattr(functional, name)


def job_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a job, with precisions, checkpointing and the optimizer's name as they are called here."""
    values = dict(given)
    if "precision" in values and values["precision"] is not None:
        text = str(values["precision"]).removeprefix("torch.").lower()
        if text in _HALF:
            raise SchedcastError(f'precision={text}: training in fp16 alone is not modeled; autocast to fp16 is precision="amp-fp16"')
        values["precision"] = _PRECISIONS.get(text, text)
    if isinstance(values.get("checkpoint"), bool):
        values["checkpoint"] = _checkpoint(values["checkpoint"])
    return values


def _checkpoint(given: Any) -> Any:
    return {True: "full", False: "none"}[given] if isinstance(given, bool) else given


def batch_of(batch: Any) -> Any:
    """A module's batch: tensors, and arrays as tensors. Raises SchedcastError, which says what to give, for anything without tensors."""
    import torch

    example = "as in predict(model, (torch.randn(32, 64), torch.randint(10, (32,))))"
    if batch is None or isinstance(batch, int | float):
        given = "without a batch" if batch is None else f"with batch={batch}"
        raise SchedcastError(f"a module {given}: expected its tensors, {example}; a number is for models by name", Code.MODEL)
    if isinstance(batch, torch.utils.data.DataLoader) or hasattr(batch, "__next__"):
        what = "next(loader)" if hasattr(batch, "__next__") else "next(iter(loader))"
        raise SchedcastError(f"the batch is a {type(batch).__name__}, which gives batches; give one of them: {what}", Code.MODEL)
    if isinstance(batch, torch.utils.data.Dataset):
        example = "next(iter(DataLoader(dataset, 32)))"
        raise SchedcastError(f"the batch is a Dataset, which gives samples; give a batch of them: {example}", Code.MODEL)
    if isinstance(batch, tuple | list) and batch and all(isinstance(each, int) for each in batch):
        raise SchedcastError(f"the batch is {tuple(batch)}, a shape; expected its tensors, {example}", Code.MODEL)
    return _as_tensors(batch)


def _as_tensors(value: Any) -> Any:
    """Arrays of numpy as tensors; anything else as it is."""
    import torch

    if type(value).__module__ == "numpy" and hasattr(value, "__array__"):
        return torch.as_tensor(value)
    return type(value)(map(_as_tensors, value)) if type(value) in (tuple, list) else value


def step_of(step: Any) -> Any:
    """A user's step, if it takes the model and the batch. Raises SchedcastError, which says what to write, for another one."""
    if step is None:
        return None
    if not callable(step):
        check_type("step=", step, Callable[..., Any] | None)
    import inspect

    try:
        inspect.signature(step).bind(None, None)
    except TypeError as error:
        words = "expected one that takes the model and a batch, and returns the loss: def step(model, batch)"
        raise SchedcastError(f"step: {error}; {words}") from error
    except ValueError:
        return step  # compiled code has no signature
    return step
