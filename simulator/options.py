"""A strategy's options: a frozen dataclass. A field whose name Python reserves ends in an underscore, which nobody else sees (`async_`)."""

from dataclasses import asdict, fields


def option_names(options_type: type) -> tuple[str, ...]:
    """The names users know."""
    return tuple(field.name.removesuffix("_") for field in fields(options_type))


def option_values(options: object) -> dict[str, object]:
    """Values by the names users know."""
    return {name.removesuffix("_"): value for name, value in asdict(options).items()}
