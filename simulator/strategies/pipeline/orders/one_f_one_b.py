"""1F1B: after a warm-up of forwards, one forward and one backward in turn, so that a stage keeps few activations.

"PipeDream: Generalized Pipeline Parallelism for DNN Training" (Narayanan et al., 2019); the synchronous form, which drains at the update,
is PipeDream-Flush (Narayanan et al., 2021) and DeepSpeed's TrainSchedule.
"""

from simulator.strategies.pipeline.schedule import BACKWARD, FORWARD, Action, Schedule


def order(stages: int, micro_batches: int) -> Schedule:
    """A stage on each rank. Stage s holds at most min(stages - s, micro_batches) forwards whose backward has not run."""
    return Schedule(tuple(_rank(stage, min(stages - 1 - stage, micro_batches), micro_batches) for stage in range(stages)))


def _rank(stage: int, warm_up: int, micro_batches: int) -> tuple[Action, ...]:
    actions = [Action(stage, FORWARD, m) for m in range(warm_up)]
    for m in range(micro_batches):
        if warm_up + m < micro_batches:
            actions.append(Action(stage, FORWARD, warm_up + m))
        actions.append(Action(stage, BACKWARD, m))
    return tuple(actions)
