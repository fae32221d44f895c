"""The section of a page about one timeline."""

from traces import units
from traces.documents.timeline import Timeline
from ui.present.figures.timeline_canvas.page import timelines_html
from ui.present.reports.page import Section, section


def timeline_section(timeline: Timeline, name: str) -> Section:
    """One step drawn, with its memory. `name`: what the timeline is called."""
    summary = f"{timeline.kind}: a step of {units.duration(timeline.step_s)}"
    return section(f"Timeline {name}", summary, "timeline.html", timelines=timelines_html([timeline], ""))
