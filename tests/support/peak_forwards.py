"""How many forwards a rank keeps the activations of."""

from simulator.strategies.pipeline.schedule import BACKWARD, BY_WEIGHT, FORWARD, Schedule


def peak_forwards(schedule: Schedule) -> list[int]:
    """The most forwards of each rank whose activations are alive at once: from the forward to the end of its backward by the weights."""
    peaks = []
    for actions in schedule.ranks:
        live = peak = 0
        for action in actions:
            live += action.kind == FORWARD
            peak = max(peak, live)
            live -= action.kind in (BACKWARD, BY_WEIGHT)
        peaks.append(peak)
    return peaks
