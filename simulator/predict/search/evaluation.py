"""One candidate of a search: planned, bounded, and simulated unless its bound shows that it cannot win."""

from collections.abc import Mapping, Sequence
from math import hypot
from typing import Any

import numpy as np

from simulator.engine.memory.contents import holders_words, shortfall_words
from simulator.engine.memory.over_time import TooLargeError, excess_bytes, least_bytes, memory_needs
from simulator.engine.steady import EQUAL
from simulator.engine.utilization import planned_mfu
from simulator.machine.machine import Machine
from simulator.model.job import GraphArguments
from simulator.predict.discrepancy import shipped_speedup_discrepancy, speedup_accuracy
from simulator.predict.forecast import Forecast, forecast, plan_of
from simulator.predict.intervals import Interval, Sensitivity, WeightedSensitivity, factors, most, step_interval
from simulator.predict.search.bound import DEPENDENCIES, Bound, lower_bound, together, work_bound
from simulator.predict.search.least import Least, least_of
from simulator.predict.search.setup import GraphMissingError, Setup, unpacked
from simulator.predict.search.variants import split
from simulator.strategies import registry as strategies
from simulator.strategies.options import option_values
from traces.documents.base import Data
from traces.documents.comparison import MemoryNeed
from traces.errors import Refusal, SchedcastError
from traces.process import gc_paused

#: Share of a bound that counts: the rest is rounding.
_COUNTS = 1.0 - EQUAL


class Simulated(Data):
    """The result of a plan's simulation. `guessed`: `Forecast.from_specifications`; `discrepancy`, `accuracy`: those of the `Forecast`.

    `why_not`: why it does not fit in memory, or "". `held_bytes`: by kind, the bytes allocated on the fullest device at its peak.
    """

    step_s: float
    kind: str
    mode: str
    guessed: float
    discrepancy: float
    accuracy: float
    sensitivity: Sensitivity | WeightedSensitivity
    peak_bytes: dict[str, int]
    memories: tuple[MemoryNeed, ...]
    semantics: dict[str, Any]
    why_not: str = ""
    mfu: float | None = None
    held_bytes: dict[str, int] = {}

    @property
    def interval_s(self) -> Interval:
        """The 90 % interval of the step time, as `Forecast.interval_s`."""
        return step_interval(self.sensitivity, self.discrepancy, self.accuracy)

    def draws(self) -> np.ndarray:
        """Draws of the step time in seconds: those of common draws for all plans (`predict.intervals`)."""
        return self.sensitivity.draws()


class Evaluation(Data):
    """What is known of one candidate.

    `bound`: the lower bound of its step time; None if it has no plan, and then there is a `refusal`. `work_s`: the smaller
    `bound.work_bound`, which is checked first. `least`: what was known before it was planned. `planned_bytes`: the least that its plan
    allocates in the memory that it fills most. `simulated`: None if it has no plan, or if its bound is so high that it was not simulated.
    """

    text: str
    strategy: str
    options: dict[str, Any]
    refusal: Refusal | None = None
    bound: Bound | None = None
    work_s: float | None = None
    least: Least | None = None
    planned_bytes: int | None = None
    simulated: Simulated | None = None

    @property
    def fits(self) -> bool:
        """Whether it was simulated and fits in memory."""
        return self.simulated is not None and not self.simulated.why_not

    @property
    def result(self) -> Simulated:
        """What its simulation says. Raises ValueError if it was not simulated."""
        if self.simulated is None:
            raise ValueError(f"{self.text} was not simulated")
        return self.simulated

    @property
    def known_bound(self) -> Bound:
        """`bound`. Raises ValueError if it has no plan."""
        if self.bound is None:
            raise ValueError(f"{self.text} has no plan")
        return self.bound

    @property
    def at_limit(self) -> bool:
        """Whether it fits, but leaves so little memory free that its step time is uncertain."""
        return self.fits and any(need.at_limit for need in self.result.memories)

    def draws(self) -> np.ndarray:
        """Draws of the step time in seconds for comparisons: with the individual error of its strategy, which all its plans share."""
        simulated = self.result
        own = shipped_speedup_discrepancy(self.strategy, simulated.kind, simulated.mode) if self.strategy != "baseline" else 0.0
        accuracy = simulated.guessed * speedup_accuracy(self.strategy) if self.strategy != "baseline" else 0.0
        return simulated.draws() * factors(f"steps of {strategies.family(self.strategy)}", hypot(own, accuracy))

    def pruned_at(self, most_s: float | None) -> "Evaluation | None":
        """An evaluation by another search, as a search that prunes above `most_s` seconds returns it; None if it must be simulated."""
        if self.refusal:
            return self
        smaller = (bound_s for bound_s in (self.least and self.least.step_s, self.work_s) if bound_s is not None)
        for bound in (*(Bound(bound_s, DEPENDENCIES) for bound_s in smaller), self.bound):
            if bound is not None and prunes(bound.step_s, most_s):
                return self.model_copy(update={"bound": bound, "simulated": None})
        return self if self.simulated is not None else None

    def refused(self, error: SchedcastError) -> "Evaluation":
        """This evaluation of a candidate that cannot be planned, or cannot fit."""
        return self.model_copy(update={"refusal": Refusal.by(error), "bound": None})


