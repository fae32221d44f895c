"""Zero-bubble pipelines: a backward is split in two, and gradients by the weights fill what would be bubbles.

"Zero Bubble Pipeline Parallelism" (Qi et al., 2023); the V shape, in which a rank runs a stage of either half, is "Pipeline Parallelism
with Controllable Memory" (Qi et al., 2024). The order comes from a search: a greedy scheduler, in which every rank runs, whenever it is
free, the action that its rule prefers among those that it can run, tries several rules, first the same rule on all ranks, then with the
rule of one rank changed at a time.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate, islice, product
from typing import Literal, NamedTuple

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies.pipeline.planning import (
    FUSED,
    ScheduledOptions,
    combined,
    cut,
    devices_of,
    holders_of,
    microbatch_texts,
    microbatches_in,
    named,
    op_seconds,
    refuse_clipping,
    scheduled,
    scheduled_by_file,
    stages_in,
)
from simulator.strategies.pipeline.schedule import BY_INPUT, BY_WEIGHT, FORWARD, Action, Schedule
from traces.errors import SchedcastError


@dataclass(frozen=True)
class Problem:
    """What is to be scheduled: forwards and both halves of the backwards of all stages and microbatches."""

    microbatches: int
    #: The rank of each stage.
    rank_of: tuple[int, ...]
    #: Seconds of an action by its kind, then its stage.
    seconds: dict[str, tuple[float, ...]]
    #: The most forwards whose activations a rank may store at a time; at least the number of its stages. math.inf for any number.
    most_alive: float

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each rank."""
        ranks = 1 + max(self.rank_of)
        return tuple(tuple(stage for stage, rank in enumerate(self.rank_of) if rank == r) for r in range(ranks))

    @cached_property
    def least_s(self) -> float:
        """Seconds that no schedule is shorter than.

        Until the first gradient reaches a rank, the rank has only forwards to run; afterwards it has the rest of its work.
        """
        forward, by_input, by_weight = (self.seconds[kind] for kind in (FORWARD, BY_INPUT, BY_WEIGHT))
        arrival = list(accumulate(forward[:-1], initial=0.0))
        gradient = list(accumulate(reversed(by_input[1:]), initial=arrival[-1] + forward[-1]))[::-1]
        least = gradient[0] + by_input[0] + by_weight[0]
        for own in self.stages_of:
            work = sum(self.microbatches * (forward[s] + by_input[s] + by_weight[s]) for s in own)
            start, first = min(arrival[s] for s in own), min(gradient[s] for s in own)
            longest = sorted((forward[s] for s in own for _ in range(self.microbatches)), reverse=True)
            before = sum(longest[: int(min(self.most_alive, len(longest)))])
            least = max(least, first + work - min(before, first - start))
        return least


#: Which of a rank's stages goes first: the latest or the earliest.
LATER, EARLIER = "later", "earlier"


class Rule(NamedTuple):
    """What a rank does if there are several actions that it can run."""

    #: A forward goes before a gradient by the input as long as the rank has run fewer forwards ahead of its gradients than this many for
    #: each rank from it to the last.
    ahead: float
    #: A gradient by the weights goes before a forward if more of them wait.
    postponed: float
    #: A gradient by the weights fills the time until the next result arrives if that is at least this part of its length.
    fill: float
    #: Which of its stages a rank prefers for gradients by the input; for forwards it is the latest.
    gradients: str


class _Order(NamedTuple):
    """The actions of each rank in order, and when the last one ends."""

    ranks: tuple[tuple[Action, ...], ...]
    end_s: float


