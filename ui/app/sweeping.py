"""Sweeps of the app: the parameters that a request has, and the outcomes of one point. This module does not import Streamlit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import get_args

from simulator.predict.sweep import Axis, Outcome, outcome
from simulator.strategies import registry as strategies
from traces.errors import StepcastError
from traces.profile_files import list_profiles
from ui.app.model import Predictor, Refusal, Request

#: Points of a sweep at most.
MOST_POINTS = 144
#: Predicted points that are kept.
KEPT = 2048
#: The machine whose groups of cores have links of a chosen bandwidth.
_THIS_CPU = "this-cpu"


@dataclass(frozen=True)
class Parameter:
    """A parameter of requests. `change`: a request with another value of it. `whole`: whether its values are whole numbers.

    `usual`: values to begin with.
    """

    name: str
    change: Callable[[Request, float], Request]
    usual: tuple[float, ...]
    whole: bool = True


def parameters(request: Request) -> list[Parameter]:
    """The parameters that a sweep of a request can have: those of the job and the machine, and its strategies' options that are numbers."""
    batches = tuple(request.batch * factor / 4 for factor in (1, 2, 4, 8, 16) if request.batch * factor % 4 == 0)
    own = [
        Parameter("batch", partial(_field, "batch"), batches),
        Parameter("devices", partial(_field, "devices"), (1, 2, 4)),
        Parameter("parts of one GPU", partial(_field, "partition"), (1, 2, 4)),
    ]
    if request.machine == _THIS_CPU:
        own.append(Parameter("link GB/s", _link, (0.25, 0.5, 1, 2, 4), whole=False))
    return own + [Parameter(name, partial(_option, name), usual, whole) for name, usual, whole in _numeric_options(request.strategies)]


def _field(name: str, request: Request, value: float) -> Request:
    return replace(request, **{name: int(value)})


def _link(request: Request, value: float) -> Request:
    return replace(request, link=f"copy:{value:g}")


def _option(name: str, request: Request, value: float) -> Request:
    return replace(request, settings=tuple(({**dict(request.settings), name: f"{value:g}"}).items()))


def _numeric_options(names: Sequence[str]) -> list[tuple[str, tuple[float, ...], bool]]:
    """(name, usual values, whether they are whole numbers) of the options of these strategies that are numbers."""
    options: dict[str, type] = {}
    for strategy in map(strategies.get, names):
        for name, field in zip(strategy.option_names, fields(strategy.options_type), strict=True):
            number = next((kind for kind in (int, float) if kind in _types(field.type)), None)
            if number is not None:
                options.setdefault(name, number)
    return [(name, (1, 2, 4, 8) if number is int else (0.5, 1.0, 2.0), number is int) for name, number in options.items()]


def _types(annotation: object) -> set[object]:
    """The types that a field's annotation is made of."""
    return {annotation}.union(*map(_types, get_args(annotation)))


def parse_values(text: str, parameter: Parameter) -> tuple[float, ...]:
    """Read "8, 16, 32" as the values of a parameter, from small to large. Raises StepcastError for anything else."""
    values = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not (0 <= value < 1e15 and (value > 0 or not parameter.whole) and (value.is_integer() or not parameter.whole)):
            kind = "whole numbers of at least 1" if parameter.whole else "numbers"
            raise StepcastError(f"cannot read {part[:40]!r} as a value of {parameter.name}; expected {kind}, several separated by commas")
        values.add(value)
    if not values:
        raise StepcastError(f"{parameter.name} has no values; write some, separated by commas, such as 8, 16, 32")
    return tuple(sorted(values))


def check_points(axes: Sequence[Axis]) -> None:
    """Raise StepcastError if a sweep has too many points."""
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        raise StepcastError(f"the sweep has {count} points; the app predicts at most {MOST_POINTS}; leave out some values")


def outcomes_at(predictor: Predictor, request: Request, changed: Sequence[Parameter], at: tuple[float, ...]) -> list[Outcome]:
    """The outcomes of a request with the parameters at the values `at`, one per strategy. A point that is refused says why for each."""
    for parameter, value in zip(changed, at, strict=True):
        request = parameter.change(request, value)
    return [replace(each, at=at) for each in _outcomes(predictor, request, costs_stamp())]


@lru_cache(maxsize=KEPT)
def _outcomes(predictor: Predictor, request: Request, stamp: tuple) -> tuple[Outcome, ...]:
    """The outcomes of one request. They are kept by its content, as long as no profile changes, which `stamp` shows."""
    try:
        answers = predictor.predict_many(request)
    except StepcastError as error:
        return tuple(Outcome(name, why=str(error)) for name in request.strategies)
    return tuple(
        Outcome(answer.strategy, why=answer.why)
        if isinstance(answer, Refusal)
        else outcome(answer.prediction.strategy, (), answer.prediction)
        for answer in answers
    )


def costs_stamp() -> tuple[tuple[str, int, int], ...]:
    """What changes whenever a profile in the data folder does: names, times and sizes of the files."""
    return tuple((path.name, stat.st_mtime_ns, stat.st_size) for path in list_profiles() if (stat := path.stat()))
