"""The app's page of accuracy: measured steps in the intervals that were predicted for them, of shipped validations and published ones."""

from dataclasses import asdict
from typing import Any

import streamlit as st

from simulator.predict.coverage import Judged, by_group, by_strategy, coverage, judged, worst
from traces.documents.scoreboard import Scoreboard
from traces.documents.shipped import scoreboard_file, shipped_validations
from ui.app.page_parts import blocks_ui, formulas_ui, table_ui
from ui.app.share_parts import Download, csv, keep_link, share_ui
from ui.present import rules as rule_words
from ui.present import scoreboards
from ui.present.charts import coverage_figure
from ui.present.labels import markdown_escaped

TITLE, ICON, ORDER = "Accuracy", ":material/target:", 75


def page() -> None:
    """Show how often steps lie in their 90 % intervals, step by step and by strategy."""
    steps = judged(shipped_validations())
    if not steps:
        st.info("This installation has no validations.")
        return
    st.write(
        "Each bar is the interval that was predicted for a step with a probability of 90 %, each dot the step as it was then measured."
        " Their errors decide how wide the intervals of new predictions are."
    )
    st.plotly_chart(coverage_figure(steps), key="coverage")
    left, right = st.columns(2)
    with left:
        table_ui(_rows("group", by_group(steps)))
        st.caption(
            "The devices of a pipeline wait for each other, and the processes of a group share cores with their own network. So each of"
            " these groups has errors of its own, from which its intervals are made as soon as there are enough of them. GPUs stand apart."
        )
    with right:
        table_ui(_rows("strategy", by_strategy(steps)))
    rules_ui()
    formulas_ui("Coverage", "90 % interval", "Measured step")
    _published_ui()
    keep_link("accuracy", {})
    judgments = [asdict(step) for step in steps]
    share_ui("", {}, [Download("Steps (CSV)", "steps.csv", "text/csv", lambda: csv(judgments))])


def rules_ui() -> None:
    """Show how accurate the what-if rules were on what others measured, and what is not predicted."""
    blocks_ui(rule_words.blocks(rule_words.documented()), "rules")


def _published_ui() -> None:
    """Show how accurate presets are on steps that others published."""
    if not scoreboard_file().exists():
        return
    document = Scoreboard.load(scoreboard_file())
    st.subheader("Published steps, predicted without a calibration")
    st.write(scoreboards.summary(document))
    parts = scoreboards.tables(document) | {"peer": scoreboards.peer_cells(document)}
    chosen = st.segmented_control("By", [*parts], default="GPU", key="published", label_visibility="collapsed") or "GPU"
    table_ui(parts[chosen])
    if chosen == "peer":
        st.caption("Errors that other predictors publish of themselves, or that others measured, on jobs of their choice.")
    st.caption("The same for tables of your own measured steps: `schedcast judge TABLE...`.")


def _rows(what: str, groups: dict[str, list[Judged]]) -> list[dict[str, Any]]:
    """The number of steps by group, how many lie in their intervals, and the worst. `what`: the heading of the groups' names."""
    return [
        {
            what: markdown_escaped(name),
            "steps": len(own),
            "in the interval": f"{coverage(own):.0%}",
            "worst, measured over predicted": f"{worst(own).ratio - 1:+.0%}",
        }
        for name, own in groups.items()
    ]
