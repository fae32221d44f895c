"""What the user did in the schedule editor: a list of edits that can be undone and redone. It survives a reload of the page."""

import secrets
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import streamlit as st

from simulator.plan.editor.order import Order

#: The name of a history in the page's link, by which a reloaded page finds it.
EDITS = "edits"
_KEY = "editor edits"
#: The stored histories, the latest last, by their names.
_MOST = 100
_histories: dict[str, "History"] = {}


@dataclass(frozen=True)
class Edit:
    """An edit in words, and the order that it led to. `step_s`: the predicted step; None if the order cannot be run."""

    words: str
    order: Order
    step_s: float | None


@dataclass
class History:
    """The edits of one editor. `of`: what the editor is of. `own_s`: the step of the strategy's own order. `done`: edits not undone."""

    of: Hashable
    own: Order
    own_s: float
    edits: list[Edit] = field(default_factory=list)
    done: int = 0

    @property
    def order(self) -> Order:
        """The present order."""
        return self.edits[self.done - 1].order if self.done else self.own

    @property
    def last_correct(self) -> Order:
        """The latest order, among those not undone, that can be run."""
        return next((edit.order for edit in reversed(self.edits[: self.done]) if edit.step_s is not None), self.own)

    @property
    def best(self) -> tuple[float, int]:
        """The shortest step of all orders that were tried, also of those undone, and after how many edits it was reached."""
        tried = [(self.own_s, 0), *((edit.step_s, number) for number, edit in enumerate(self.edits, 1) if edit.step_s is not None)]
        return min(tried)

    def add(self, edit: Edit) -> None:
        """Add an edit after those not undone; the others are forgotten. An order that stays as it is is no edit."""
        if edit.order != self.order:
            self.edits[self.done :] = [edit]
            self.done += 1

    def undo(self) -> None:
        """Take the last edit back."""
        self.done = max(0, self.done - 1)

    def redo(self) -> None:
        """Make the edit again that was undone last."""
        self.done = min(len(self.edits), self.done + 1)

    def reset(self) -> None:
        """Take all edits back."""
        self.done = 0


def open_history(named: str) -> str:
    """Choose the history that a link names, if it is stored here; otherwise this session continues with its own. Returns its name."""
    if named in _histories or _KEY not in st.session_state:
        st.session_state[_KEY] = named if named in _histories else secrets.token_hex(4)
    return st.session_state[_KEY]


def history_of(of: Hashable, own: Order, own_s: float, step_s: Callable[[Order], float | None]) -> History:
    """The history that `open_history` has chosen; a new one if the editor, or the strategy's own order, has changed.

    A calibration, which a run includes, changes costs: then `step_s` predicts the orders again.
    """
    name = st.session_state[_KEY]
    kept = _histories.pop(name, None)
    if kept is None or (kept.of, kept.own) != (of, own):
        kept = History(of, own, own_s)
    _histories[name] = kept
    for oldest in list(_histories)[:-_MOST]:
        del _histories[oldest]
    if kept.own_s != own_s:
        kept.own_s = own_s
        kept.edits = [replace(edit, step_s=step_s(edit.order)) for edit in kept.edits]
    return kept