def prunes(bound_s: float, most_s: float | None) -> bool:
    """Whether a plan with this lower bound cannot take as little as `most_s` seconds."""
    return most_s is not None and bound_s * _COUNTS > most_s


def least_packed(packed: bytes, texts: Sequence[str]) -> list[Least | None]:
    """`least_of` of candidates, in any process."""
    with gc_paused():
        return [least_of(unpacked(packed), text) for text in texts]


def evaluate_packed(packed: bytes, text: str, most_s: float | None, least: Least | None = None) -> Evaluation | GraphArguments:
    """`evaluate` in any process. A graph that is missing is returned as the arguments of `Job.graph` that capture it."""
    try:
        with gc_paused():  # once: each end of a pause walks the heap
            return evaluate(unpacked(packed), text, most_s, least)
    except GraphMissingError as error:
        return error.wanted


def decided(setup: Setup, text: str, most_s: float, least: Least) -> Evaluation | None:
    """The evaluation of a candidate that is refused or pruned because of its lower bounds; None if it must be planned."""
    begun = unplanned(setup, text, least)
    try:
        _checked({setup.target.machine.devices[0].memory: least.held_bytes}, setup.target.machine)
    except TooLargeError as error:
        return begun.refused(error)
    return begun.model_copy(update={"bound": Bound(least.step_s, DEPENDENCIES)}) if prunes(least.step_s, most_s) else None


def evaluate(setup: Setup, text: str, most_s: float | None = None, least: Least | None = None) -> Evaluation:
    """Plan the candidate `text` (see `variants`), bound it, and simulate it unless it is pruned at `most_s` seconds.

    Unless `most_s` is None, a plan that cannot fit in memory is refused without a simulation. `least`: `least_of` the candidate.
    """
    begun = unplanned(setup, text, least)
    try:
        text, setup = setup.of(text)
        target = setup.target
        plan = plan_of(setup.job, text, target, setup.shared, compact=True)
        running = target.running(plan)
        if most_s is not None:
            held = _checked(most([least_bytes(part, running.machine) for part in plan.sequence]), running.machine)
            begun = begun.model_copy(update={"planned_bytes": held})
        parts = [(part.iterations or 1, running.scenario(part)) for part in plan.sequence]
        bound = together([(count, work_bound(scenario)) for count, scenario in parts])
        begun = begun.model_copy(update={"bound": bound, "work_s": bound.step_s})
        if prunes(bound.step_s, most_s):
            return begun
        if plan.repeat is None:  # else this bound is that of the microbatches that the plan shows
            bound = together([(count, lower_bound(scenario)) for count, scenario in parts])
        begun = begun.model_copy(update={"bound": bound})
        if prunes(bound.step_s, most_s):
            return begun
        return begun.model_copy(update={"simulated": _simulated(forecast(plan, target))})
    except SchedcastError as error:
        return begun.refused(error)


def unplanned(setup: Setup, text: str, least: Least | None = None) -> Evaluation:
    """The evaluation of a candidate that was not planned yet."""
    strategy, options = strategies.parse(split(text)[0], setup.shared)
    return Evaluation(text=text, strategy=strategy.name, options=option_values(options), least=least)


def _checked(held_bytes: Mapping[str, int], machine: Machine) -> int:
    """A lower bound of the bytes that a plan allocates, for the memory that it fills most.

    Raises TooLargeError if a memory is too small, so that the plan need not be simulated.
    """
    needs = memory_needs(held_bytes, machine)
    if (excess := excess_bytes(needs)) > 0:
        raise TooLargeError(f"{shortfall_words(needs).replace('needs', 'needs at least', 1)}", excess)
    return max(held_bytes.values())


def _simulated(predicted: Forecast) -> Simulated:
    timeline = predicted.timeline
    why_not = "" if predicted.fits else f"{shortfall_words(predicted.memories)}; {holders_words(predicted.at_peak)}"
    return Simulated(
        step_s=timeline.step_s,
        kind=predicted.kind,
        mode=timeline.mode,
        guessed=predicted.from_specifications,
        discrepancy=predicted.discrepancy,
        accuracy=predicted.accuracy,
        sensitivity=predicted.sensitivity,
        peak_bytes=predicted.peak_bytes,
        memories=predicted.memories,
        semantics=dict(predicted.plan.semantics),
        why_not=why_not,
        mfu=planned_mfu(predicted.plan, predicted.machine, timeline.step_s, predicted.float32),
        held_bytes=dict(max(predicted.at_peak, key=lambda peak: peak.bytes).by_kind) if predicted.at_peak else {},
    )
