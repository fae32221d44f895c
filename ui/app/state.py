"""What the app remembers of its widgets: their choices last from page to page, and as long as the choice exists."""

import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

Choice = TypeVar("Choice")
#: A part of the page, or `streamlit` for the page itself.
Place = DeltaGenerator | ModuleType
#: The largest whole number that a browser represents exactly.
MOST = 2**53 - 1
#: Half of a character: such a text cannot be sent to a browser.
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
#: The prefix of the keys of the defaults that widgets had.
DEFAULT_OF = "default of "
#: The prefixes of keys whose state is not stored: buttons, whose state cannot be set (those that Streamlit gives the buttons of forms, and
#: ours), and components, whose events would happen again.
_NOT_KEPT = ("FormSubmitter:", BUTTON := "button ", COMPONENT := "component ")


def keep_widgets() -> None:
    """Keep the state of widgets that this page does not draw, which Streamlit forgets otherwise. Call it before any widget is drawn."""
    for key in list(st.session_state):
        if not str(key).startswith(_NOT_KEPT):
            st.session_state[key] = st.session_state[key]


def _begin(key: str, default: Any, usable: bool) -> None:
    """Set the widget called `key` to its default: at first, in place of what is not `usable`, and as long as the user chose nothing else.

    A default may change: as long as the widget has the one before, it follows.
    """
    unchosen = f"{DEFAULT_OF}{key}"
    if key not in st.session_state or not usable or st.session_state[key] == st.session_state.get(unchosen):
        st.session_state[key] = default
    st.session_state[unchosen] = default


def select(
    place: Place,
    label: str,
    choices: Sequence[Choice],
    key: str,
    default: Choice | None = None,
    words: Callable[[Choice], str] = str,
    **how: Any,
) -> Choice:
    """The choice in a select box called `key`: `default` (or the first) until another is chosen, and when that one no longer exists."""
    _begin(key, choices[0] if default is None else default, st.session_state.get(key) in choices)
    return place.selectbox(label, choices, format_func=words, key=key, **how)


def number(place: Place, label: str, key: str, default: int | None = None, placeholder: str = "", **how: Any) -> int | None:
    """The whole number, at least 1, in a number box called `key`; None if it is empty. `default` at first, and instead of anything else."""
    kept = st.session_state.get(key, default)
    usable = kept is None or (isinstance(kept, int) and not isinstance(kept, bool) and 1 <= kept <= MOST)
    st.session_state[key] = kept if usable else default
    return place.number_input(label, min_value=1, max_value=MOST, value=None, step=1, placeholder=placeholder, key=key, **how)


def quantity(place: Place, label: str, key: str, placeholder: str = "", **how: Any) -> float | None:
    """The positive number in a number box called `key`; None if it is empty, at first, and instead of anything else."""
    kept = st.session_state.get(key)
    st.session_state[key] = float(kept) if isinstance(kept, int | float) and not isinstance(kept, bool) and 0 < kept <= MOST else None
    return place.number_input(label, min_value=0.0, max_value=float(MOST), value=None, placeholder=placeholder, key=key, **how) or None


def factor(place: Place, label: str, key: str, steps: Sequence[float], words: Callable[[float], str], **how: Any) -> float:
    """The factor on a slider called `key`, 1 at first and instead of anything but a positive number. A factor between `steps` is kept."""
    kept = st.session_state.get(key, 1.0)
    usable = isinstance(kept, int | float) and not isinstance(kept, bool) and steps[0] <= kept <= steps[-1]
    st.session_state[key] = float(kept) if usable else 1.0
    offered = sorted({*steps, st.session_state[key]})
    return place.select_slider(label, offered, format_func=words, key=key, **how)


def text(draw: Callable[..., str], label: str, key: str, default: str = "", **how: Any) -> str:
    """The text in a box called `key` that `draw` draws, `text_input` or `text_area`. `default` at first, and instead of what is no text."""
    kept = st.session_state.get(key, default)
    _begin(key, default, isinstance(kept, str) and not LONE_SURROGATE.search(kept))
    return draw(label, key=key, **how)


def several(place: Place, label: str, choices: Sequence[str], key: str, default: Sequence[str], **how: Any) -> list[str]:
    """The choices that the user has picked in a box called `key`, `default` at first. Those that no longer exist are dropped."""
    kept = st.session_state.get(key, default)
    _begin(key, list(default), isinstance(kept, list | tuple))
    st.session_state[key] = [choice for choice in choices if choice in st.session_state[key]]
    return place.multiselect(label, choices, key=key, **how)


def segments(label: str, choices: Sequence[Choice], key: str, default: Choice) -> Choice:
    """The choice on a row of buttons called `key`; `default` at first, and whenever none is chosen."""
    if st.session_state.get(key) not in choices:
        st.session_state[key] = default
    return st.segmented_control(label, choices, key=key) or default
