"""Arguments that users give in Python: of the expected type, or refused in one line."""

import inspect
import types
from collections.abc import Callable, Sequence
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

from traces.errors import SchedcastError

_P = ParamSpec("_P")
_R = TypeVar("_R")
#: What types are called in a refusal.
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", Path: "a path", type(None): "None"}
_SHOWN = 60


def typed(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function that refuses arguments of other types than its signature has. Missing types and `Any` are not checked."""
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise SchedcastError(f"{function.__name__}: {error}; see help({function.__name__})") from error
        for name, value in given.items():
            parameter = signature.parameters[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                for each in value:
                    check_type(f"{function.__name__}(...)", each, parameter.annotation)
            elif parameter.kind is not parameter.VAR_KEYWORD:
                check_type(f"{function.__name__}({name}=...)", value, parameter.annotation)
        return function(*args, **kwargs)

    return checked


def check_type(what: str, value: Any, kind: Any) -> None:
    """Raise SchedcastError if `value` is not of the type `kind`, as annotations write it. `what`: what was given, for the message."""
    if not _fits(value, kind):
        shown = " ".join(repr(value).split())
        shown = f"{shown[:_SHOWN]}..." if len(shown) > _SHOWN else shown
        raise SchedcastError(f"{what} is {shown}, of type {type(value).__name__}; expected {_words(kind)}")


def _fits(value: Any, kind: Any) -> bool:
    if kind in (Any, inspect.Parameter.empty):
        return True
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(kind))
    if origin is Sequence:
        return isinstance(value, list | tuple) and all(_fits(each, get_args(kind)[0]) for each in value)
    if origin is not None:
        return callable(value) if origin is Callable else isinstance(value, origin)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return not isinstance(kind, type) or isinstance(value, kind)


def _words(kind: Any) -> str:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, get_args(kind)))
    if origin is Sequence:
        return f"a list, each {_words(get_args(kind)[0])}"
    return "a function" if origin is Callable else _WORDS.get(kind, getattr(kind, "__name__", str(kind)))
