"""Names and values of a strategy's options, which are a frozen dataclass.

A field whose name is reserved in Python ends in an underscore (`async_`); users see the name without it.
"""

from dataclasses import asdict, fields


def option_names(options_type: type) -> tuple[str, ...]:
    """Return the names of the options as users write them."""
    return tuple(field.name.removesuffix("_") for field in fields(options_type))


def option_values(options: object) -> dict[str, object]:
    """Return the values of the options by the names that users write."""
    return {name.removesuffix("_"): value for name, value in asdict(options).items()}
