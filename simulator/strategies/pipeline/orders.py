"""GPipe: all forwards, then all backwards. "GPipe: Efficient Training of Giant Neural Networks" (Huang et al., 2019)."""

from simulator.strategies.pipeline.schedule import BACKWARD, FORWARD, Action, Schedule


def gpipe_order(stages: int, microbatches: int) -> Schedule:
    """A stage on each rank. With one microbatch this is plain model parallelism.

    Backwards run in the order of the forwards, as torch's ScheduleGPipe does.
    """
    return Schedule(
        tuple(tuple(Action(stage, kind, m) for kind in (FORWARD, BACKWARD) for m in range(microbatches)) for stage in range(stages))
    )


# 1F1B: after a warm-up of forwards, one forward and one backward in turn, so that a stage keeps few activations.
# "PipeDream: Generalized Pipeline Parallelism for DNN Training" (Narayanan et al., 2019); the synchronous form, which drains at the update,
# is PipeDream-Flush (Narayanan et al., 2021) and DeepSpeed's TrainSchedule.


def one_f_one_b_order(stages: int, microbatches: int) -> Schedule:
    """A stage on each rank. Stage s holds at most min(stages - s, microbatches) forwards whose backward has not run."""
    return Schedule(tuple(_rank(stage, min(stages - 1 - stage, microbatches), microbatches) for stage in range(stages)))


def _rank(stage: int, warm_up: int, microbatches: int) -> tuple[Action, ...]:
    actions = [Action(stage, FORWARD, m) for m in range(warm_up)]
    for m in range(microbatches):
        if warm_up + m < microbatches:
            actions.append(Action(stage, FORWARD, warm_up + m))
        actions.append(Action(stage, BACKWARD, m))
    return tuple(actions)
