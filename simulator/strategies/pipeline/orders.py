"""GPipe: all forwards, then all backwards. "GPipe: Efficient Training of Giant Neural Networks" (Huang et al., 2019)."""

from collections.abc import Sequence

from simulator.strategies.pipeline.schedule import BACKWARD, FORWARD, Action, Schedule, linear


def gpipe_order(stages: int, microbatches: int) -> Schedule:
    """A stage on each rank. With one microbatch this is plain model parallelism.

    Backwards run in the order of the forwards, as torch's ScheduleGPipe does.

    >>> from simulator.strategies.pipeline.grid_csv import write
    >>> print(write(gpipe_order(stages=3, microbatches=3)), end="")
    0F0,0F1,0F2,,,,,0B0,0B1,0B2
    ,1F0,1F1,1F2,,,1B0,1B1,1B2
    ,,2F0,2F1,2F2,2B0,2B1,2B2
    """
    return Schedule(
        tuple(tuple(Action(stage, kind, m) for kind in (FORWARD, BACKWARD) for m in range(microbatches)) for stage in range(stages))
    )


# 1F1B: after a warm-up of forwards, one forward and one backward in turn, so that a stage stores a small number of activations.
# "PipeDream: Generalized Pipeline Parallelism for DNN Training" (Narayanan et al., 2019); the synchronous form, which drains at the update,
# is PipeDream-Flush (Narayanan et al., 2021) and DeepSpeed's TrainSchedule.


def one_f_one_b_order(stages: int, microbatches: int) -> Schedule:
    """A stage on each rank. Stage s has at most min(stages - s, microbatches) forwards whose backward has not run.

    >>> from simulator.strategies.pipeline.grid_csv import write
    >>> print(write(one_f_one_b_order(stages=3, microbatches=4)), end="")
    0F0,0F1,0F2,,,0B0,0F3,0B1,,0B2,,0B3
    ,1F0,1F1,,1B0,1F2,1B1,1F3,1B2,,1B3
    ,,2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3
    """
    return Schedule(tuple(_rank(stage, min(stages - 1 - stage, microbatches), microbatches) for stage in range(stages)))


def _rank(stage: int, warm_up: int, microbatches: int) -> tuple[Action, ...]:
    actions = [Action(stage, FORWARD, m) for m in range(warm_up)]
    for m in range(microbatches):
        if warm_up + m < microbatches:
            actions.append(Action(stage, FORWARD, warm_up + m))
        actions.append(Action(stage, BACKWARD, m))
    return tuple(actions)


# Schedules with representative microbatches, for predictions (`strategies.compact`).


def with_few(schedule: Schedule) -> Schedule:
    """A schedule without the microbatches in the middle that repeat others; the same schedule if it does not repeat itself there.

    It repeats itself if each rank, in the middle of its actions, runs those of the microbatch that is earlier by the number of ranks. At
    least two of these rounds are retained, until all ranks repeat one at the same time (`repeated`), and two more microbatches.
    """
    for rounds in range(2, schedule.microbatches // len(schedule.ranks)):
        few = _in_rounds(schedule, rounds)
        if few is schedule or repeated(linear(few), few):
            return few
    return schedule


def _in_rounds(schedule: Schedule, rounds: int) -> Schedule:
    """A schedule in which each rank repeats itself so many times, and not more often; the same schedule if there is none."""
    period, total = len(schedule.ranks), schedule.microbatches
    starts, removed = [], total
    for actions in schedule.ranks:
        each, rest = divmod(len(actions), total)
        later = each * period
        first = end = len(actions) // 2 - later // 2
        while first > 0 and _is_later(actions[first - 1], actions[first - 1 + later], period):
            first -= 1
        while end + later < len(actions) and _is_later(actions[end], actions[end + later], period):
            end += 1
        starts.append((first, each))
        removed = 0 if rest or first < 0 else min(removed, (end + later - first) // each - rounds * period - 2)
    removed = removed // period * period
    if removed <= 0 or schedule.overlapped:
        return schedule
    ranks = []
    for actions, (first, each) in zip(schedule.ranks, starts, strict=True):
        after = actions[first + each * removed :]
        ranks.append((*actions[:first], *(action._replace(microbatch=action.microbatch - removed) for action in after)))
    return Schedule(tuple(ranks))


def repeated(actions: Sequence[Action], schedule: Schedule) -> tuple[Sequence[Action], Sequence[Action]] | None:
    """The actions from the last round of microbatches on that does the same as the round before, and those behind that round, if any.

    `actions`: those of the schedule in one order. What the first microbatch does does not count, since the others add to its gradients, nor
    what the update of a stage follows.
    """
    period = len(schedule.ranks)
    count = len(actions) * period // schedule.microbatches
    last = {action.stage: position for position, action in enumerate(actions)}
    for begin in reversed(range(count, min(last.values()) - count + 1)):
        pairs = zip(actions[begin - count : begin], actions[begin : begin + count], strict=True)
        if all(one.microbatch and _is_later(one, other, period) for one, other in pairs):
            return actions[begin:], actions[begin + count :]
    return None


def _is_later(action: Action, other: Action, microbatches: int) -> bool:
    return other == action._replace(microbatch=action.microbatch + microbatches)
