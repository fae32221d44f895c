"""The part of the app that draws timelines."""

import streamlit as st

from traces.timeline import Timeline
from ui.figures.timeline_chart import timelines_figure


def timelines_ui(key: str, first: Timeline, second: Timeline | None = None, title: str = "") -> None:
    """Draw one step of a timeline, or of two above each other. `title`: plain text in place of the timelines' own."""
    figure = timelines_figure(first, second)
    if title:
        figure.update_layout(title_text=title.replace("<", "&lt;"))
    st.plotly_chart(figure, key=key)
