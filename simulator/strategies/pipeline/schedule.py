"""A pipeline schedule: the actions of each rank in order, when they run, and what is wrong with them."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from traces.errors import Code, SchedcastError

# A schedule as text: a line for each rank, a column for each unit of time.


#: The text of a column in which a rank is idle, and of one in which it continues the action of the previous column.
IDLE, CONTINUED = ".", "-"
#: Columns and ranks that are drawn before a fault, and after it.
_COLUMNS, _RANKS = 12, 16


class Cell(NamedTuple):
    """An action of a rank: its first column, the number of columns that it takes, and its text."""

    start: int
    length: int
    text: str


def _drawn_around(rows: Sequence[Sequence[Cell]], marked: int, mark: int) -> str:
    """The part of the grid around column `mark` of rank `marked`, at which it points."""
    last = max((cell.start + cell.length for row in rows for cell in row), default=0)
    begin, end = max(0, mark - _COLUMNS), min(last, mark + _COLUMNS + 1)
    cell_width = max((len(cell.text) for row in rows for cell in row), default=1)
    label_width = len(f"rank {len(rows) - 1}") + 2
    lines = [f"columns {begin} to {end - 1} of {last}"] if end - begin < last else []
    for rank in range(max(0, marked - _RANKS), min(len(rows), marked + _RANKS + 1)):
        texts = [IDLE] * (end - begin)
        row_end = max((cell.start + cell.length for cell in rows[rank]), default=0)
        for cell in rows[rank]:
            for column in range(max(cell.start, begin), min(cell.start + cell.length, end)):
                texts[column - begin] = cell.text if column == cell.start else CONTINUED
        label = f"rank {rank}".ljust(label_width)
        lines.append((label + " ".join(text.ljust(cell_width) for text in texts[: max(row_end - begin, 0)])).rstrip())
        if rank == marked and begin <= mark <= end:
            lines.append(" " * (label_width + (mark - begin) * (cell_width + 1)) + "^ here")
    return "\n".join(lines)


#: What an action computes, in the letters of torch.distributed.pipelining: a forward; a whole backward; and the halves of a backward, the
#: gradient by the stage's input (which the stage before waits for) and the gradients by its weights (which only the update waits for).
FORWARD, BACKWARD, BY_INPUT, BY_WEIGHT = "F", "B", "I", "W"
#: The forward of a stage that repeats it before its backward (`Pipeline.forward_again`). Schedules do not list it.
AGAIN = "R"
#: Units of time that an action takes in a drawing.
UNITS = {FORWARD: 1, BACKWARD: 2, BY_INPUT: 1, BY_WEIGHT: 1}
_ACTION = re.compile(r"([0-9]{1,6})([FIWBR])([0-9]{1,6})")
#: Waits that the message about a deadlock names.
_MOST_WAITS = 6


class ScheduleError(SchedcastError):
    """A schedule that cannot run. `details` shows the actions of the ranks over time, with an arrow at the fault; "" without one."""

    def __init__(self, message: str, details: str = ""):
        """`message` is one line; `details` may be several."""
        super().__init__(message, Code.PLAN)
        self.details = details


class Action(NamedTuple):
    """What a rank does at a time: one kind of work of one stage on one microbatch. Its text is that of torch: `0F3`."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def read(cls, text: str) -> "Action | None":
        """The action that `text` names; None if it names none."""
        match = _ACTION.fullmatch(text)
        return cls(int(match[1]), match[2], int(match[3])) if match else None


def first_microbatches(actions: Iterable[Action]) -> dict[tuple[int, str], int]:
    """By stage and kind of action, the first microbatch; by half of a backward, since a whole one has both."""
    first: dict[tuple[int, str], int] = {}
    for stage, kind, microbatch in actions:
        for half in (BY_INPUT, BY_WEIGHT) if kind == BACKWARD else (kind,):
            first.setdefault((stage, half), microbatch)
    return first


