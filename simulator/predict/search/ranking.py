"""The evaluations of a search, ranked: step times with intervals, how probably each plan is the fastest, and why the best one wins.

All plans have common draws (`predict.intervals`): what they share cancels in every comparison. The error that remains when all costs are
right belongs to a strategy's family, so plans of one family share it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator.model.tokens import tokens_of
from simulator.predict.answers import least_measured
from simulator.predict.forecast import Forecast
from simulator.predict.intervals import DRAWS, Interval
from simulator.predict.search.evaluation import Evaluation, prunes
from simulator.predict.search.search import Search, margin
from simulator.predict.search.setup import Setup
from simulator.predict.target import references
from simulator.predict.waterfall import waterfall
from simulator.strategies.registry import family
from traces.documents.comparison import BASELINE, PARALLEL_LOOPS, PYTORCH
from traces.documents.search_result import PlainStep, PrunedPlan, RankedPlan, RefusedPlan, SearchResult
from traces.documents.timeline import Timeline
from traces.errors import Refusal, required


@dataclass(frozen=True)
class Ranking:
    """A search's document, and the timelines of the best plan and of the `rival`, if there are any."""

    result: SearchResult
    best: Timeline | None
    rival: Timeline | None


def rank(search: Search) -> Ranking:
    """Rank the plans of a search."""
    setup, job = search.setup, search.setup.job
    target = setup.target
    loops = [text for text in references(target.machine) if text in PARALLEL_LOOPS]
    known = [setup.answer(name) for name in (BASELINE, PYTORCH, *loops)]
    baseline, plain, *parallel = (None if isinstance(each, Refusal) else each for each in known)
    fitting = sorted((each for each in search.simulated if each.fits), key=lambda each: (each.at_limit, each.result.step_s))
    others = sorted((each for each in search.simulated if not each.fits), key=lambda each: each.result.step_s)
    compared = _comparisons([each for each in fitting if each.at_limit == fitting[0].at_limit])
    rows = [_row(each, setup, baseline, plain, compared.get(each.text, Compared())) for each in (*fitting, *others)]
    pruned = [each for each in search.evaluations if each.simulated is None and not each.refusal]
    rival = next((each for each in fitting if family(each.strategy) != family(fitting[0].strategy)), None)
    best_forecast, rival_forecast = (
        None if each is None else required(setup.answer(each.text)) for each in (fitting[0] if fitting else None, rival)
    )
    bounds = [each.known_bound.step_s for each in (*fitting, *pruned)]
    result = SearchResult(
        model=job.model,
        batch_size=job.batch,
        tokens=tokens_of(job),
        image_size=job.image_size,
        optimizer=f"{job.optimizer}:{job.form}",
        precision=job.precision,
        mode=target.mode,
        machine=target.machine.name,
        devices=len(target.machine.devices),
        candidates=len(search.evaluations),
        plans=tuple(rows),
        best=fitting[0].text if fitting else None,
        pruned=tuple(_pruned(each, [own for own in fitting if own.text in compared]) for each in pruned),
        refused=tuple(_refused(each.text, refusal) for each in search.evaluations if (refusal := each.refusal)),
        bound_s=min(bounds, default=None),
        baseline_step_s=baseline.timeline.step_s if baseline is not None else None,
        pytorch_step_s=plain.timeline.step_s if plain is not None else None,
        measured_share=least_measured([each for each in (best_forecast, baseline, plain) if each is not None]),
        pytorch=_plain(plain, setup) if plain is not None else None,
        parallel=tuple(_plain(each, setup) for each in parallel if each is not None),
        waterfall=_difference(baseline, best_forecast),
        rival=rival.text if rival is not None else None,
        rival_waterfall=_difference(rival_forecast, best_forecast),
    )
    best, other = (None if each is None else each.timeline for each in (best_forecast, rival_forecast))
    return Ranking(result, best, other)


