"""The section of a page about a search: the ranked plans, why the best one wins, and step time against memory of every plan."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traces import units
from traces.documents.search_result import RankedPlan, SearchResult
from ui.present import palette, searches
from ui.present.charts import finished
from ui.present.charts_page import chart_html
from ui.present.configurations import frontier
from ui.present.labels import PEAK, model_name, plotly_escaped
from ui.present.page import Section, document_data, section
from ui.present.searches import groups
from ui.present.waterfall_figures import waterfall_figure

TITLE = f"Step time and {PEAK} memory of every plan"


def search_figure(result: SearchResult) -> go.Figure:
    """One point per plan, with the 90 % interval of its step relative to the best plan's, so that what all plans share does not show.

    The best plan, those tied with it, the others, and those that do not fit in memory are told apart. A line joins the plans that no other
    one beats in both time and memory; another marks the lower bound of all candidates.
    """
    best = result.winner
    unit_bytes, unit = units.memory_unit(max((plan.peak_bytes for plan in result.plans), default=1))
    firsts = [group[0] for group in groups(result.plans)]
    kinds = {
        "the best": ([plan for plan in firsts if plan is best], palette.VERDICT["faster"], "star", 16),
        "tied with it": ([plan for plan in firsts if plan.tied], palette.VERDICT["cannot tell"], "diamond", 9),
        "slower": ([plan for plan in firsts if plan.verdict == "faster"], palette.GREY, "circle", 8),
        "does not fit": ([plan for plan in firsts if not plan.fits], palette.LIMIT, "x", 9),
    }
    figure = go.Figure()
    line = frontier(result.fitting)
    figure.add_scatter(
        x=[plan.peak_bytes / unit_bytes for plan in line], y=[plan.step_s * 1e3 for plan in line], mode="lines",
        line={"color": palette.GREY, "width": 1.5, "shape": "hv"}, name="no plan is faster with less memory", hoverinfo="skip",
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
            line={"color": palette.PREDICTED, "width": 1.5, "dash": "dash"},
            annotation_text=text,
            annotation_position="bottom left",
        )
    figure.update_xaxes(
        title_text=f"{PEAK} memory of the fullest device, {unit}", rangemode="tozero", zeroline=False, gridcolor=palette.GRID
    )
    figure.update_yaxes(title_text="step time, ms", rangemode="tozero", zeroline=False, gridcolor=palette.GRID)
    return finished(figure, TITLE, drawn_px=420)


def _whiskers(plans: Sequence[RankedPlan], best: RankedPlan | None, color: str) -> dict[str, object]:
    """The 90 % intervals of the plans' steps over the best plan's, in ms of that one's step."""
    bounds = [plan.behind_interval if best is not None else None for plan in plans]
    step_ms = best.step_s * 1e3 if best is not None else 0.0
    over = [each[1] * step_ms - plan.step_s * 1e3 if each else 0.0 for plan, each in zip(plans, bounds, strict=True)]
    under = [plan.step_s * 1e3 - each[0] * step_ms if each else 0.0 for plan, each in zip(plans, bounds, strict=True)]
    return {"type": "data", "symmetric": False, "array": over, "arrayminus": under, "thickness": 1, "width": 3, "color": color}


def _hover(plan: RankedPlan) -> str:
    behind = f"<br>{units.speedup(plan.behind, plan.behind_interval)} the best step" if plan.behind_interval else ""
    why = f"<br>{plotly_escaped(plan.why_not)}" if plan.why_not else ""
    return f"<b>{plotly_escaped(plan.plan)}</b><br>{units.duration(plan.step_s)}, {units.memory(plan.peak_bytes)}{behind}{why}"


def search_section(result: SearchResult) -> Section:
    """Headline, chart, sentences, waterfalls to the best plan, and the table of all plans."""
    size = f", input size {result.image_size}" if result.image_size else ""
    job = f"{model_name(result.model)}, batch {result.batch_size}{size}, {result.optimizer}, {result.precision}, {result.mode}"
    why = [
        chart_html(waterfall_figure(bars, f"From {name} to the best plan"), f"From {name} to the best plan, part by part")
        for name, bars in searches.waterfalls(result)
    ]
    return section(
        f"Search: {job}, on {result.machine}", searches.headline(result), "search.html", words=searches.words(result), why=why,
        chart=chart_html(search_figure(result), TITLE), rows=searches.cells(result),
        data=document_data(result),
    )  # fmt: skip
