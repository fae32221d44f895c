"""The compute-only CSV of torch.distributed.pipelining: a line for each rank, a cell for each action, empty cells for idle steps.

A cell is an action (`0F3`), or a forward and a backward that torch's runtime may overlap (`(0F3;7B1)OVERLAP_F_B`). torch's own dumps also
name the reduction of a stage's gradients (`0REDUCE_GRAD`); it follows the stage's last backward, so that reading skips it.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD as BACKWARD_PHASE
from simulator.plan.task import FORWARD as FORWARD_PHASE
from simulator.strategies.pipeline.schedule import (
    BACKWARD,
    BY_INPUT,
    BY_WEIGHT,
    FORWARD,
    UNITS,
    Action,
    Schedule,
    ScheduleError,
    check,
    timed,
)
from traces.errors import SchedcastError, UnusableFileError
from traces.files import read_text

#: Bytes and cells of a file at most. 64 ranks with 1,000 microbatches take 2 MB and 0.2 million cells.
_MOST_BYTES, _MOST_CELLS = 1 << 23, 400_000
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_REDUCTION = re.compile(r"[0-9]{1,6}REDUCE_GRAD")
_COMMUNICATION = re.compile(r"[0-9]{1,6}(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD)[0-9]{0,6}")


def read(path: Path | str) -> Schedule:
    """The schedule in a file, checked.

    Raises UnusableFileError for a file that is not such a CSV, and ScheduleError for a schedule that cannot run.
    """
    text = read_text(path, "schedule", _MOST_BYTES).rstrip()
    if text.count(",") + text.count("\n") > _MOST_CELLS:
        raise UnusableFileError(f"schedule {path} holds more than {_MOST_CELLS:,} cells, too much for a schedule; check the file")
    ranks, overlapped = [], set()
    for number, line in enumerate(text.split("\n") if text else (), start=1):
        actions: list[Action] = []
        for place, cell in enumerate(line.split(","), start=1):
            try:
                of_cell = _actions(cell.strip())
            except ValueError as error:
                raise UnusableFileError(f"schedule {path}: line {number}, cell {place}: {error}") from error
            actions += of_cell
            overlapped |= set(of_cell[:-1])
        ranks.append(tuple(actions))
    schedule = Schedule(tuple(ranks), frozenset(overlapped))
    try:
        check(schedule)
    except ScheduleError as error:
        raise ScheduleError(f"schedule {path}: {error}", error.details) from error
    return schedule


def write(schedule: Schedule) -> str:
    """The text of a file. Every cell is one step long; a rank's cell is empty in a step in which it waits."""
    spans = timed(schedule, lambda action: 0 if action in schedule.overlapped else 1)
    return "".join(
        ",".join(_cells(schedule, actions, [int(spans[action].start_s) for action in actions])) + "\n" for actions in schedule.ranks
    )


def _actions(cell: str) -> list[Action]:
    """The actions of a cell: none, one, or an overlapped pair. Raises ValueError for another text."""
    if not cell or _REDUCTION.fullmatch(cell):
        return []
    if pair := _PAIR.fullmatch(cell):
        forward, backward = (_action(text.strip()) for text in pair.groups())
        if forward.kind != FORWARD or backward.kind not in (BACKWARD, BY_INPUT):
            raise ValueError(f"{cell!r} overlaps {forward} and {backward}; expected a forward and a backward, such as (0F3;7B1)OVERLAP_F_B")
        return [forward, backward]
    return [_action(cell)]


def _action(text: str) -> Action:
    if (action := Action.read(text)) is not None and action.kind in UNITS:
        return action
    if _COMMUNICATION.fullmatch(text):
        raise ValueError(f"{text!r} is communication; expected a compute-only file (torch's _dump_csv with format='compute_only')")
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    raise ValueError(f"{shown!r} is no action; expected a stage, F, I, W or B, and a microbatch, such as 0F3, or nothing for an idle step")


def _cells(schedule: Schedule, actions: tuple[Action, ...], steps: list[int]) -> list[str]:
    cells: list[str] = []
    place = 0
    while place < len(actions):
        cells += [""] * (steps[place] - len(cells))
        if actions[place] in schedule.overlapped:
            cells.append(f"({actions[place]};{actions[place + 1]})OVERLAP_F_B")
            place += 2
        else:
            cells.append(str(actions[place]))
            place += 1
    return cells


# The schedule that a plan follows, from the actions of its tasks.


def schedule_of(plan: Plan) -> Schedule:
    """Return the order in which each of the plan's devices runs its actions, with a rank for each device in order of first use.

    Of replicas, which run the same, it is the order of the first. Raises SchedcastError for a plan without actions, or of a pipeline that
    does not drain in every step.
    """
    plan.require_whole()
    if any(task.lag for task in plan.every_task):
        raise SchedcastError(f"{plan.strategy} works on several steps at once, which a schedule cannot say; use gpipe, 1f1b or another")
    own = cast(int, plan.semantics.get("microbatches", plan.microbatches))  # of the first replica, whose numbers are the smallest
    ranks: dict[str, dict[Action, None]] = {}  # a dictionary keeps the order of first use
    for task in plan.tasks:
        action = Action.read(task.action) if task.phase in (FORWARD_PHASE, BACKWARD_PHASE) else None
        if action is not None and action.kind in UNITS and action.microbatch < own:
            ranks.setdefault(task.device, {})[action] = None
    schedule = Schedule(tuple(tuple(_with_empty_halves(actions)) for actions in ranks.values()))
    try:
        check(schedule)
    except ScheduleError as error:
        raise SchedcastError(f"the plan of {plan.strategy} follows no schedule of torch.distributed.pipelining: {error}") from error
    return schedule


def _with_empty_halves(actions: Iterable[Action]) -> Iterator[Action]:
    """Yield the actions, and with each half of a backward the other one if it has no tasks.

    A first stage of one layer has no gradient by its input.
    """
    known = set(actions)
    for action in actions:
        other = action._replace(kind={BY_INPUT: BY_WEIGHT, BY_WEIGHT: BY_INPUT}.get(action.kind, action.kind))
        halves = (action,) if other in known else tuple(sorted((action, other), key=lambda half: half.kind))
        yield from halves
