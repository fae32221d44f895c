"""Which plans of a search run: those that may be the fastest by costs measured now, and that differ from each other.

A search may rank on costs from specifications or from another hour. So the keys of plans that may win are measured in one session first,
and their order by these costs decides. The plans that run then cover the families of strategies that may win: predictions of one family err
alike, so several plans of one family that are predicted to take as long tell little more than one of them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from calibrate.planned import plan_calibrated
from calibrate.testbed import Progress, Testbed
from simulator.model.job import Job
from simulator.predict.forecast import Forecast, paired_interval
from simulator.strategies.registry import family
from traces.documents.profile import Profile
from traces.documents.search_result import RankedPlan
from traces.documents.verdict import SAME, verdict

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
    forecasts, _ = plan_calibrated(testbed, job, texts, shared, profile, True, save_to, progress, every=True)
    return forecasts


def shortlist(forecasts: Mapping[str, Forecast], count: int, first: str) -> list[str]:
    """The `count` plans to run, the fastest first; `first`, which the search put first, is one of them if there are several.

    Each family whose fastest plan may be faster than all others has a plan, as far as `count` allows. Then come plans that differ from
    those of their family by more than `SAME`, then the others.
    """
    order = sorted(forecasts, key=lambda text: forecasts[text].timeline.step_s)
    fastest: dict[str, str] = {}
    for text in order:
        fastest.setdefault(family(text), text)
    may_win = [text for text in fastest.values() if not _surely_slower(forecasts[order[0]], forecasts[text])]
    chosen = [*may_win, *_different(order, may_win, forecasts)]
    chosen = [*chosen, *(text for text in order if text not in chosen)][:count]
    if first in forecasts and first not in chosen and count > 1:
        chosen[-1] = first
    return sorted(chosen, key=order.index)


def _surely_slower(fastest: Forecast, other: Forecast) -> bool:
    return fastest is not other and verdict(paired_interval(fastest, other)) == "slower"


def _different(order: Sequence[str], chosen: Sequence[str], forecasts: Mapping[str, Forecast]) -> list[str]:
    """The plans of `order` that take another time than all that are chosen before them of their family."""
    steps_s = {text: forecasts[text].timeline.step_s for text in order}
    taken = list(chosen)
    for text in order:
        alike = (other for other in taken if family(other) == family(text))
        if all(abs(steps_s[text] / steps_s[other] - 1) > SAME for other in alike):
            taken.append(text)
    return taken[len(chosen) :]
