"""A request as a command line and as the query of a link. Both name the same options, and leave out what is as usual."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ui.app.model import Request, stored_profiles

#: Options of a request by the name of its field, in the order to show them. The form is a part of the optimizer's option.
_OPTIONS = {
    "model": "model", "batch": "batch", "image_size": "image-size", "optimizer": "optimizer", "precision": "precision", "layout": "layout",
    "accumulate": "accumulate", "clip_norm": "clip-norm", "machine": "machine", "devices": "devices", "link": "link",
    "partition": "partition", "mode": "mode", "memory_limit_gb": "memory-limit", "scale": "scale", "settings": "set",
    "strategies": "strategy",
}  # fmt: skip
_USUAL = {field.name: field.default for field in fields(Request)}
#: Options that are named even where they are as usual: these defaults are the command line's own choice.
_ALWAYS = ("model", "batch", "machine", "strategies")
#: The names of all options.
OPTIONS = tuple(_OPTIONS.values())
#: How the text of an option becomes its value; others stay texts.
_READ: Mapping[str, Callable[[str], Any]] = {
    "batch": int, "image_size": int, "accumulate": int, "devices": int, "partition": int, "clip_norm": float, "memory_limit_gb": float,
}  # fmt: skip


def options_of(request: Request) -> list[tuple[str, str]]:
    """(option, value) pairs of a request; those that are as usual are left out."""
    pairs = []
    for field, option in _OPTIONS.items():
        value = getattr(request, field)
        if field == "strategies":
            pairs += [(option, text) for text in value]
        elif field == "settings":
            pairs += [(option, f"{name}={setting}") for name, setting in value]
        elif field == "optimizer":
            usual = (value, request.form) == (_USUAL["optimizer"], _USUAL["form"])
            pairs += [] if usual else [(option, f"{value}:{request.form}")]
        elif field in _ALWAYS or value != _USUAL[field]:
            pairs.append((option, f"{value:g}" if isinstance(value, float) else str(value)))
    return pairs


def command(request: Request, *more: str, name: str = "predict") -> str:
    """The command line that gives the same answers: stepcast predict --model resnet50 ... `name`: the command's."""
    return shlex.join(["stepcast", *arguments(request, *more, name=name)])


def arguments(request: Request, *more: str, name: str = "predict") -> list[str]:
    """The arguments of that command line, the command's name first."""
    profile = stored_profiles().get(request.machine)
    words = []
    for option, value in options_of(request):
        words += ["--profile", str(profile)] if option == "machine" and profile is not None else [f"--{option}", value]
    return [name, *words, *more]


def query_of(request: Request) -> dict[str, list[str]]:
    """The query of a link that reproduces the page."""
    query: dict[str, list[str]] = {}
    for option, value in options_of(request):
        query.setdefault(option, []).append(value)
    return query


def request_fields(query: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The fields of a request that a query names. Unknown names and values that cannot be read are left out: links come from anywhere."""
    given: dict[str, Any] = {}
    for field, option in _OPTIONS.items():
        texts = [text for text in query.get(option, ()) if text]
        if field == "strategies" and texts:
            given[field] = tuple(dict.fromkeys(texts))
        elif field == "settings":
            pairs = [text.partition("=") for text in texts]
            given |= {field: tuple((name, setting) for name, _, setting in pairs if name and setting)} if pairs else {}
        elif field == "optimizer" and texts:
            given["optimizer"], _, form = texts[-1].partition(":")
            given["form"] = form or _USUAL["form"]
        elif texts:
            try:
                value = _READ.get(field, str)(texts[-1])
            except ValueError:
                continue
            if not isinstance(value, float) or math.isfinite(value):
                given[field] = value
    return given