class _Run:
    """One schedule being built, in which each rank follows its rule of `rules`.

    Every stage takes its microbatches in order, so that counts say what is done.
    """

    def __init__(self, problem: Problem, rules: tuple[Rule, ...]):
        stages = len(problem.rank_of)
        self.problem, self.rules = problem, rules
        self.done = {kind: [0] * stages for kind in (FORWARD, BY_INPUT, BY_WEIGHT)}
        #: When the input of each stage's next forwards, and the gradient for its next backwards, are there; those known so far.
        self.arrivals_s: dict[str, list[deque[float]]] = {kind: [deque() for _ in range(stages)] for kind in (FORWARD, BY_INPUT)}
        self.arrivals_s[FORWARD][0].extend([0.0] * problem.microbatches)
        self.orders: list[list[Action]] = [[] for _ in problem.stages_of]
        #: The stages whose gradients by the weights wait, oldest first.
        self.postponed: list[deque[int]] = [deque() for _ in problem.stages_of]
        self.free_s = [0.0] * len(self.orders)
        self.alive = [0] * len(self.orders)
        self.events = [(0.0, rank) for rank in range(len(self.orders))]

    def order(self) -> _Order:
        while self.events:
            now_s, rank = heappop(self.events)
            if self.free_s[rank] <= now_s:
                action = self._choice(rank, now_s)
                if action is not None:
                    self._start(rank, now_s, *action)
        return _Order(tuple(map(tuple, self.orders)), max(self.free_s))

    def _choice(self, rank: int, now_s: float) -> tuple[str, int] | None:
        """The kind and the stage of what `rank` starts now; None to wait for a result."""
        rule = self.rules[rank]
        backward, next_backward_s = self._first(rank, BY_INPUT, now_s, rule.gradients)
        forward, next_forward_s = self._first(rank, FORWARD, now_s, LATER)
        waiting = self.postponed[rank]
        if backward is not None and (forward is None or not self._is_early(rank, rule)):
            return BY_INPUT, backward
        if forward is not None and len(waiting) <= rule.postponed:
            return FORWARD, forward
        if waiting:
            idle_s = min(next_backward_s, next_forward_s) - now_s
            if forward is not None or idle_s >= rule.fill * self.problem.seconds[BY_WEIGHT][waiting[0]]:
                return BY_WEIGHT, waiting[0]
        return None

    def _first(self, rank: int, kind: str, now_s: float, preferred: str) -> tuple[int | None, float]:
        """The stage of `rank` that can start an action of `kind`, if any does; and when the next result for one arrives."""
        own = self.problem.stages_of[rank]
        room = self.problem.most_alive - self.alive[rank] if kind == FORWARD else math.inf
        next_s = math.inf
        for place in range(len(own)) if preferred == EARLIER else reversed(range(len(own))):
            arrivals_s = self.arrivals_s[kind][own[place]]
            # A forward leaves room for one forward of each later stage of its rank: these come first to free their memory.
            if arrivals_s and room >= len(own) - place:
                if arrivals_s[0] <= now_s:
                    return own[place], next_s
                next_s = min(next_s, arrivals_s[0])
        return None, next_s

    def _is_early(self, rank: int, rule: Rule) -> bool:
        own = self.problem.stages_of[rank]
        ahead = sum(self.done[FORWARD][s] - self.done[BY_INPUT][s] for s in own)
        return ahead < rule.ahead * (len(self.orders) - rank)

    def _start(self, rank: int, now_s: float, kind: str, stage: int) -> None:
        microbatch = self.done[kind][stage]
        self.done[kind][stage] += 1
        self.orders[rank].append(Action(stage, kind, microbatch))
        end_s = self.free_s[rank] = now_s + self.problem.seconds[kind][stage]
        heappush(self.events, (end_s, rank))
        if kind == FORWARD:
            self.alive[rank] += 1
            self.arrivals_s[FORWARD][stage].popleft()
            if stage + 1 < len(self.problem.rank_of):
                self._send(FORWARD, stage + 1, end_s)
            else:
                self._send(BY_INPUT, stage, end_s)
        elif kind == BY_INPUT:
            self.arrivals_s[BY_INPUT][stage].popleft()
            self.postponed[rank].append(stage)
            if stage:
                self._send(BY_INPUT, stage - 1, end_s)
        else:
            self.postponed[rank].popleft()
            self.alive[rank] -= 1

    def _send(self, kind: str, to: int, end_s: float) -> None:
        self.arrivals_s[kind][to].append(end_s)
        heappush(self.events, (end_s, self.problem.rank_of[to]))


#: Where the stages are. straight: stage s on rank s. v: two on each rank, the first half of the stages on the ranks in order, the second
#: half in reverse.
STRAIGHT, V = "straight", "v"
#: Values of the rules, the most promising first; fewer of them where a rank has several stages and the search has to choose among these.
_AHEAD, _AHEAD_OF_SEVERAL = (1.0, 0.0, 2.0, math.inf), (0.0, math.inf)
_POSTPONED, _FILL = (math.inf, 1.0, 3.0), (0.3, 1.0, 0.0)
#: The stages that a rank prefers for gradients.
_PREFERRED = {STRAIGHT: (LATER,), V: (LATER, EARLIER)}
#: Actions that the search puts in order at most, summed over its schedules. They take about half a second.
_MOST_ACTIONS = 60_000
#: Schedules are this close to the least time that any can have, relatively, when the search ends early.
_CLOSE = 1e-9


