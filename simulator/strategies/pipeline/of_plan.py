"""The schedule that a plan follows, from the actions of its tasks."""

from collections.abc import Iterable, Iterator

from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD as BACKWARD_PHASE
from simulator.plan.task import FORWARD as FORWARD_PHASE
from simulator.strategies.pipeline.schedule import BY_INPUT, BY_WEIGHT, UNITS, Action, Schedule, ScheduleError, check
from traces.errors import SchedcastError


def schedule_of(plan: Plan) -> Schedule:
    """Return the order in which each of the plan's devices runs its actions, with a rank for each device in order of first use.

    Raises SchedcastError for a plan without actions, or of a pipeline that does not drain in every step.
    """
    if any(task.lag for task in plan.every_task):
        raise SchedcastError(f"{plan.strategy} works on several steps at once, which a schedule cannot say; use gpipe, 1f1b or another")
    ranks: dict[str, dict[Action, None]] = {}  # a dictionary keeps the order of first use
    for task in plan.tasks:
        action = Action.read(task.action) if task.phase in (FORWARD_PHASE, BACKWARD_PHASE) else None
        if action is not None and action.kind in UNITS:
            ranks.setdefault(task.device, {})[action] = None
    schedule = Schedule(tuple(tuple(_with_empty_halves(actions)) for actions in ranks.values()))
    try:
        check(schedule)
    except ScheduleError as error:
        raise SchedcastError(f"the plan of {plan.strategy} follows no schedule of torch.distributed.pipelining: {error}") from error
    return schedule


def _with_empty_halves(actions: Iterable[Action]) -> Iterator[Action]:
    """Yield the actions, and beside each half of a backward the other one if it has no tasks.

    A first stage of one layer has no gradient by its input.
    """
    known = set(actions)
    for action in actions:
        other = action._replace(kind={BY_INPUT: BY_WEIGHT, BY_WEIGHT: BY_INPUT}.get(action.kind, action.kind))
        halves = (action,) if other in known else tuple(sorted((action, other), key=lambda half: half.kind))
        yield from halves
