"""Zero-bubble schedules: each backward is split, and gradients by the weights fill what would be bubbles.

"Zero Bubble Pipeline Parallelism" (Qi et al., 2023); the V shape, in which a rank runs a stage of either half, is "Pipeline Parallelism
with Controllable Memory" (Qi et al., 2024). The order comes from a search: a greedy scheduler runs with several rules for what a rank does
next, first the same rule on all ranks, then with the rule of one rank changed at a time.
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice, product

from simulator.strategies.pipeline.greedy import EARLIER, LATER, ROUNDS, Plan, Problem, Rule, plan
from simulator.strategies.pipeline.schedule import BY_INPUT, BY_WEIGHT, FORWARD, Action, Schedule
from traces.errors import SchedcastError, UnknownNameError

#: Where the stages lie. straight: stage s on rank s. looped: stage s on rank s % ranks, several on each rank. v: two on each rank, the
#: first half of the stages on the ranks in order, the second half in reverse.
STRAIGHT, LOOPED, V = SHAPES = ("straight", "looped", "v")
#: Values of the rules, the most promising first; fewer of them where a rank has several stages and the search has to choose among these.
_AHEAD, _AHEAD_OF_SEVERAL = (1.0, 0.0, 2.0, math.inf), (0.0, math.inf)
_POSTPONED, _FILL = (math.inf, 1.0, 3.0), (0.3, 1.0, 0.0)
#: The stages that a rank prefers, for forwards and for gradients.
_PREFERRED = {
    STRAIGHT: ((LATER, LATER),),
    LOOPED: ((ROUNDS, ROUNDS), (EARLIER, LATER), (LATER, LATER)),
    V: ((LATER, LATER), (LATER, EARLIER)),
}
#: Actions that the search puts in order at most, summed over its schedules. They take about half a second.
_MOST_ACTIONS = 60_000
#: Schedules are this close to the least time that any can have, relatively, when the search ends early.
_CLOSE = 1e-9


def order(
    stages: int,
    micro_batches: int,
    seconds: Callable[[Action], float] = lambda action: 1.0,
    most_alive: int | None = None,
    shape: str = STRAIGHT,
    transfer_s: float = 0.0,
    per_rank: int = 2,
) -> Schedule:
    """The shortest schedule that the search meets.

    `seconds` gives the length of the actions of kinds F, I and W; the lengths for micro-batch 0 count. A result reaches another rank
    `transfer_s` after its action ends. A rank holds the activations of at most `most_alive` forwards, each until its W ends (None: of any
    number). `most_alive=stages` is the memory of 1F1B, in all shapes: a rank with two stages has stages of half the size. `per_rank` counts
    in the looped shape alone.

    Raises SchedcastError if `shape` or `most_alive` cannot be.
    """
    problem = _problem(stages, micro_batches, seconds, most_alive, _ranks(stages, shape, per_rank), transfer_s)
    return Schedule(_best(problem, list(_rules(shape))).ranks)


def _best(problem: Problem, rules: list[Rule]) -> Plan:
    """The shortest of the plans that the search has time for."""
    ranks = len(problem.stages_of)
    plans_left = max(1, _MOST_ACTIONS // (3 * len(problem.rank_of) * problem.micro_batches))
    best, rules_of = None, ()
    for rule in rules[:plans_left]:
        other = plan(problem, (rule,) * ranks)
        if best is None or other.end_s < best.end_s:
            best, rules_of = other, (rule,) * ranks
        if best.end_s <= problem.least_s * (1 + _CLOSE):
            return best
    changes = ((rank, rule) for rank in range(ranks) for rule in _neighbors(rules_of[rank]))
    for rank, rule in islice(changes, max(0, plans_left - len(rules))):
        other = plan(problem, (*rules_of[:rank], rule, *rules_of[rank + 1 :]))
        if other.end_s < best.end_s:
            best, rules_of = other, (*rules_of[:rank], rule, *rules_of[rank + 1 :])
        if best.end_s <= problem.least_s * (1 + _CLOSE):
            break
    return best


def _rules(shape: str) -> Iterator[Rule]:
    aheads = _AHEAD if shape == STRAIGHT else _AHEAD_OF_SEVERAL
    for postponed, ahead, fill, (forwards, gradients) in product(_POSTPONED, aheads, _FILL, _PREFERRED[shape]):
        yield Rule(ahead, postponed, fill, forwards, gradients)


def _neighbors(rule: Rule) -> Iterator[Rule]:
    yield from (rule._replace(ahead=value) for value in _AHEAD if value != rule.ahead)
    yield from (rule._replace(postponed=value) for value in _POSTPONED if value != rule.postponed)
    yield from (rule._replace(fill=value) for value in _FILL if value != rule.fill)


def _ranks(stages: int, shape: str, per_rank: int) -> tuple[int, ...]:
    """The rank of each stage."""
    if shape not in SHAPES:
        raise UnknownNameError("shape", shape, SHAPES)
    per_rank = {STRAIGHT: 1, LOOPED: per_rank, V: 2}[shape]
    if stages < 1 or stages % per_rank:
        raise SchedcastError(f"a {shape} schedule has {per_rank} stages on each rank, got {stages} stages; choose a multiple of {per_rank}")
    ranks = stages // per_rank
    return tuple(stages - 1 - stage if shape == V and stage >= ranks else stage % ranks for stage in range(stages))


def _problem(
    stages: int,
    micro_batches: int,
    seconds: Callable[[Action], float],
    most_alive: int | None,
    rank_of: tuple[int, ...],
    transfer_s: float,
) -> Problem:
    per_rank = rank_of.count(0)
    if most_alive is not None and most_alive < per_rank:
        raise SchedcastError(
            f"a rank cannot work with {most_alive} forwards alive; expected at least {per_rank}, one for each of its stages"
        )
    lengths = {kind: tuple(seconds(Action(stage, kind, 0)) for stage in range(stages)) for kind in (FORWARD, BY_INPUT, BY_WEIGHT)}
    return Problem(micro_batches, rank_of, lengths, math.inf if most_alive is None else most_alive, transfer_s)
