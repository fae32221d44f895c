"""GPipe: all forwards, then all backwards. "GPipe: Efficient Training of Giant Neural Networks" (Huang et al., 2019)."""

from simulator.strategies.pipeline.schedule import BACKWARD, FORWARD, Action, Schedule


def order(stages: int, micro_batches: int) -> Schedule:
    """A stage on each rank. With one micro-batch this is plain model parallelism.

    Backwards run in the order of the forwards, as torch's ScheduleGPipe does.
    """
    return Schedule(
        tuple(tuple(Action(stage, kind, m) for kind in (FORWARD, BACKWARD) for m in range(micro_batches)) for stage in range(stages))
    )
