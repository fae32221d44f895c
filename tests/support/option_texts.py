"""Hypothesis strategies for the options of schedules, as texts: those that a strategy takes, and anything else."""

import typing
from dataclasses import fields

from hypothesis import strategies as st

from simulator.strategies import registry as strategies

#: Every name of an option.
NAMES = sorted({name for strategy in strategies.names() for name in strategies.get(strategy).option_names})
PIECES = [
    *strategies.names(), *NAMES, ":", "=", ",", "on", "off", "true", "1", "0", "-1", "2.5", "1e999", "nan", "9" * 5000, "[1,2]", "{}",
    "null", "", " ", "\0", "\ud800", "é", "auto", "none", "linear", "n=16", "x" * 300,
]  # fmt: skip
#: Texts made of such pieces, nearly all unusable.
JUMBLED = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)


def _texts(annotation: object) -> tuple[str, ...]:
    """Texts of usable values of an option's type."""
    if typing.get_origin(annotation) is typing.Literal:
        return tuple(map(str, typing.get_args(annotation)))
    if annotation is bool:
        return "on", "off", "true", "0"
    if annotation is float:
        return "0", "0.001", "1", "25", "1e300"
    if typing.get_origin(annotation) is typing.Annotated:
        return _texts(typing.get_args(annotation)[0])
    if annotation is int:
        return "0", "1", "2", "3", "1000000", "1" * 30
    if annotation is str:
        return "", "1", "2-4", "3-5-7", "4-2", "99", "schedule.csv"
    return tuple(text for inner in typing.get_args(annotation) for text in _texts(inner))


def values(strategy: str) -> dict[str, tuple[str, ...]]:
    """Usable values of each of the strategy's options, except that a combination may be refused."""
    options = strategies.get(strategy)
    hints = typing.get_type_hints(options.options_type, include_extras=True)
    return {name: _texts(hints[field.name]) for name, field in zip(options.option_names, fields(options.options_type), strict=True)}


@st.composite
def usable(draw) -> str:
    """`NAME[:option=value,...]` with options that the strategy has, and values of their types."""
    name = draw(st.sampled_from(strategies.names()))
    offered = values(name)
    chosen = draw(st.lists(st.sampled_from(sorted(offered)), max_size=3, unique=True)) if offered else []
    pairs = [f"{option}={draw(st.sampled_from(offered[option]))}" for option in chosen]
    return ":".join(filter(None, [name, ",".join(pairs)]))


@st.composite
def shared(draw, texts: list[str]) -> list[str]:
    """Pairs `option=value` for all strategies of `texts` (none: for all that there are), most of them usable; often none at all."""
    offered = sorted({f"{option}={value}" for text in texts or strategies.names() for option, usable in _offered(text) for value in usable})
    pairs = st.sampled_from(offered) if offered else JUMBLED
    return draw(st.lists(JUMBLED if draw(st.integers(0, 9)) == 9 else pairs, max_size=2))


def _offered(text: str) -> list[tuple[str, tuple[str, ...]]]:
    name = text.partition(":")[0]
    return list(values(name).items()) if name in strategies.names() else []


def requests() -> st.SearchStrategy[str]:
    """Usable texts, usable ones with one value or piece replaced, and jumbled ones."""
    spoiled = st.tuples(usable(), st.sampled_from(":=,"), st.sampled_from(PIECES)).map(lambda t: t[1].join([*t[0].split(t[1])[:-1], t[2]]))
    return st.integers(0, 9).flatmap(lambda one_of_ten: spoiled if one_of_ten == 8 else JUMBLED if one_of_ten == 9 else usable())
