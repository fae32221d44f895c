"""Edits of a schedule in sentences: what moved, what it costs, and why an order cannot be run."""

from collections.abc import Sequence

from simulator.plan.editor.editor import Fault, Move
from traces import units

#: Reasons that are listed before the rest is counted.
MOST_FAULTS = 8


def move_words(tasks: Sequence[str], move: Move) -> str:
    """A move: conv1/update to stream 1 of cuda:0, before fc/update. `tasks`: all that moved."""
    what = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks from {tasks[0]} on"
    lane = f"stream {move.stream} of {move.device}"
    where = f"to the end of {lane}" if move.before is None else f"to {lane}, before {move.before}"
    return f"{what} {where}" + (f", priority {move.priority}" if move.priority is not None else "")


def cost_words(step_s: float, own_s: float, strategy: str, edited: bool) -> str:
    """The step time compared with that of the strategy's own order: 25.8 ms, 3.10 ms (13.7 %) slower than turbodl's own order."""
    if not edited:
        return f"{units.duration(step_s)}: {strategy}'s own order."
    if step_s == own_s:
        return f"{units.duration(step_s)}, as long as {strategy}'s own order."
    word = "slower" if step_s > own_s else "faster"
    change = f"{units.duration(abs(step_s - own_s))} ({units.percent(abs(step_s - own_s) / own_s, signed=False)})"
    return f"{units.duration(step_s)}, {change} {word} than {strategy}'s own order."


def best_words(step_s: float, best_s: float, moves: int) -> str:
    """How the step time compares with the best one of this session, which `moves` edits led to."""
    if step_s <= best_s:
        return "No order that you tried here is faster."
    edits = "without edits" if not moves else f"after {moves} edit{'s' if moves > 1 else ''}"
    return f"The best that you tried here took {units.duration(best_s)}, {edits}."


def fault_lines(faults: Sequence[Fault]) -> list[str]:
    """The reasons why an order cannot be run, a line each; many are cut short."""
    lines = [fault.words for fault in faults[:MOST_FAULTS]]
    return [*lines, f"... and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else lines