class Compared(NamedTuple):
    """How a plan compares with the others: the fields of `RankedPlan` of these names."""

    probability: float = 0.0
    behind: float | None = None
    behind_interval: Interval | None = None


def _comparisons(fitting: Sequence[Evaluation]) -> dict[str, Compared]:
    """The comparisons by plan. Where several plans are equally fast in a draw, each gets its part of it."""
    if not fitting:
        return {}
    draws = np.array([each.draws() for each in fitting])
    fastest = draws == draws.min(axis=0)
    chances = (fastest / fastest.sum(axis=0)).sum(axis=1) / DRAWS
    low, high = np.quantile(draws / draws[0], (0.05, 0.95), axis=1)
    expected = [each.result.step_s / fitting[0].result.step_s for each in fitting]
    behind = [(min(float(a), e), max(float(b), e)) for a, b, e in zip(low, high, expected, strict=True)]
    several = zip(fitting, chances, expected, [None, *behind[1:]], strict=True)
    return {each.text: Compared(min(1.0, float(chance)), over, interval) for each, chance, over, interval in several}


def _plain(plain: Forecast, setup: Setup) -> PlainStep:
    return PlainStep(
        strategy=plain.plan.strategy,
        step_s=plain.timeline.step_s,
        interval_s=plain.interval_s,
        peak_bytes=max(plain.peak_bytes.values()),
        fits=plain.fits,
        at_limit=plain.at_limit,
        measured=setup.measured(plain.plan.strategy, plain.plan.options),
    )


def _row(each: Evaluation, setup: Setup, baseline: Forecast | None, plain: Forecast | None, compared: Compared) -> RankedPlan:
    simulated, setup = each.result, setup.of(each.text)[1]
    return RankedPlan(
        plan=each.text,
        strategy=each.strategy,
        options=dict(each.options),
        accumulate=setup.job.accumulate,
        checkpoint=setup.job.checkpoint,
        step_s=simulated.step_s,
        interval_s=simulated.interval_s,
        peak_bytes=max(simulated.peak_bytes.values()),
        peak_bytes_by_device=simulated.peak_bytes,
        fits=each.fits,
        speedup=_over(baseline, simulated.step_s),
        against_pytorch=_over(plain, simulated.step_s),
        behind=compared.behind,
        behind_interval=compared.behind_interval,
        probability=compared.probability,
        bound_s=each.known_bound.step_s,
        bound_by=each.known_bound.by,
        why_not=simulated.why_not,
        mfu=simulated.mfu,
        held_bytes=simulated.held_bytes,
        at_limit=each.at_limit,
        measured=setup.measured(each.strategy, each.options),
        semantics=simulated.semantics,
    )


def _refused(text: str, refusal: Refusal) -> RefusedPlan:
    return RefusedPlan(plan=text, why=refusal.words, excess_bytes=refusal.excess_bytes)


def _pruned(each: Evaluation, fitting: Sequence[Evaluation]) -> PrunedPlan:
    """A plan that was not simulated, and what beats it: the fastest plan of its strategy, of its family or of all, the first that does."""
    row = PrunedPlan(plan=each.text, bound_s=each.known_bound.step_s, bound_by=each.known_bound.by)
    for other in sorted(fitting, key=lambda other: margin(other.strategy, each.strategy)):  # stable: each margin's fastest first
        if prunes(row.bound_s, margin(other.strategy, each.strategy) * other.result.step_s):
            return row.model_copy(update={"beaten_by": other.text, "over": row.bound_s / other.result.step_s})
    return row


def _over(other: Forecast | None, step_s: float) -> float | None:
    return other.timeline.step_s / step_s if other is not None else None


def _difference(before: Forecast | None, after: Forecast | None):
    """Why the step of `after` is shorter or longer than that of `before`; empty if one is missing or both are one plan."""
    if before is None or after is None or before.parts is None or after.parts is None or before.plan == after.plan:
        return ()
    return waterfall(before.parts, after.parts)
