"""Names and values of a strategy's options, which are a frozen dataclass.

A field whose name is reserved in Python ends in an underscore (`async_`); users see the name without it.
"""

from dataclasses import Field, asdict, fields
from typing import Any, ClassVar, Protocol


class AnyOptions(Protocol):
    """The options of one strategy or another: an instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def option_names(options_type: type[AnyOptions]) -> tuple[str, ...]:
    """Return the names of the options as users write them."""
    return tuple(field.name.removesuffix("_") for field in fields(options_type))


def option_values(options: AnyOptions) -> dict[str, object]:
    """Return the values of the options by the names that users write."""
    return {name.removesuffix("_"): value for name, value in asdict(options).items()}
