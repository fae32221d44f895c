"""What a strategy's options are to a form: read from its dataclass, so that a new strategy or option appears by itself."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from simulator.strategies import registry as strategies
from ui.present.text.labels import option_value
from ui.service.kept import FILES


@dataclass(frozen=True)
class OptionField:
    """One option. `default` and `choices` are of the kind: booleans of a switch, texts of a choice or a text, numbers of a number.

    An "open" choice takes other texts too. `least`: the smallest number, if there is one.
    """

    name: str
    about: str
    kind: Literal["switch", "choice", "open", "number", "text"]
    default: Any
    choices: tuple[str, ...] = ()
    least: float | None = None


@cache
def option_fields(strategy: str) -> tuple[OptionField, ...]:
    """The options of a strategy, in the order of its dataclass; none of one that the registry does not have."""
    if strategy not in strategies.names():
        return ()
    known = strategies.get(strategy)
    schemas = TypeAdapter(known.options_type).json_schema().get("properties", {}).values()
    documented = zip(known.option_docs(), schemas, strict=True)
    return tuple(_field(name, about, default, schema) for (name, about, default), schema in documented if name not in FILES)


def _field(name: str, about: str, default: Any, schema: dict[str, Any]) -> OptionField:
    if schema.get("type") == "boolean":
        return OptionField(name, about, "switch", default)
    if "enum" in schema:
        return OptionField(name, about, "choice", option_value(default), tuple(map(str, schema["enum"])))
    if schema.get("type") in ("integer", "number"):
        return OptionField(name, about, "number", default, least=schema.get("minimum"))
    words = [str(each["const"]) for each in schema.get("anyOf", ()) if "const" in each]
    if words:
        return OptionField(name, about, "open", option_value(default), tuple(words))
    return OptionField(name, about, "text", option_value(default))


def strategy_text(strategy: str, values: dict[str, Any]) -> str:
    """A strategy with the options that differ from its defaults, as the command line takes it: turbodl:async=off,alpha=2."""
    usual = {field.name: field.default for field in option_fields(strategy)}
    texts = [f"{name}={option_value(value)}" for name, value in values.items() if value != usual[name] and option_value(value) != ""]
    return f"{strategy}:{','.join(texts)}" if texts else strategy


def option_values(text: str) -> dict[str, Any]:
    """The values that a text such as turbodl:async=off gives to options that a form shows. What is not one of them is left out."""
    strategy, _, tail = text.partition(":")
    if strategy not in strategies.names():
        return {}
    given = dict(part.partition("=")[::2] for part in tail.split(","))
    fields = {field.name: field for field in option_fields(strategy)}
    read = {name: _read(fields[name], value.strip()) for name, value in given.items() if name in fields}
    return {name: value for name, value in read.items() if value is not None}


def _read(field: OptionField, text: str) -> Any:
    """The value of a text, None if it is none of the field's."""
    if field.kind == "switch":
        return {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}.get(text.lower())
    if field.kind == "choice":
        return text if text in field.choices else None
    if field.kind == "number":
        try:
            return type(field.default)(text)
        except (ValueError, OverflowError):
            return None
    return text
