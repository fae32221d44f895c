"""An exact search for the shortest schedule of a small pipeline, one stage a rank, whose actions F, I and W take one unit of time."""

from itertools import count, product

#: What each rank has done: its numbers of forwards, gradients by the input and gradients by the weights.
State = tuple[tuple[int, int, int], ...]


def shortest(stages: int, microbatches: int, most_alive: int | None = None) -> int:
    """The least makespan of any schedule in which a rank never holds more than `most_alive` forwards whose W has not run."""
    start: State = ((0, 0, 0),) * stages
    return next(units for units in count(_least(start, microbatches)) if _fits(start, microbatches, units, most_alive, set()))


def _fits(state: State, microbatches: int, units: int, most_alive: int | None, failed: set[tuple[State, int]]) -> bool:
    """Whether the rest of the schedule fits into `units`. `failed` has the states of which it is known that theirs does not."""
    if _least(state, microbatches) > units:
        return False
    if units == 0:
        return True
    if (state, units) in failed:
        return False
    for choice in product(*(_choices(state, stage, microbatches, most_alive) for stage in range(len(state)))):
        after = tuple(tuple(n + (place == kind) for place, n in enumerate(done)) for done, kind in zip(state, choice, strict=True))
        if _fits(after, microbatches, units - 1, most_alive, failed):
            return True
    failed.add((state, units))
    return False


def _choices(state: State, stage: int, microbatches: int, most_alive: int | None) -> list[int | None]:
    """What a rank may do next: 0 for F, 1 for I, 2 for W, None to wait. Choices that never beat the others are left out."""
    forwards, inputs, weights = state[stage]
    has_forward = forwards < (state[stage - 1][0] if stage else microbatches)
    has_forward &= most_alive is None or forwards - weights < most_alive
    has_input = inputs < (state[stage + 1][1] if stage + 1 < len(state) else forwards)
    choices: list[int | None] = [kind for kind, possible in ((1, has_input), (0, has_forward)) if possible]
    if weights < inputs and (most_alive is not None or not choices):  # without a bound, W may always come later
        choices.append(2)
    if most_alive is not None and choices in ([], [0]):  # a forward that comes earlier may take the room of another
        choices.append(None)
    return choices or [None]


def _least(state: State, microbatches: int) -> int:
    """Units that the rest takes at least: on each rank, what is left, and what nothing can fill of the time until its next input."""
    least = 0
    for stage, (forwards, inputs, weights) in enumerate(state):
        left = 3 * microbatches - forwards - inputs - weights
        least = max(least, left)
        if inputs < microbatches:
            before = sum(done[0] <= inputs for done in state) + sum(done[1] <= inputs for done in state[stage + 1 :])
            least = max(least, before + left - min(before, microbatches - forwards + inputs - weights))
        if forwards < microbatches:
            before = sum(done[0] <= forwards for done in state[:stage])
            least = max(least, before + left - min(before, 2 * forwards - inputs - weights))
    return least
