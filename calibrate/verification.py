"""Runs the best plans of a search: chooses them, and checks their predicted order.

A search may rank by costs from datasheets or from another hour. So the cost keys of plans that may win are measured in one session first,
and the order by these costs decides. The plans that run then cover the families of strategies that may win: errors of predictions of one
family are correlated, so several plans of one family with equal predictions say little more than one of them.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean, median

from calibrate.planned import plan_calibrated
from calibrate.testbed import Progress, Testbed
from calibrate.validation import Outcome
from simulator.model.job import Job
from simulator.predict.answers import paired_interval
from simulator.predict.forecast import Forecast
from simulator.strategies.registry import family
from traces.documents.profile import Profile
from traces.documents.search_result import RankedPlan, SearchResult, Verification, VerifiedPlan
from traces.documents.verdict import SAME, is_busy, measured_speedup, verdict

#: Plans whose costs are measured for each one that runs, at most.
_MEASURED = 3


def worth_measuring(fitting: Sequence[RankedPlan], count: int) -> list[str]:
    """The plans of a search whose costs are worth measuring if `count` of them run.

    First comes the best plan, then the first one of each other family that may be faster, then the others in their order. Of equal plans,
    whose options change nothing on this machine, there is one.
    """
    different = list({(plan.strategy, plan.step_s, plan.peak_bytes): plan for plan in reversed(fitting)}.values())[::-1]
    firsts = {family(plan.strategy): plan for plan in reversed(different)}
    may_win = [plan for plan in different if plan is different[0] or (plan.tied and firsts[family(plan.strategy)] is plan)]
    order = dict.fromkeys(plan.plan for plan in (*may_win, *different))
    return list(order)[: max(len(may_win), _MEASURED * count)]


def measured_now(
    job: Job,
    texts: Sequence[str],
    shared: dict[str, str],
    profile: Profile,
    save_to: Path | None,
    testbed: Testbed,
    progress: Progress,
) -> dict[str, Forecast]:
    """Plan and predict `texts` with costs of this hour, by plan. Plans that cannot run are missing.

    On an interleaved testbed all keys are measured, roughly and side by side, and `profile` stays as it is: costs of different hours would
    favor one plan over another. On others, whose speed does not change so, the keys that `profile` lacks are added to it.
    """
    if testbed.interleaved:
        profile = profile.model_copy(deep=True, update={"costs": {}, "failures": {}})
    forecasts, _ = plan_calibrated(
        testbed, job, texts, shared_options=shared, profile=profile, calibrate=True, save_to=save_to, progress=progress, every=True
    )
    return forecasts


def shortlist(forecasts: Mapping[str, Forecast], count: int, first: str) -> list[str]:
    """The `count` plans to run, the fastest first; `first`, which the search put first, is one of them if there are several.

    Each family whose fastest plan may be faster than all others has a plan, up to `count`. Then come plans that differ from
    those of their family by more than `SAME`, then the others.
    """
    order = sorted(forecasts, key=lambda text: forecasts[text].timeline.step_s)
    fastest: dict[str, str] = {}
    for text in order:
        fastest.setdefault(family(text), text)
    may_win = [
        text for text in fastest.values() if text == order[0] or verdict(paired_interval(forecasts[order[0]], forecasts[text])) != "slower"
    ]
    chosen = [*may_win, *_different(order, may_win, forecasts)]
    chosen = [*chosen, *(text for text in order if text not in chosen)][:count]
    if first in forecasts and first not in chosen and count > 1:
        chosen[-1] = first
    return sorted(chosen, key=order.index)


def _different(order: Sequence[str], chosen: Sequence[str], forecasts: Mapping[str, Forecast]) -> list[str]:
    """The plans of `order` whose times differ from those of all plans of their family that are chosen before."""
    steps_s = {text: forecasts[text].timeline.step_s for text in order}
    taken = list(chosen)
    for text in order:
        alike = (other for other in taken if family(other) == family(text))
        if all(abs(steps_s[text] / steps_s[other] - 1) > SAME for other in alike):
            taken.append(text)
    return taken[len(chosen) :]


#: Step times by plan and round.
Rounds = Mapping[str, Sequence[Sequence[float]]]


def verified(result: SearchResult, texts: Sequence[str], outcome: Outcome) -> SearchResult:
    """The result of a search with what a validation measured of its plans `texts`; its `best` plan is the one measured fastest.

    On a busy machine nothing was measured, and the prediction stays.
    """
    by_text = {plan.plan: plan for plan in result.plans}
    checked = verification([by_text[text] for text in texts], outcome)
    best = result.best if is_busy(checked.busy_share) else checked.fastest or result.best
    return result.model_copy(update={"verification": checked, "best": best})


def verification(chosen: Sequence[RankedPlan], outcome: Outcome) -> Verification:
    """Compare the search's step times of the plans `chosen` with those that a validation of them measured."""
    measured = dict(zip(outcome.forecasts, outcome.validation.results, strict=False))  # skipped plans come after those that ran
    skipped = {(row.strategy, repr(row.options)): row.status for row in outcome.validation.results if not row.ok}
    rows = []
    for plan in chosen:
        row, predicted = measured.get(plan.plan), outcome.forecasts.get(plan.plan)
        why = skipped.get((plan.strategy, repr(plan.options)), "skipped: it did not run")
        rows.append(
            VerifiedPlan(
                plan=plan.plan,
                status=row.status if row is not None else why,
                predicted_step_s=plan.step_s,
                recalibrated_step_s=predicted.timeline.step_s if predicted is not None else None,
                measured_step_s=row.measured_step_s if row is not None else None,
                max_grad_error=row.max_grad_error if row is not None else None,
            )
        )
    return judged(rows, outcome.validation.aa_spread, outcome.steps_s, outcome.validation.busy_share)


