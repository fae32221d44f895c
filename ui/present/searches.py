"""The result of a search in words and tables."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from simulator.engine.memory.contents import AT_LIMIT_WORDS
from simulator.machine.presets import THIS_CPU
from traces import units
from traces.documents.search_result import PlainStep, RankedPlan, SearchResult, Verification
from traces.documents.verdict import is_busy, is_judged
from traces.units import counted
from ui.present.labels import PEAK, PLAIN, differing, strategy_name
from ui.present.sentences import no_verdict_words
from ui.present.tables import Grid, stacked
from ui.present.verdicts import busy_line
from ui.present.waterfalls import Bar, bars, change_words

#: What a lower bound rests on, in words.
BOUND_WORDS = {
    "dependencies": "tasks that wait for each other",
    "compute": "the work of a device's SMs",
    "memory bandwidth": "the bytes that kernels read and write",
    "links": "the bytes over links",
    "host": "what the host issues",
}
#: The column of speed-ups over plain PyTorch.
AGAINST = "against PyTorch"
#: Entries of a plan's semantics by which its numbers differ from those of plain training.
_CHANGES = ("staleness", "batch_norm", "loss", "updates")
#: Plans named in a sentence at most.
_NAMED = 4


def headline(result: SearchResult) -> str:
    """The best plan, its step time and its gain."""
    best = result.winner
    if best is None:
        return f"None of {result.candidates} candidates fits this job on {result.machine}."
    verified = result.verification
    if verified is not None and is_busy(verified.busy_share):
        return busy_line(verified.busy_share)
    ran = {plan.plan: plan for plan in verified.plans} if verified is not None else {}
    if result.best in ran and ran[result.best].measured_step_s is not None:
        count = sum(plan.measured_step_s is not None for plan in ran.values())
        return (
            f"{result.best} was measured fastest of {counted(count, 'plan')} that ran: {units.duration(ran[result.best].measured_step_s)}."
            f" Of {counted(result.candidates, 'candidate')}, {best.plan} is predicted fastest: {units.duration(best.step_s)}"
            f" ({units.interval(best.interval_s)})."
        )
    fits = AT_LIMIT_WORDS if best.at_limit else "it fits"
    known = is_judged(result.measured_share) and not best.at_limit and best.speedup is not None and best.strategy != "baseline"
    gain = f", {units.speedup(best.speedup)} over the baseline" if known else ""
    return (
        f"{best.plan} is predicted fastest of {counted(result.candidates, 'candidate')}: {units.duration(best.step_s)}"
        f" ({units.interval(best.interval_s)}){gain}; {fits}, with {units.memory(best.peak_bytes)} allocated at its peak."
        f"{_measured_words(best)}"
    )


def _measured_words(best: RankedPlan) -> str:
    """What was measured of the best plan before; empty if nothing was."""
    if best.measured is None:
        return ""
    own = best.measured.gain
    judged = f", {own.judged} against {PLAIN}" if own is not None else ""
    return f" Measured on this machine on {best.measured.date}: {units.duration(best.measured.step_s)}{judged}."


def words(result: SearchResult) -> list[str]:
    """Sentences: ties, stale weights, why the best plan wins, how far it is from the best possible, and what was left out."""
    best = result.winner
    lines = no_verdict_words([result.measured_share], result.machine == THIS_CPU)
    if best is not None:
        lines += _tie_words(result, best)
        lines += _semantics_words(result, best)
        lines += _why_words(result, best)
        lines += _bound_words(result, best)
    if result.pruned:
        least = min(result.pruned, key=lambda plan: plan.bound_s)
        count = counted(len(result.pruned), "plan") + (" was" if len(result.pruned) == 1 else " were")
        shown = f"{count} not simulated, because lower bounds of {units.duration(least.bound_s)} or more show that they cannot win"
        against = f"; the least of them, that of {least.plan}, is {units.speedup(least.over)} the step of {least.beaten_by}"
        lines.append(f"{shown}{against if least.beaten_by else ''}. Their memory is not known.")
    lines += _misfit_words(result)
    planned = [plan for plan in result.refused if not plan.excess_bytes]
    for why, refused in groupby(sorted(planned, key=lambda own: own.why), key=lambda own: own.why):
        names = [own.plan for own in refused]
        lines.append(f"No plan for {_listed(names)}: {why}")
    return lines + (verification_words(result.verification) if result.verification is not None else [])


def tied(result: SearchResult) -> list[RankedPlan]:
    """The plans that are tied with the best one, the first of each group of equal ones."""
    return [group[0] for group in groups(result.fitting) if group[0].tied]


def _tie_words(result: SearchResult, best: RankedPlan) -> list[str]:
    same = [plan for plan in tied(result) if plan.verdict == "same"]
    unclear = [plan for plan in tied(result) if plan.verdict == "cannot tell"]
    lines = []
    if same:
        lines.append(f"A tie: {_listed([plan.plan for plan in same])} {'takes' if len(same) == 1 else 'take'} as long, within 2 %.")
    if unclear:
        firsts = {plan.strategy: plan for plan in reversed(unclear)}
        nearest = sorted(firsts.values(), key=lambda plan: plan.step_s)
        lines.append(
            f"These predictions cannot tell whether {best.plan} is faster than {counted(len(unclear), 'other plan')}:"
            f" {_listed([f'{plan.plan} ({units.speedup(plan.behind, plan.behind_interval)} its step)' for plan in nearest])}."
        )
    alike = sum(plan.probability for plan in groups(result.fitting)[0])
    if not same and not unclear and len(result.fitting) > 1:
        sure = f"with a probability of {units.percent(alike, signed=False)}"
        lines.append(f"{best.plan} is faster than every other plan that was simulated, {sure}.")
    return lines


def _semantics_words(result: SearchResult, best: RankedPlan) -> list[str]:
    kept = {name: value for name, value in best.semantics.items() if name in _CHANGES}
    differs = differing(kept)
    lines = [f"It trains differently from plain training: {differs}."] if differs else []
    if is_stale(best):
        fresh = next((plan for plan in result.fitting if not is_stale(plan)), None)
        if fresh is not None:
            lines.append(
                f"Of the plans without stale weights, {fresh.plan} is the fastest: {units.duration(fresh.step_s)}"
                f" ({units.interval(fresh.interval_s)})."
            )
    return lines


def is_stale(plan: RankedPlan) -> bool:
    """Whether the plan computes with weights that lack updates."""
    staleness = plan.semantics.get("staleness")
    return any(staleness.values()) if isinstance(staleness, Mapping) else bool(staleness)


def _why_words(result: SearchResult, best: RankedPlan) -> list[str]:
    lines = []
    if result.waterfall and result.baseline_step_s is not None:
        lines.append(change_words("The best step", "baseline", result.baseline_step_s, result.waterfall, best.plan, best.step_s))
    if (rival := _explained_rival(result)) is not None:
        lines.append(change_words("The best step", rival.plan, rival.step_s, result.rival_waterfall, best.plan, best.step_s))
    return lines


def _explained_rival(result: SearchResult) -> RankedPlan | None:
    """The best plan of another family, if the difference to it is known and is not that to the baseline, which is explained anyway."""
    if not result.rival_waterfall or result.rival == "baseline":
        return None
    return next((plan for plan in result.plans if plan.plan == result.rival), None)


def waterfalls(result: SearchResult) -> list[tuple[str, list[Bar]]]:
    """The bars to the best plan's step from the baseline's, and from that of the best plan of another family, each with its plan."""
    best = result.winner
    if best is None:
        return []
    drawn = []
    if result.waterfall and result.baseline_step_s is not None:
        drawn.append(("baseline", bars("baseline", result.baseline_step_s, result.waterfall, best.plan, best.step_s)))
    if (rival := _explained_rival(result)) is not None:
        drawn.append((rival.plan, bars(rival.plan, rival.step_s, result.rival_waterfall, best.plan, best.step_s)))
    return drawn


def _bound_words(result: SearchResult, best: RankedPlan) -> list[str]:
    if result.gap is None or not best.bound_s:
        return []
    far = units.percent(max(0.0, result.gap), signed=False)
    own = units.percent(max(0.0, best.step_s / best.bound_s - 1), signed=False)
    return [
        f"No candidate can take less than {units.duration(result.bound_s)} (its lower bound): the best one is {far} above that, and {own}"
        f" above its own bound, which is due to {BOUND_WORDS.get(best.bound_by, best.bound_by)}."
    ]


def _misfit_words(result: SearchResult) -> list[str]:
    misfits = [plan for plan in result.plans if not plan.fits]
    limited = [plan for plan in result.plans if plan.at_limit]
    lines = []
    if limited:
        others = f"{counted(len(limited), 'plan')} {'has' if len(limited) == 1 else 'have'} no rank among the others"
        lines.append(f"{others}: {limited[0].plan} {AT_LIMIT_WORDS}, which took published steps 3 to 16 times as long.")
    if misfits:
        count = counted(len(misfits), "plan") + (" does" if len(misfits) == 1 else " do")
        lines.append(f"{count} not fit; {misfits[0].plan} {misfits[0].why_not}.")
    large = [plan for plan in result.refused if plan.excess_bytes]
    if large:
        least = min(large, key=lambda plan: plan.excess_bytes)
        count = counted(len(large), "plan") + (" was" if len(large) == 1 else " were")
        lines.append(f"{count} not simulated, because they cannot fit; the least of them, {least.plan}, {least.why}.")
    return lines


def verification_words(verified: Verification) -> list[str]:
    """How the ranking held where plans ran, which one is the best, and how sure that is."""
    ran = {plan.plan: plan for plan in verified.plans if plan.measured_step_s is not None}
    lines = [f"{plan.plan} did not run ({plan.status})." for plan in verified.plans if plan.measured_step_s is None]
    if not ran:
        return [*lines, "No plan ran, so nothing is verified."]
    if is_busy(verified.busy_share):
        return [*lines, "The machine was too busy to verify anything."]
    fastest = ran[verified.fastest]
    noise = f" (the baseline differs from itself by {units.percent(verified.aa_spread, signed=False)})" if verified.aa_spread else ""
    lines.append(f"Verified: {fastest.plan} was measured fastest, {units.duration(fastest.measured_step_s)}{noise}.")
    tied = [f"{plan.plan} ({units.speedup(plan.behind, plan.behind_interval)} its step)" for plan in ran.values() if plan.tied]
    if tied:
        lines.append(f"The measurements cannot tell whether it is faster than {_listed(tied)}.")
    firsts: dict[str, list[str]] = {}
    for name, who in ((verified.predicted, "the search"), (verified.chosen, "measured costs")):
        if name is not None and name != fastest.plan:
            firsts.setdefault(name, []).append(who)
    for name, each in firsts.items():
        over = units.speedup(ran[name].behind, ran[name].behind_interval)
        lines.append(f"{name}, which {' and '.join(each)} put first, takes {over} its step.")
    if verified.held_out_regret is not None:
        more = units.percent(verified.held_out_regret, signed=False)
        lines.append(f"The plan that is fastest in one half of the rounds takes {more} more than the fastest one of the other half there.")
    if verified.tau is not None:
        again = f", {verified.recalibrated_tau:+.2f} with measured costs" if verified.recalibrated_tau is not None else ""
        lines.append(f"The ranking of {len(ran)} plans that ran agrees with the measured one: Kendall's tau {verified.tau:+.2f}{again}.")
    return lines


def groups(plans: Sequence[RankedPlan]) -> list[list[RankedPlan]]:
    """The plans in their order; those of one strategy that are equal in time and memory, because an option changes nothing, together."""
    together: dict[tuple[str, float, int], list[RankedPlan]] = {}
    for plan in plans:
        together.setdefault((plan.strategy, plan.step_s, plan.peak_bytes), []).append(plan)
    return list(together.values())


def cells(result: SearchResult) -> list[dict[str, str]]:
    """Column name to text, a row per group of equal plans, below those of what people run; the ranks of plans that do not fit are empty.

    What was measured is that of the verification, else of an earlier validation.
    """
    verified = {plan.plan: plan.measured_step_s for plan in result.verification.plans} if result.verification is not None else {}
    known = {plan.plan: plan.measured.step_s for plan in result.plans if plan.measured is not None} | verified
    plain = result.pytorch
    own = [*([] if plain is None else [plain]), *result.parallel]
    shown = bool(known) or any(each.measured is not None for each in own)
    varied = any(plan.plan != plan.text for plan in result.plans)
    rows = [_plain_cells(each, result, shown, varied) for each in own]
    for number, group in enumerate(groups(result.plans), 1):
        plan = group[0]
        ranked = plan.fits and not plan.at_limit
        row = {
            "": str(number) if plan.fits else "",
            "plan": plan.text + (f" (and {counted(len(group) - 1, 'equal one')})" if len(group) > 1 else ""),
            **({"microbatches": str(plan.accumulate), "checkpointing": plan.checkpoint} if varied else {}),
            "step ms": units.ms(plan.step_s),
            "90 % interval": units.interval(plan.interval_s),
            AGAINST if plain is not None else "over baseline": units.speedup(plan.against_pytorch if plain is not None else plan.speedup),
            "step over the best": units.speedup(plan.behind, plan.behind_interval) if ranked else units.NONE,
            "P(fastest)": units.percent(sum(own.probability for own in group), signed=False) if ranked else units.NONE,
            PEAK: _peak(plan),
            **({"tokens/s": f"{result.tokens / plan.step_s:,.0f}", "MFU": units.percent(plan.mfu, signed=False)} if result.tokens else {}),
            "lower bound ms": units.ms(plan.bound_s),
            "weights": "stale" if is_stale(plan) else "current",
        }
        if shown:
            row["measured ms"] = units.ms(known.get(plan.plan))
        rows.append(row)
    return rows


#: What a row says of memory that does not fit.
TOO_MUCH = ", too much"


def _peak(step: RankedPlan | PlainStep) -> str:
    return units.memory(step.peak_bytes) + (", at its limit" if step.at_limit else "" if step.fits else TOO_MUCH)


def _plain_cells(plain: PlainStep, result: SearchResult, measured: bool, varied: bool) -> dict[str, str]:
    """The row of a loop that people run, which has no rank: it is no plan, but what plans are compared with."""
    tokens, base = result.tokens, result.pytorch
    head = AGAINST if base is not None else "over baseline"
    own_s = base.step_s if base is not None else result.baseline_step_s
    more = ("microbatches", "checkpointing") if varied else ()
    row = dict.fromkeys(("", "plan", *more, "step ms", "90 % interval", head), "") | dict.fromkeys(
        ("step over the best", "P(fastest)", PEAK, *(("tokens/s", "MFU") if tokens else ()), "lower bound ms", "weights"),
        units.NONE,
    )
    row |= {"tokens/s": f"{tokens / plain.step_s:,.0f}"} if tokens else {}
    row |= {"plan": strategy_name(plain.strategy), "step ms": units.ms(plain.step_s), "90 % interval": units.interval(plain.interval_s)}
    row |= {head: units.speedup(own_s / plain.step_s if own_s is not None else None), PEAK: _peak(plain), "weights": "current"}
    return row | ({"measured ms": units.ms(plain.measured.step_s if plain.measured is not None else None)} if measured else {})


def pruned_cells(result: SearchResult) -> list[dict[str, str]]:
    """Column name to text, a row per plan that was not simulated, the smallest lower bound first."""
    return [
        {
            "plan": plan.plan,
            "lower bound ms": units.ms(plan.bound_s),
            "due to": BOUND_WORDS.get(plan.bound_by, plan.bound_by),
            "cannot win against": f"{plan.beaten_by} (bound {units.speedup(plan.over)} its step)" if plan.beaten_by else units.NONE,
        }
        for plan in sorted(result.pruned, key=lambda plan: plan.bound_s)
    ]


def strategy_of(row: Mapping[str, str]) -> str:
    """The strategy of a row of `cells` or `pruned_cells`."""
    return row["plan"].partition(" ")[0].partition(":")[0]


def table(result: SearchResult, most: int) -> Grid:
    """The first `most` rows for the terminal; plans that do not fit are red."""
    rows = cells(result)
    shown = [_folded(row) for row in rows[:most]]
    caption = f"and {counted(len(rows) - most, 'other')}; --out writes them all" if len(rows) > most else ""
    spare: tuple[str, ...] = ("weights", "over baseline", "tokens/s", "MFU", PEAK, "P(fastest)")
    if rows and "microbatches" in rows[0]:  # jobs that differ in memory above all
        spare = ("weights", "over baseline", AGAINST, "tokens/s", "P(fastest)", "step over the best", "MFU")
    red = {n: "red" for n, row in enumerate(shown) if row[PEAK].endswith(TOO_MUCH)}
    return Grid(shown, ("plan", "checkpointing", "weights"), spare, caption=caption, styles=red)


def _folded(row: Mapping[str, str]) -> dict[str, str]:
    """A row of `cells` for a terminal: intervals lie below what they belong to."""
    kept = {head: text for head, text in row.items() if head not in ("lower bound ms", "90 % interval")}
    return kept | {"step ms": stacked(row["step ms"], row["90 % interval"]), "step over the best": stacked(row["step over the best"])}


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
