"""What was predicted in this session: jobs with the outcomes of their strategies, to pin side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from simulator.predict.sweep import Outcome
from ui.app.page_parts import blocks_ui
from ui.app.state import several
from ui.present.sweeps import compared

#: The most jobs that are stored.
MOST = 40
_KEY, _PINNED, _NEW = "tried", "pinned", "newly tried"


@dataclass(frozen=True)
class Tried:
    """A job that was predicted, in words, and the outcome of each strategy."""

    words: str
    outcomes: tuple[Outcome, ...]


def tried() -> tuple[Tried, ...]:
    """What was predicted in this session, the latest last."""
    return st.session_state.get(_KEY, ())


def remember(words: str, outcomes: Sequence[Outcome]) -> None:
    """Store a prediction; `words` describe the job. If a job is repeated, outcomes of strategies that are not repeated are retained."""
    own = {each.strategy: each for entry in tried() if entry.words == words for each in entry.outcomes}
    own |= {each.strategy: each for each in outcomes}
    others = tuple(entry for entry in tried() if entry.words != words)
    st.session_state[_KEY] = (*others, Tried(words, tuple(own.values())))[-MOST:]


def pin(words: str) -> None:
    """Show a predicted job side by side with the other pinned ones, until the user removes it."""
    st.session_state[_NEW] = [*st.session_state.get(_NEW, ()), words]


def history_ui() -> None:
    """Show the jobs that the user pins side by side, and a button that forgets all."""
    kept = tried()
    if not kept:
        return
    st.subheader("Tried in this session", anchor=False)
    words = [entry.words for entry in kept]
    new = st.session_state.pop(_NEW, ())  # set before the box is drawn, which then stores the user's changes
    st.session_state[_PINNED] = list(dict.fromkeys([*st.session_state.get(_PINNED, ()), *new]))
    pinned = several(st, "Side by side", words, _PINNED, words)
    if st.button("Clear", icon=":material/delete:", help="Forgets what was tried in this session."):
        st.session_state[_KEY] = ()
        st.rerun()
    chosen = [entry for entry in kept if entry.words in pinned]
    if chosen:
        blocks_ui(compared([(entry.words, entry.outcomes) for entry in chosen]), "pinned")
