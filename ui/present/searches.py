"""The result of a search in words, tables and charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from simulator.engine.memory.contents import AT_LIMIT_WORDS, KIND_NAMES
from simulator.machine.presets import THIS_CPU
from traces import units
from traces.documents.search_result import PlainStep, RankedPlan, SearchResult, Verification
from traces.documents.verdict import is_busy, is_judged
from traces.units import counted
from ui.present import labels
from ui.present.blocks import Bar, Block, Figure, Headline, Section, Sentences, Table, stacked
from ui.present.charts import bars, change_words, waterfall
from ui.present.labels import PEAK, PLAIN, busy_line, differing, model_name, no_verdict_words, strategy_name
from ui.present.predictions import training_words, usual_words

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: The cause of a lower bound, in words.
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


#: Rows of the terminal's table, and the title of the chart of all plans.
SHOWN, CHART = 15, f"Step time and {PEAK} memory of every plan"


def section(result: SearchResult) -> Section:
    """What a page says of a search."""
    size = f", input size {result.image_size}" if result.image_size else ""
    job = f"{model_name(result.model)}, batch {result.batch_size}{size}, {result.optimizer}, {result.precision}, {result.mode}"
    return Section(f"Search: {job}, on {result.machine}", blocks(result), result, "search.json")


def blocks(result: SearchResult, about: Sequence[str] = ()) -> list[Block]:
    """The best plan, step time against memory of every plan, why the best one wins, and all plans. `about`: sentences on the machine.

    A terminal shows the first plans before the sentences.
    """
    return [
        Sentences(usual_words([result]), listed=False),
        Headline(headline(result)),
        chart(result),
        Table((), narrow=table(result, SHOWN)),
        *configuration_blocks(result),
        Sentences([*about, *words(result)]),
        *why(result),
        Table(cells(result), ("plan", "weights"), more=("Above the bound", "Tied plans", "Why"), narrow=Sentences(())),
    ]


def configuration_blocks(result: SearchResult) -> list[Block]:
    """The fastest plan of each tp x pp x dp and checkpointing, as a heat map and as a table; nothing if there are not several."""
    rows = configuration_cells(result)
    if len(rows) < 2:
        return []
    return [Figure(lambda: configurations_figure(result), CONFIGURATIONS), Table(rows, ("tp x pp x dp", "checkpointing"))]


def chart(result: SearchResult) -> Figure:
    """Step time against memory of every plan."""
    return Figure(lambda: search_figure(result), CHART)


def why(result: SearchResult) -> list[Figure]:
    """Why the best plan is faster than the baseline, and than the best plan of another family, part by part."""
    titles = [(f"From {name} to the best plan", drawn) for name, drawn in waterfalls(result)]
    return [Figure(waterfall(drawn, title).draw, f"{title}, part by part") for title, drawn in titles]


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
            f" Of {counted(result.candidates, 'candidate')}, {best.plan} is predicted fastest:"
            f" {units.duration(best.step_s, best.interval_s)}."
        )
    fits = AT_LIMIT_WORDS if best.at_limit else "it fits"
    told = is_judged(result.measured_share) and compared_fits(result) and not best.at_limit and best.strategy != "baseline"
    gain = f", {units.speedup(best.speedup)} over the baseline" if told and best.speedup is not None else ""
    return (
        f"{best.plan} is predicted fastest of {counted(result.candidates, 'candidate')}: {units.duration(best.step_s, best.interval_s)}"
        f"{gain}{_rate_words(result, best)}; {fits}, with {units.memory(best.peak_bytes)} allocated at its peak."
        f"{_measured_words(best)}"
    )


def _rate_words(result: SearchResult, best: RankedPlan) -> str:
    """The tokens a second of the best plan, and of each of several devices, and its MFU; empty for a model that reads none."""
    if not result.tokens:
        return ""
    rate = result.tokens / best.step_s
    each = f" ({units.rate(rate / result.devices)} each)" if result.devices > 1 else ""
    used = "" if best.mfu is None else f", MFU {units.percent(best.mfu, signed=False)}"
    return f", {units.rate(rate)} tokens/s{each}{used}"


def _measured_words(best: RankedPlan) -> str:
    """What was measured of the best plan before; empty if nothing was."""
    if best.measured is None:
        return ""
    own = best.measured.gain
    judged = f", {own.judged} against {PLAIN}" if own is not None else ""
    return f" Measured on this machine on {best.measured.date}: {units.duration(best.measured.step_s)}{judged}."


def words(result: SearchResult) -> list[str]:
    """Sentences: ties, stale weights, why the best plan wins, how far it is from the best possible, and what was skipped."""
    best = result.winner
    lines = no_verdict_words([result.measured_share], result.machine == THIS_CPU)
    if result.training is not None and best is not None:
        lines.append(training_words(result.training, result.tokens or 1, result.devices, "GPU" if best.mfu is not None else "device"))
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
    return lines + _refused_words(result) + (verification_words(result.verification) if result.verification is not None else [])


def _refused_words(result: SearchResult) -> list[str]:
    """Why candidates have no plan, the reason of most of them first."""
    planned = sorted((plan for plan in result.refused if not plan.excess_bytes), key=lambda own: own.why)
    whys = sorted(([*refused] for _, refused in groupby(planned, key=lambda own: own.why)), key=len, reverse=True)
    lines = [f"No plan for {_listed([own.plan for own in refused])}: {refused[0].why}" for refused in whys[:_NAMED]]
    if more := whys[_NAMED:]:
        lines.append(
            f"For {counted(len(more), 'other reason')}, no plan for {counted(sum(map(len, more)), 'other candidate')}; --out names them."
        )
    return lines


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
                f"Of the plans without stale weights, {fresh.plan} is the fastest: {units.duration(fresh.step_s, fresh.interval_s)}."
            )
    return lines


def is_stale(plan: RankedPlan) -> bool:
    """Whether the plan computes with weights that lack updates."""
    staleness = plan.semantics.get("staleness")
    return any(staleness.values()) if isinstance(staleness, Mapping) else bool(staleness)


def _why_words(result: SearchResult, best: RankedPlan) -> list[str]:
    lines = []
    if result.waterfall and result.baseline_step_s is not None and compared_fits(result):
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
    if result.waterfall and result.baseline_step_s is not None and compared_fits(result):
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
    """How well the ranking agrees with measurements, which plan is the best, and how sure that is."""
    ran = {plan.plan: plan for plan in verified.plans if plan.measured_step_s is not None}
    lines = [f"{plan.plan} did not run ({plan.status})." for plan in verified.plans if plan.measured_step_s is None]
    if verified.fastest is None:
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
            **({"tokens/s": _tokens(result, plan), "MFU": units.percent(plan.mfu, signed=False)} if result.tokens else {}),
            "lower bound ms": units.ms(plan.bound_s),
            "weights": "stale" if is_stale(plan) else "current",
        }
        if shown:
            row["measured ms"] = units.ms(known.get(plan.plan))
        rows.append(row)
    if compared_fits(result):
        return rows
    return [{head: text for head, text in row.items() if head not in (AGAINST, "over baseline")} for row in rows]


def compared_fits(result: SearchResult) -> bool:
    """Whether what plans are compared with fits in memory: nobody is faster than a loop that cannot run."""
    return result.baseline_fits and (result.pytorch is None or result.pytorch.fits)


def _tokens(result: SearchResult, step: RankedPlan | PlainStep) -> str:
    return f"{result.tokens / step.step_s:,.0f}" if result.tokens and step.fits else units.NONE


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
    row |= {"tokens/s": _tokens(result, plain)} if tokens else {}
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


def table(result: SearchResult, most: int) -> Table:
    """The first `most` rows for the terminal; plans that do not fit are red."""
    rows = cells(result)
    shown = [_folded(row) for row in rows[:most]]
    caption = f"and {counted(len(rows) - most, 'other')}; --out writes them all" if len(rows) > most else ""
    spare: tuple[str, ...] = ("weights", "over baseline", "tokens/s", "MFU", PEAK, "P(fastest)")
    if rows and "microbatches" in rows[0]:  # jobs that differ in memory above all
        spare = ("weights", "over baseline", AGAINST, "tokens/s", "P(fastest)", "step over the best", "MFU")
    red = {n: "red" for n, row in enumerate(shown) if row[PEAK].endswith(TOO_MUCH)}
    return Table(shown, ("plan", "checkpointing", "weights"), spare, caption=caption, styles=red)


def _folded(row: Mapping[str, str]) -> dict[str, str]:
    """A row of `cells` for a terminal: intervals are below the values that they belong to."""
    kept = {head: text for head, text in row.items() if head not in ("lower bound ms", "90 % interval")}
    return kept | {"step ms": stacked(row["step ms"], row["90 % interval"]), "step over the best": stacked(row["step over the best"])}


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def search_figure(result: SearchResult) -> "go.Figure":
    """One point per plan, with the 90 % interval of its step relative to the best plan's, so that what all plans share does not show.

    The best plan, those tied with it, the others, and those that do not fit in memory are told apart. A line joins the plans that no other
    one beats in both time and memory; another marks the lower bound of all candidates.
    """
    import plotly.graph_objects as go

    best = result.winner
    unit_bytes, unit = units.memory_unit(max((plan.peak_bytes for plan in result.plans), default=1))
    firsts = [group[0] for group in groups(result.plans)]
    kinds = {
        "the best": ([plan for plan in firsts if plan is best], labels.VERDICT["faster"], "star", 16),
        "tied with it": ([plan for plan in firsts if plan.tied], labels.VERDICT["cannot tell"], "diamond", 9),
        "slower": ([plan for plan in firsts if plan.verdict == "faster"], labels.GREY, "circle", 8),
        "does not fit": ([plan for plan in firsts if not plan.fits], labels.LIMIT, "x", 9),
    }
    figure = go.Figure()
    line = frontier(result.fitting)
    figure.add_scatter(
        x=[plan.peak_bytes / unit_bytes for plan in line], y=[plan.step_s * 1e3 for plan in line], mode="lines",
        line={"color": labels.GREY, "width": 1.5, "shape": "hv"}, name="no plan is faster with less memory", hoverinfo="skip",
    )  # fmt: skip
    for name, (plans, color, symbol, size) in kinds.items():
        if plans:
            figure.add_scatter(
                x=[plan.peak_bytes / unit_bytes for plan in plans], y=[plan.step_s * 1e3 for plan in plans], mode="markers", name=name,
                marker={"color": color, "symbol": symbol, "size": size}, error_y=_whiskers(plans, best, color),
                hovertext=[_hover(plan) for plan in plans], hovertemplate="%{hovertext}<extra></extra>",
            )  # fmt: skip
    if result.bound_s is not None:
        text = f"no candidate is below {units.duration(result.bound_s)}"
        figure.add_hline(
            y=result.bound_s * 1e3,
            line={"color": labels.PREDICTED, "width": 1.5, "dash": "dash"},
            annotation_text=text,
            annotation_position="bottom left",
        )
    figure.update_xaxes(
        title_text=f"{PEAK} memory of the fullest device, {unit}", rangemode="tozero", zeroline=False, gridcolor=labels.GRID
    )
    figure.update_yaxes(title_text="step time, ms", rangemode="tozero", zeroline=False, gridcolor=labels.GRID)
    return labels.finished(figure, CHART, drawn_px=420)


def _whiskers(plans: Sequence[RankedPlan], best: RankedPlan | None, color: str) -> dict[str, object]:
    """The 90 % intervals of the plans' steps over the best plan's, in ms of that one's step."""
    bounds = [plan.behind_interval if best is not None else None for plan in plans]
    step_ms = best.step_s * 1e3 if best is not None else 0.0
    over = [each[1] * step_ms - plan.step_s * 1e3 if each else 0.0 for plan, each in zip(plans, bounds, strict=True)]
    under = [plan.step_s * 1e3 - each[0] * step_ms if each else 0.0 for plan, each in zip(plans, bounds, strict=True)]
    return {"type": "data", "symmetric": False, "array": over, "arrayminus": under, "thickness": 1, "width": 3, "color": color}