class Span(NamedTuple):
    """When an action runs, in seconds from the start of the step."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class Schedule:
    """The actions of each rank, in the order in which the rank runs them.

    A rank is a device of the pipeline and may run several stages. `overlapped` holds the forwards that are paired with the backward after
    them (torch's OVERLAP_F_B). A pair starts when both of its actions can; the forward runs first, then the backward.
    """

    ranks: tuple[tuple[Action, ...], ...]
    overlapped: frozenset[Action] = frozenset()

    @cached_property
    def stages(self) -> int:
        """The number of stages, one more than the largest index."""
        return 1 + max((action.stage for action in self.actions), default=-1)

    @cached_property
    def microbatches(self) -> int:
        """The number of microbatches, one more than the largest index."""
        return 1 + max((action.microbatch for action in self.actions), default=-1)

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """The rank that runs each stage."""
        return {action.stage: rank for rank, actions in enumerate(self.ranks) for action in actions}

    @cached_property
    def actions(self) -> frozenset[Action]:
        """All actions."""
        return frozenset(action for actions in self.ranks for action in actions)

    def needs(self, action: Action) -> tuple[Action, ...]:
        """The actions whose results `action` takes."""
        stage, kind, microbatch = action
        if kind == FORWARD:
            return (Action(stage - 1, FORWARD, microbatch),) if stage else ()
        if kind == BY_WEIGHT:
            return (Action(stage, BY_INPUT, microbatch),)
        forward = Action(stage, FORWARD, microbatch)
        if stage + 1 == self.stages:
            return (forward,)
        gradient = Action(stage + 1, BACKWARD, microbatch)
        return forward, gradient if gradient in self.actions else Action(stage + 1, BY_INPUT, microbatch)


def linear(schedule: Schedule) -> list[Action]:
    """All actions in one order, in which each comes after those that it needs and each rank's keep their order.

    The order is that of the start times if each action takes one unit of time, then that of the stages. Raises ScheduleError if some
    actions wait for each other.
    """
    spans = timed(schedule, lambda action: 1)
    return sorted(spans, key=lambda action: (spans[action].start_s, action))


def timed(schedule: Schedule, seconds: Callable[[Action], float], transfer_s: float = 0.0) -> dict[Action, Span]:
    """When each action runs if each rank runs its actions in order, each as soon as it can.

    An action takes `seconds(action)`. What another rank computed arrives `transfer_s` after its end. Raises ScheduleError if some actions
    wait for each other.

    >>> first, second = Action.read("0F0"), Action.read("1F0")
    >>> spans = timed(Schedule(((first,), (second,))), lambda action: 2.0, transfer_s=0.5)
    >>> spans[second]
    Span(start_s=2.5, end_s=4.5)
    """
    spans, waits = _run(schedule, seconds, transfer_s)
    if waits:
        raise _deadlock(schedule, waits)
    return spans


def check(schedule: Schedule) -> None:
    """Raise ScheduleError at the first fault that keeps `schedule` from running.

    >>> ranks = "0F0 0F1 0B0 0B1", "1F0 1B0 1B1 1F1"
    >>> try:
    ...     check(Schedule(tuple(tuple(map(Action.read, actions.split())) for actions in ranks)))
    ... except ScheduleError as error:
    ...     print(error)
    ...     print(error.details)
    rank 1 runs 1B1 without 1F1 before it; expected F before its backward
    rank 0  0F0 0F1 .   .   0B0 -   0B1 -
    rank 1  .   1F0 1B0 -   1B1 -   1F1
                            ^ here
    """
    if not schedule.actions:
        raise ScheduleError("the schedule has no actions; expected a line for each rank, such as 0F0,0B0")
    for faults in (_rank_faults, _order_faults, _missing):
        for rank, position, what in faults(schedule):
            raise ScheduleError(what, _details(schedule, rank, position))
    _, waits = _run(schedule, lambda action: 1, 0.0)
    if waits:
        raise _deadlock(schedule, waits)


class _Fault(NamedTuple):
    """What is wrong with the action at `position` of a rank; behind the last action, what is missing."""

    rank: int
    position: int
    what: str


class _Wait(NamedTuple):
    """The position of the action at which a rank waits for ever, and an action that it needs."""

    position: int
    need: Action


def _run(schedule: Schedule, seconds: Callable[[Action], float], transfer_s: float) -> tuple[dict[Action, Span], dict[int, _Wait]]:
    """When each action runs, and for each rank that cannot run all of its actions, the first that it cannot run."""
    spans: dict[Action, Span] = {}
    done, free_s = [0] * len(schedule.ranks), [0.0] * len(schedule.ranks)
    waiting: dict[Action, list[int]] = {}
    waits: dict[int, _Wait] = {}
    ready = deque(range(len(schedule.ranks)))
    while ready:
        rank = ready.popleft()
        waits.pop(rank, None)
        while done[rank] < len(schedule.ranks[rank]):
            action = schedule.ranks[rank][done[rank]]
            needs = schedule.needs(action)
            if action in schedule.overlapped:
                paired = schedule.ranks[rank][done[rank] + 1 : done[rank] + 2]
                needs += tuple(need for backward in paired for need in schedule.needs(backward) if need != action)
            absent = next((need for need in needs if need not in spans), None)
            if absent is not None:
                waiting.setdefault(absent, []).append(rank)
                waits[rank] = _Wait(done[rank], absent)
                break
            arrivals_s = (spans[need].end_s + (transfer_s if schedule.rank_of[need.stage] != rank else 0.0) for need in needs)
            start_s = max(free_s[rank], *arrivals_s, 0.0)
            free_s[rank] = start_s + seconds(action)
            spans[action] = Span(start_s, free_s[rank])
            done[rank] += 1
            ready += waiting.pop(action, ())
    return spans, waits


def _deadlock(schedule: Schedule, waits: dict[int, _Wait]) -> ScheduleError:
    """The error that names the ranks that wait for each other, or the action that no rank runs."""
    rank = min(waits)
    passed: dict[int, int] = {}
    while rank not in passed and waits[rank].need in schedule.actions:
        passed[rank] = len(passed)
        rank = schedule.rank_of[waits[rank].need.stage]
    cycle = list(passed)[passed[rank] :] if rank in passed else [rank]
    texts = [f"rank {r} waits at {schedule.ranks[r][waits[r].position]} for {waits[r].need}" for r in cycle[:_MOST_WAITS]]
    if len(cycle) > len(texts):
        texts.append(f"and {len(cycle) - len(texts)} more ranks")
    if rank not in passed:
        what = f"{texts[0]}, which no rank runs; add it before"
    else:
        what = f"deadlock: {', '.join(texts)}; let one of the ranks run what the other waits for first"
    return ScheduleError(what, _details(schedule, cycle[0], waits[cycle[0]].position))


def _rank_faults(schedule: Schedule) -> Iterator[_Fault]:
    """Actions that are none, ranks without actions, and stages with several ranks."""
    first_rank: dict[int, int] = {}
    for rank, actions in enumerate(schedule.ranks):
        if not actions:
            yield _Fault(rank, 0, f"rank {rank} has no actions; expected at least one stage a rank")
        for position, action in enumerate(actions):
            if action.kind not in UNITS or action.stage < 0 or action.microbatch < 0:
                yield _Fault(rank, position, f"rank {rank} has the action {action}; expected a stage, F, I, W or B, and a microbatch")
            other = first_rank.setdefault(action.stage, rank)
            if other != rank:
                what = f"ranks {other} and {rank} both run stage {action.stage}; expected one rank a stage"
                yield _Fault(rank, position, what)


def _order_faults(schedule: Schedule) -> Iterator[_Fault]:
    """Actions that come twice, or before one of their own stage that they need."""
    for rank, actions in enumerate(schedule.ranks):
        done: set[Action] = set()
        for position, action in enumerate(actions):
            stage, kind, microbatch = action
            forward, whole, by_input = (Action(stage, other, microbatch) for other in (FORWARD, BACKWARD, BY_INPUT))
            if action in done:
                yield _Fault(rank, position, f"rank {rank} runs {action} twice; expected each action once")
            elif kind in (BACKWARD, BY_INPUT) and forward not in done:
                what = f"rank {rank} runs {action} without {forward} before it; expected F before its backward"
                yield _Fault(rank, position, what + _torch_hint(schedule, forward))
            elif kind == BY_WEIGHT and by_input not in done:
                yield _Fault(rank, position, f"rank {rank} runs {action} without {by_input} before it; expected F, then I, then W")
            elif (kind == BACKWARD and by_input in done) or (kind == BY_INPUT and whole in done):
                other = by_input if kind == BACKWARD else whole
                yield _Fault(rank, position, f"rank {rank} runs {action} after {other}; expected either B, or I and W")
            done.add(action)


def _torch_hint(schedule: Schedule, forward: Action) -> str:
    """A hint if `forward` is missing as in the 1F1B order of torch 2.13, whose last rank numbers its forwards from 1."""
    stage, _, microbatch = forward
    others = [action.microbatch for action in schedule.ranks[schedule.rank_of[stage]] if action.kind == FORWARD]
    if stage + 1 != schedule.stages or microbatch or not others or sorted(others) != list(range(1, len(others) + 1)):
        return ""
    return f" (torch's own 1F1B order leaves out the last rank's F0: number its forwards from 0, {forward} to {stage}F{len(others) - 1})"


def _missing(schedule: Schedule) -> Iterator[_Fault]:
    """Stages that no rank runs, and actions that their rank lacks."""
    for stage in range(schedule.stages):
        if stage not in schedule.rank_of:
            what = f"no rank runs stage {stage}; expected stages 0 to {schedule.stages - 1}, the largest in the schedule"
            yield _Fault(len(schedule.ranks) - 1, len(schedule.ranks[-1]), what)
        rank = schedule.rank_of[stage]
        expected = f"F, and either B or I and W, of microbatches 0 to {schedule.microbatches - 1}"
        for microbatch in range(schedule.microbatches):
            forward, whole, by_input, by_weight = (Action(stage, kind, microbatch) for kind in (FORWARD, BACKWARD, BY_INPUT, BY_WEIGHT))
            wanted = (forward, by_input, by_weight) if by_input in schedule.actions else (forward, whole)
            for action in wanted:
                if action not in schedule.actions:
                    yield _Fault(rank, len(schedule.ranks[rank]), f"rank {rank} does not run {action}; expected {expected}")


def _details(schedule: Schedule, rank: int, position: int) -> str:
    rows = _cells(schedule)
    cell = Cell(0, 0, "") if not rows[rank] else rows[rank][min(position, len(rows[rank]) - 1)]
    return _drawn_around(rows, rank, cell.start if position < len(rows[rank]) else cell.start + cell.length)


def _cells(schedule: Schedule) -> list[list[Cell]]:
    """The cells of the grid. Actions that cannot run come after the previous ones of their rank."""
    spans, _ = _run(schedule, lambda action: UNITS.get(action.kind, 1), 0.0)
    rows = []
    for actions in schedule.ranks:
        row: list[Cell] = []
        shown: set[Action] = set()
        for action in actions:
            free = row[-1].start + row[-1].length if row else 0
            start = max(free, int(spans[action].start_s)) if action in spans and action not in shown else free
            row.append(Cell(start, UNITS.get(action.kind, 1), str(action)))
            shown.add(action)
        rows.append(row)
    return rows