def judged(
    rows: Sequence[VerifiedPlan], aa_spread: float | None, steps_s: Rounds | None = None, busy_share: float | None = None
) -> Verification:
    """The verdict on a ranking, from its rows. `steps_s`: the measured step times by plan and round, in rounds in which all plans ran."""
    predicted_s, recalibrated_s, measured_s = {}, {}, {}
    for row in rows:
        if row.measured_step_s is not None and row.recalibrated_step_s is not None:
            predicted_s[row.plan], recalibrated_s[row.plan] = row.predicted_step_s, row.recalibrated_step_s
            measured_s[row.plan] = row.measured_step_s
    predicted, chosen, fastest = (min(own, key=own.__getitem__, default=None) for own in (predicted_s, recalibrated_s, measured_s))
    rounds: Rounds = {plan: (steps_s or {}).get(plan, [[measured_s[plan]]]) for plan in measured_s}
    pairs = math.comb(len(rounds), 2)
    return Verification(
        plans=tuple(
            _against(row, rounds[fastest], rounds[row.plan], aa_spread, pairs) if fastest is not None and row.plan in rounds else row
            for row in rows
        ),
        tau=_tau(predicted_s, measured_s),
        recalibrated_tau=_tau(recalibrated_s, measured_s),
        predicted=predicted,
        chosen=chosen,
        fastest=fastest,
        regret=measured_s[chosen] / measured_s[fastest] - 1 if chosen is not None and fastest is not None else None,
        held_out_regret=held_out_regret(rounds),
        aa_spread=aa_spread,
        busy_share=busy_share,
    )


def _against(
    row: VerifiedPlan, fastest_s: Sequence[Sequence[float]], own_s: Sequence[Sequence[float]], aa_spread: float | None, pairs: int
) -> VerifiedPlan:
    """The row with the plan's step over that of the plan measured fastest. Its interval is valid for all `pairs` of plans together."""
    over = measured_speedup(own_s, fastest_s, aa_spread or 0.0, max(1, pairs))
    interval = over.interval if own_s is not fastest_s else None
    return row.model_copy(update={"behind": over.value, "behind_interval": interval})


def held_out_regret(rounds: Rounds) -> float | None:
    """How much longer than the fastest plan of one half of the rounds the plan takes there that is the fastest in the other half.

    The mean of both ways: what choosing by as many measurements costs, judged by others. None for fewer than two plans or two rounds.
    """
    count = min(map(len, rounds.values()), default=0)
    if len(rounds) < 2 or count < 2:
        return None
    halves = [{plan: median(chain(*steps[half::2])) for plan, steps in rounds.items()} for half in (0, 1)]
    return fmean(judge[min(choose, key=choose.__getitem__)] / min(judge.values()) - 1 for choose, judge in (halves, halves[::-1]))


def _tau(predicted_s: Mapping[str, float], measured_s: Mapping[str, float]) -> float | None:
    """Kendall's tau-b; None for fewer than two plans, or if all are equally fast."""
    if len(predicted_s) < 2:
        return None
    from scipy.stats import kendalltau  # here, because it takes half a second to load

    tau = float(kendalltau(list(predicted_s.values()), [measured_s[plan] for plan in predicted_s]).statistic)
    return None if tau != tau else tau