def _hover(plan: RankedPlan) -> str:
    behind = f"<br>{units.speedup(plan.behind, plan.behind_interval)} the best step" if plan.behind_interval else ""
    why = f"<br>{labels.plotly_escaped(plan.why_not)}" if plan.why_not else ""
    return f"<b>{labels.plotly_escaped(plan.plan)}</b><br>{units.duration(plan.step_s)}, {units.memory(plan.peak_bytes)}{behind}{why}"


def divided(plan: RankedPlan, devices: int) -> str:
    """How a plan divides a language model among the devices: 2 x 1 x 4 is tensors by 2, a pipeline of 1 stage, 4 replicas of the batch."""
    tp, pp, cp = (int(value) if str(value := plan.options.get(name, 1)).isdigit() else 1 for name in ("tp", "stages", "cp"))
    return f"{tp} x {pp} x {max(1, devices // (tp * pp * cp))}"


def configurations(result: SearchResult) -> dict[str, dict[str, RankedPlan]]:
    """By tp x pp x dp, and by checkpointing, the fastest plan that fits; the fastest configuration first. Empty without tokens."""
    table: dict[str, dict[str, RankedPlan]] = {}
    if result.tokens and result.devices > 1:
        for plan in result.fitting:
            table.setdefault(divided(plan, result.devices), {}).setdefault(plan.checkpoint, plan)
    return table