def order(
    stages: int,
    microbatches: int,
    seconds: Callable[[Action], float] = lambda action: 1.0,
    most_alive: int | None = None,
    shape: Literal["straight", "v"] = "straight",
) -> Schedule:
    """The shortest schedule that the search meets, if results reach other ranks at once.

    `seconds` gives the length of the actions of kinds F, I and W; the lengths for microbatch 0 count. A rank stores the activations of at
    most `most_alive` forwards, each until its W ends (None: of any number). `most_alive=stages` is the memory of 1F1B, in both shapes: a
    rank with two stages has stages of half the size.

    Raises SchedcastError if the number of stages, or `most_alive`, cannot be.

    >>> from simulator.strategies.pipeline.grid_csv import write
    >>> print(write(order(stages=3, microbatches=3)), end="")
    0F0,0F1,0F2,,,0I0,0W0,0I1,0W1,0I2,0W2
    ,1F0,1F1,1F2,1I0,1W0,1I1,1W1,1I2,1W2
    ,,2F0,2I0,2F1,2I1,2F2,2I2,2W0,2W1,2W2
    """
    per_rank = 2 if shape == V else 1
    if stages < 1 or stages % per_rank:
        raise SchedcastError(f"a {shape} schedule has {per_rank} stages on each rank, got {stages} stages; choose a multiple of {per_rank}")
    if most_alive is not None and most_alive < per_rank:
        raise SchedcastError(
            f"a rank cannot work with {most_alive} forwards alive; expected at least {per_rank}, one for each of its stages"
        )
    ranks = stages // per_rank
    rank_of = tuple(stage if stage < ranks else stages - 1 - stage for stage in range(stages))
    lengths = {kind: tuple(seconds(Action(stage, kind, 0)) for stage in range(stages)) for kind in (FORWARD, BY_INPUT, BY_WEIGHT)}
    problem = Problem(microbatches, rank_of, lengths, math.inf if most_alive is None else most_alive)
    return Schedule(_best(problem, list(_rules(shape))).ranks)


def _best(problem: Problem, rules: list[Rule]) -> _Order:
    """The shortest of the plans that the search has time for."""
    ranks = len(problem.stages_of)
    plans_left = max(1, _MOST_ACTIONS // (3 * len(problem.rank_of) * problem.microbatches))
    rules_of = (rules[0],) * ranks
    best = _Run(problem, rules_of).order()
    close_s = problem.least_s * (1 + _CLOSE)
    for rule in rules[1:plans_left]:
        if best.end_s <= close_s:
            break
        other = _Run(problem, (rule,) * ranks).order()
        if other.end_s < best.end_s:
            best, rules_of = other, (rule,) * ranks
    changes = ((rank, rule) for rank in range(ranks) for rule in _neighbors(rules_of[rank]))
    for rank, rule in islice(changes, max(0, plans_left - len(rules))):
        if best.end_s <= close_s:
            break
        changed = (*rules_of[:rank], rule, *rules_of[rank + 1 :])
        other = _Run(problem, changed).order()
        if other.end_s < best.end_s:
            best, rules_of = other, changed
    return best


def _rules(shape: str) -> Iterator[Rule]:
    aheads = _AHEAD if shape == STRAIGHT else _AHEAD_OF_SEVERAL
    for postponed, ahead, fill, gradients in product(_POSTPONED, aheads, _FILL, _PREFERRED[shape]):
        yield Rule(ahead, postponed, fill, gradients)


def _neighbors(rule: Rule) -> Iterator[Rule]:
    yield from (rule._replace(ahead=value) for value in _AHEAD if value != rule.ahead)
    yield from (rule._replace(postponed=value) for value in _POSTPONED if value != rule.postponed)
    yield from (rule._replace(fill=value) for value in _FILL if value != rule.fill)


NAME = "zero-bubble"
FAMILY = "pipelines"
ABOUT = "pipeline whose backward is split: gradients by the weights wait until a stage would be idle"
USES_COSTS = True
LEAST_DEVICES = 2


@dataclass(frozen=True)
class Options(ScheduledOptions):
    """How the model is cut, and what a stage may store."""

    memory: Literal["1f1b", "free"] = "1f1b"
    """Activations that a device may store: as many as with 1f1b, or any number, which leaves fewer bubbles."""
    shape: Literal["straight", "v"] = "straight"
    """straight: one stage on each device; v: two, the second half of the stages in reverse, so that the first device has the loss."""


def candidates(job: Job, machine: Machine) -> tuple[str, ...]:
    """Numbers of microbatches, the memory, the shape, and backward-fusion."""
    return combined(microbatch_texts(job, machine), ("memory=free",), ("shape=v",), FUSED)


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Order the halves of all backwards by their predicted times. Raises SchedcastError for unusable options."""
    if options.schedule:
        return scheduled_by_file(NAME, job, machine, costs, options)
    refuse_clipping(job, NAME)
    per_device = 2 if options.shape == V else 1
    stages = stages_in(options, NAME)
    if stages % per_device:
        raise SchedcastError(f"{NAME}:shape=v has two stages on each device; {stages} stages do not divide; choose an even number")
    devices = devices_of(machine, stages // per_device, NAME, options)
    ranks = len(devices) // holders_of(options)
    stages = ranks * per_device
    microbatches = microbatches_in(job, options, ranks)
    with named(NAME):
        cut_graph = cut(job, machine, costs, options, stages, microbatches)
    seconds = op_seconds(job, machine, costs, cut_graph.graph)

    def seconds_of(action: Action) -> float:
        return sum(seconds[index] for index in cut_graph.chunks[action.stage, action.kind])

    most = stages if options.memory == "1f1b" else None
    schedule = order(stages, microbatches, seconds_of, most, options.shape)
    return scheduled(NAME, job, machine, options=options, schedule=schedule, devices=devices, cut_graph=cut_graph)
