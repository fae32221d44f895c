"""The app's page of accuracy: measured steps in the intervals that were predicted for them, over the validations that are shipped."""

from dataclasses import asdict

import streamlit as st

from simulator.predict.coverage import by_strategy, coverage, judged
from traces.shipped import shipped_validations
from ui.app.share_parts import Download, csv, keep_link, share_ui
from ui.app.table_parts import formulas_ui, table_ui
from ui.figures.coverage_chart import coverage_figure
from ui.text.labels import markdown_escaped

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
    table = [
        {"strategy": markdown_escaped(name), "steps": len(own), "in the interval": f"{coverage(own):.0%}"}
        for name, own in by_strategy(steps).items()
    ]
    table_ui(table)
    formulas_ui("Coverage", "90 % interval", "Measured step")
    keep_link("accuracy", {})
    rows = [asdict(step) for step in steps]
    share_ui("", {}, [Download("Steps (CSV)", "steps.csv", "text/csv", lambda: csv(rows))])
