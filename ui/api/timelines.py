"""A timeline that a notebook draws, and that can be saved in several formats."""

from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from traces import units
from traces.documents.timeline import Timeline
from traces.errors import SchedcastError
from traces.files import write_atomic
from ui.api.shown import Shown
from ui.present.blocks import Table
from ui.present.page import page
from ui.present.predictions import timeline_section
from ui.present.terminal import show

#: Height in pixels of a timeline in a notebook.
HEIGHT = 520


@dataclass(frozen=True, repr=False)
class ShownTimeline(Shown):
    """One step on its lanes."""

    timeline: Timeline

    def json(self) -> dict[str, Any]:
        """The timeline's data."""
        return asdict(self.timeline)

    def save(self, path: str | Path) -> Path:
        """Write it as a page (.html), a picture (.svg) or data (.json, .json.gz), by the name of the file. Returns its path."""
        path = Path(path)
        if path.name.endswith((".json", ".json.gz")):
            return self.timeline.save(path)
        if path.suffix == ".svg":
            from ui.present.timeline_picture import timelines_picture

            return timelines_picture(path, self.timeline)
        if path.suffix != ".html":
            raise SchedcastError(
                f"cannot write a timeline as {path.name}; expected .html (which has a button that saves a PNG), .svg, .json or .json.gz"
            )
        write_atomic(path, self._page())
        return path

    def _page(self) -> str:
        return page("Schedcast timeline", [timeline_section(self.timeline, f"of {self.timeline.kind}")])

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self._page())}" style="width:100%;height:{HEIGHT}px;border:0"></iframe>'

    def _print(self, console: Console) -> None:
        timeline = self.timeline
        start, end = timeline.window_s
        console.print(f"{timeline.kind}: {units.duration(timeline.step_s)}", style="bold", highlight=False, markup=False)
        lanes: dict[tuple[str, str], list[float]] = {}
        for span in timeline.window():
            lanes.setdefault((span.device, span.lane), []).append(min(span.end_s, end) - max(span.start_s, start))
        rows = [
            {"lane": f"{device} {lane}", "tasks": str(len(own)), "busy": units.percent(sum(own) / (end - start), signed=False)}
            for (device, lane), own in sorted(lanes.items())
        ]
        show(console, Table(rows, ("lane",)))