def configuration_cells(result: SearchResult) -> list[dict[str, str]]:
    """The same as rows, column name to text."""
    return [
        {
            "tp x pp x dp": name,
            "checkpointing": checkpoint,
            "microbatches": str(plan.accumulate),
            "step ms": units.ms(plan.step_s),
            "tokens/s": _tokens(result, plan),
            PEAK: _peak(plan),
            "MFU": units.percent(plan.mfu, signed=False),
        }
        for name, own in configurations(result).items()
        for checkpoint, plan in own.items()
    ]


def configurations_figure(result: SearchResult) -> "go.Figure":
    """The MFU of the fastest plan of each tp x pp x dp and checkpointing that was simulated and fits, with its tokens a second."""
    import plotly.graph_objects as go

    table = configurations(result)
    columns = [kind for kind in dict.fromkeys(["none", "selective", "full", *(each for own in table.values() for each in own)])
               if any(kind in own for own in table.values())]  # fmt: skip
    known = [[own.get(kind) for kind in columns] for own in table.values()]
    shares = [[None if plan is None or plan.mfu is None else 100 * plan.mfu for plan in row] for row in known]
    texts = [
        ["" if plan is None else f"{_tokens(result, plan)} tokens/s<br>{units.memory(plan.peak_bytes)}" for plan in row] for row in known
    ]
    hovers = [["" if plan is None else _hover(plan) for plan in row] for row in known]
    figure = go.Figure(
        go.Heatmap(
            z=shares, x=columns, y=list(table), text=texts, texttemplate="%{text}", hovertext=hovers, hoverinfo="text", xgap=2, ygap=2,
            colorscale="Cividis", colorbar={"title": {"text": "MFU, %", "side": "right"}},
        )
    )  # fmt: skip
    figure.update_xaxes(title_text="activation checkpointing", type="category", showgrid=False)
    figure.update_yaxes(title_text="tp x pp x dp", type="category", showgrid=False, autorange="reversed")
    return labels.finished(figure, CONFIGURATIONS, drawn_px=max(200, 56 * len(table)), legend=False)


