"""Runs the best plans of a search, and says how their ranking held."""

from collections.abc import Mapping, Sequence

from calibrate.validation import Outcome
from traces.search_result import RankedPlan, Verification, VerifiedPlan


def shortlist(fitting: Sequence[RankedPlan], count: int) -> list[RankedPlan]:
    """The `count` best plans to run. Of equal plans, whose options change nothing on this machine, one runs."""
    different = {(plan.strategy, plan.step_s, plan.peak_bytes): plan for plan in reversed(fitting)}
    return list(reversed(different.values()))[:count]


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
    return judged(rows, outcome.validation.aa_spread)


def judged(rows: Sequence[VerifiedPlan], aa_spread: float | None) -> Verification:
    """The verdict on a ranking, from its rows."""
    ran = [row for row in rows if row.measured_step_s is not None and row.recalibrated_step_s is not None]
    measured_s = {row.plan: row.measured_step_s for row in ran}
    chosen = min(ran, key=lambda row: row.recalibrated_step_s, default=None)
    fastest = min(measured_s, key=measured_s.get, default=None)
    return Verification(
        plans=tuple(rows),
        tau=_tau({row.plan: row.predicted_step_s for row in ran}, measured_s),
        recalibrated_tau=_tau({row.plan: row.recalibrated_step_s for row in ran}, measured_s),
        chosen=chosen.plan if chosen is not None else None,
        fastest=fastest,
        regret=measured_s[chosen.plan] / measured_s[fastest] - 1 if chosen is not None else None,
        aa_spread=aa_spread,
    )


def _tau(predicted_s: Mapping[str, float], measured_s: Mapping[str, float]) -> float | None:
    """Kendall's tau-b; None for fewer than two plans, or if all are equally fast."""
    if len(predicted_s) < 2:
        return None
    from scipy.stats import kendalltau  # here, because it takes half a second to load

    tau = float(kendalltau(list(predicted_s.values()), [measured_s[plan] for plan in predicted_s]).statistic)
    return None if tau != tau else tau
