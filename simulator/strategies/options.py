"""Names and values of a strategy's options, which are a frozen dataclass; and what they imply without a plan.

A field whose name is reserved in Python ends in an underscore (`async_`); users see the name without it.
"""

from dataclasses import Field, asdict, fields
from typing import Any, ClassVar, NamedTuple, Protocol

from simulator.model.division.divide import UNDIVIDED, Division


class AnyOptions(Protocol):
    """The options of one strategy or another: an instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def option_names(options_type: type[AnyOptions]) -> tuple[str, ...]:
    """Return the names of the options as users write them."""
    return tuple(field.name.removesuffix("_") for field in fields(options_type))


def option_values(options: AnyOptions) -> dict[str, object]:
    """Return the values of the options by the names that users write."""
    return {name.removesuffix("_"): value for name, value in asdict(options).items()}


class Portion(NamedTuple):
    """Lower bounds of one device's work and memory, known before there is a plan.

    Each of `replicas` works on `microbatches` of a step, whose ops devices divide by `division`. They pass `stages`, cut before the units
    `cuts` (none: where predicted times balance or, if `even`, numbers of blocks). `held`: the share of its stage's parameters, with their
    optimizer state, that a device stores. `keeps`: whether activations are saved from a microbatch's forward to its backward; `gathers`:
    whether parameters, once gathered, stay gathered until the last microbatch's backward; `sums`: whether a device adds up whole gradients
    of its microbatches.
    """

    replicas: int
    microbatches: int
    held: float
    division: Division = UNDIVIDED
    stages: int = 1
    cuts: tuple[int, ...] = ()
    even: bool = False
    keeps: bool = True
    gathers: bool = False
    sums: bool = False