CONFIGURATIONS = "The fastest plan of each division and checkpointing, by MFU"
FASTEST, BETWEEN, SMALLEST = "Fastest", "Less memory", "Least memory simulated"


@dataclass(frozen=True)
class Configuration:
    """A plan worth knowing, and why. `rate`: samples per second, or tokens per second of a model that reads tokens."""

    why: str
    plan: RankedPlan
    rate: float

    @property
    def memory_words(self) -> str:
        """The contents of the fullest device at its peak, the largest kind first: activations 40 GiB, optimizer state 12 GiB."""
        kinds = sorted(self.plan.held_bytes.items(), key=lambda kind: -kind[1])
        return ", ".join(f"{KIND_NAMES.get(kind, kind)} {units.memory(size)}" for kind, size in kinds if size)


def frontier(plans: Sequence[RankedPlan]) -> list[RankedPlan]:
    """The plans that no other plan beats in both time and memory, the fastest first."""
    chosen: list[RankedPlan] = []
    for plan in sorted(plans, key=lambda plan: (plan.step_s, plan.peak_bytes)):
        if not chosen or plan.peak_bytes < chosen[-1].peak_bytes:
            chosen.append(plan)
    return chosen


def worth_knowing(result: SearchResult) -> list[Configuration]:
    """The fastest plan that fits, the one that needs the least memory, and the fastest that needs at most the memory half way between."""
    line = frontier(result.fitting)
    chosen = {FASTEST: line[0]} if line else {}
    if len(line) > 1:
        half = (line[0].peak_bytes + line[-1].peak_bytes) / 2
        between = next((plan for plan in line[1:-1] if plan.peak_bytes <= half), None)
        chosen |= ({BETWEEN: between} if between is not None else {}) | {SMALLEST: line[-1]}
    work = result.tokens or result.batch_size
    return [Configuration(why, plan, work / plan.step_s) for why, plan in chosen.items()]


def rate_words(result: SearchResult, configuration: Configuration) -> str:
    """The rate with its unit: 480,000 tokens/s."""
    return f"{units.rate(configuration.rate)} {'tokens' if result.tokens else 'samples'}/s"
