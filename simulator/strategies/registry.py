"""Strategies turn a job into a plan. Each is one module here, discovered by its `NAME`.

A strategy module offers `NAME`, `ABOUT` (one line), a frozen dataclass `Options`, and `plan(job, machine, costs, options) -> Plan`. One
whose plan depends on the costs says `USES_COSTS = True`: its keys are measured before it plans for good. One that puts several methods
together names the options that add one after another in `METHODS`: reports compare them. One that needs several devices says how many
at least in `LEAST_DEVICES`.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise

from pydantic import TypeAdapter, ValidationError

from simulator.discovery import modules
from simulator.options import option_names
from simulator.plan.plan import Plan
from traces.errors import StepcastError, UnknownNameError


@dataclass(frozen=True)
class Strategy:
    """A discovered strategy."""

    name: str
    about: str
    options_type: type
    plan: Callable[..., Plan]
    uses_costs: bool = False
    methods: tuple[str, ...] = ()
    least_devices: int = 1

    @property
    def steps(self) -> tuple[str, ...]:
        """`NAME:option=value,...` of `methods`: each adds one method to the one before."""
        return tuple(f"{self.name}:{options}" for options in self.methods)

    @property
    def option_names(self) -> tuple[str, ...]:
        """Names of its options."""
        return option_names(self.options_type)

    def option_docs(self) -> list[tuple[str, str, object]]:
        """(name, what it does, default) of each option, from the docstrings below the fields."""
        body = ast.parse(textwrap.dedent(inspect.getsource(self.options_type))).body[0].body
        docs = {
            field.target.id: " ".join(text.value.value.split())
            for field, text in pairwise(body)
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        }
        return [(name, docs.get(f.name, ""), f.default) for name, f in zip(self.option_names, fields(self.options_type), strict=True)]

    def options(self, given: Mapping[str, str] | None = None) -> object:
        """Options from texts, defaults filled in. Raises StepcastError for an unknown option or a value of the wrong kind."""
        given = dict(given or {})
        for name in given:
            if name not in self.option_names:
                raise UnknownNameError(f"option of strategy {self.name}", name, self.option_names)
        fields_of = dict(zip(self.option_names, (f.name for f in fields(self.options_type)), strict=True))
        try:
            return TypeAdapter(self.options_type).validate_python({fields_of[name]: value for name, value in given.items()})
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]).removesuffix("_")
            expected = " or ".join(found["msg"] for found in error.errors() if found["loc"][0] == first["loc"][0])
            raise StepcastError(f"strategy {self.name}: option {name}={first['input']!r}: {expected}; see stepcast strategies") from error


@cache
def _discover() -> dict[str, Strategy]:
    found = {}
    for loaded in modules(__package__):
        if not hasattr(loaded, "NAME"):
            continue
        more = getattr(loaded, "USES_COSTS", False), getattr(loaded, "METHODS", ()), getattr(loaded, "LEAST_DEVICES", 1)
        found[loaded.NAME] = Strategy(loaded.NAME, loaded.ABOUT, loaded.Options, loaded.plan, *more)
    return dict(sorted(found.items(), key=lambda item: (item[0] != "baseline", item[0])))


def names(devices: int | None = None) -> list[str]:
    """Every strategy's name, baseline first; with `devices`, of those that can use so many."""
    return [name for name, strategy in _discover().items() if devices is None or strategy.least_devices <= devices]


def get(name: str) -> Strategy:
    """The strategy called `name`. Raises UnknownNameError."""
    try:
        return _discover()[name]
    except KeyError:
        raise UnknownNameError("strategy", name, names(), "stepcast strategies lists them") from None


def parse(text: str, shared: Mapping[str, str] | None = None) -> tuple[Strategy, object]:
    """`NAME[:option=value,...]` with the options of `shared` that the strategy has, as strategy and options."""
    name, _, tail = text.partition(":")
    strategy = get(name)
    given = {k: v for k, v in (shared or {}).items() if k in strategy.option_names}
    for part in filter(None, tail.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise StepcastError(f"option {part!r} of strategy {name} has no value; expected option=value; see stepcast strategies")
        given[key.strip()] = value.strip()
    return strategy, strategy.options(given)


def check_shared(requested: Sequence[str], shared: Mapping[str, str]) -> None:
    """Raise StepcastError for an option of `shared` that no requested strategy (`NAME[:option=value,...]`) has."""
    offered = {name for text in requested for name in get(text.partition(":")[0]).option_names}
    for name in shared:
        if name not in offered:
            raise UnknownNameError("option for --set", name, sorted(offered), "stepcast strategies lists each strategy's options")
