"""The widgets of a strategy's options."""

from typing import Any

import streamlit as st

from ui.app.option_fields import OptionField, option_fields, option_values, strategy_text
from ui.app.state import LONE_SURROGATE, MOST, select, text
from ui.present.text.labels import markdown_escaped


def options_ui(strategy: str) -> str:
    """Let the user change a strategy's options. Returns the strategy with those that differ, as the command line takes it."""
    fields = option_fields(strategy)
    if not fields:
        return strategy
    with st.expander(f"Options of {strategy}"):
        return strategy_text(strategy, {field.name: _value(strategy, field) for field in fields})


def put_options(strategy: str) -> str:
    """Set the widgets to the options of a text such as turbodl:async=off. Returns the name of the strategy."""
    name = strategy.partition(":")[0]
    for option, value in option_values(strategy).items():
        st.session_state[_key(name, option)] = value
    return name


def _key(strategy: str, option: str) -> str:
    return f"option {strategy} {option}"


def _value(strategy: str, field: OptionField) -> Any:
    key, about = _key(strategy, field.name), markdown_escaped(field.about)
    if field.kind == "switch":
        kept = st.session_state.get(key, field.default)
        st.session_state[key] = kept if isinstance(kept, bool) else field.default
        return st.toggle(field.name, key=key, help=about)
    if field.kind == "choice":
        return select(st, field.name, field.choices, key, field.default, help=about)
    if field.kind == "open":
        kept = st.session_state.get(key)
        kept = kept.strip() if isinstance(kept, str) and not LONE_SURROGATE.search(kept) else ""
        kept = kept or field.default
        offered = list(dict.fromkeys([*field.choices, "1", "2", "4", kept]))
        return select(st, field.name, offered, key, kept, help=about, accept_new_options=True) or field.default
    if field.kind == "number":
        return _number(key, field, about)
    return text(st.text_input, field.name, key, field.default, help=about).strip()


def _number(key: str, field: OptionField, about: str) -> float:
    whole, least = isinstance(field.default, int), field.least or 0
    kept = st.session_state.get(key, field.default)
    usable = isinstance(kept, int if whole else int | float) and not isinstance(kept, bool) and least <= kept <= MOST
    st.session_state[key] = (int if whole else float)(kept if usable else field.default)
    bounds = {"min_value": int(least), "max_value": MOST, "step": 1} if whole else {"min_value": float(least), "max_value": float(MOST)}
    return st.number_input(field.name, key=key, help=about, **bounds)
