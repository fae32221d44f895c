"""Edits of the schedule editor: undone, redone and forgotten."""

from simulator.plan.editor.order import Entry, Order
from ui.app.editor_history import Edit, History

A, B, C = (Order((Entry(name, "d", 0, 0),)) for name in "abc")


def test_edits_are_undone_and_redone():
    history = History("job", A, 3.0)
    history.add(Edit("to b", B, 2.0))
    history.add(Edit("to c", C, None))
    assert (history.order, history.last_correct) == (C, B)
    history.undo()
    assert history.order == B
    history.redo()
    assert history.order == C
    history.reset()
    assert (history.order, history.last_correct) == (A, A)
    assert history.best == (2.0, 1), "also of edits that were undone"


def test_a_new_edit_forgets_those_undone():
    history = History("job", A, 3.0)
    history.add(Edit("to b", B, 2.0))
    history.undo()
    history.add(Edit("to c", C, 4.0))
    assert [edit.words for edit in history.edits] == ["to c"]
    assert history.best == (3.0, 0)
    history.add(Edit("to c again", C, 4.0))
    assert history.done == 1, "an order that stays as it is is no edit"
