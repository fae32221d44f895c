"""Words of the schedule editor."""

from simulator.plan.editor.editor import Fault, Move
from ui.present.sentences import MOST_FAULTS, best_words, cost_words, fault_lines, move_words


def test_moves():
    assert move_words(["a"], Move("a", "cuda:0", 1, "b")) == "a to stream 1 of cuda:0, before b"
    assert move_words(["a", "b"], Move("a", "cuda:0", 1, priority=-1)) == "2 tasks from a on to the end of stream 1 of cuda:0, priority -1"


def test_what_an_order_costs():
    assert cost_words(0.0258, 0.0227, "turbodl", edited=True) == "25.8 ms, 3.10 ms (13.7 %) slower than turbodl's own order."
    assert cost_words(0.0227, 0.0258, "turbodl", edited=True) == "22.7 ms, 3.10 ms (12.0 %) faster than turbodl's own order."
    assert cost_words(0.0227, 0.0227, "turbodl", edited=True) == "22.7 ms, as long as turbodl's own order."
    assert cost_words(0.0227, 0.0227, "turbodl", edited=False) == "22.7 ms: turbodl's own order."
    assert best_words(0.02, 0.02, 3) == "No order that you tried here is faster."
    assert best_words(0.03, 0.02, 1) == "The best that you tried here took 20.0 ms, after 1 edit."
    assert best_words(0.03, 0.02, 0) == "The best that you tried here took 20.0 ms, without edits."


def test_many_faults_are_cut_short():
    faults = [Fault(number, f"fault {number}") for number in range(MOST_FAULTS + 2)]
    assert fault_lines(faults[:2]) == ["fault 0", "fault 1"]
    assert fault_lines(faults)[-1] == "... and 2 more"
