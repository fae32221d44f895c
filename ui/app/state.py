"""What the app remembers of its widgets: their choices last from page to page, and as long as the choice exists."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

Choice = TypeVar("Choice")
#: The keys that Streamlit gives the buttons of forms. Their state cannot be set.
_FORM_BUTTON = "FormSubmitter:"


def keep_widgets() -> None:
    """Keep the state of widgets that this page does not draw, which Streamlit forgets otherwise. Call it before any widget is drawn."""
    for key in list(st.session_state):
        if not str(key).startswith(_FORM_BUTTON):
            st.session_state[key] = st.session_state[key]


def select(
    place: DeltaGenerator,
    label: str,
    choices: Sequence[Choice],
    key: str,
    default: Choice | None = None,
    words: Callable[[Choice], str] = str,
) -> Choice:
    """The choice in a select box called `key`, `default` (or the first) at first and whenever the earlier one no longer exists."""
    if st.session_state.get(key) not in choices:
        st.session_state[key] = choices[0] if default is None else default
    return place.selectbox(label, choices, format_func=words, key=key)
