"""Charts in HTML pages that need no network: each figure, compressed, and once the library that draws them all."""

import base64
import gzip
from functools import cache
from html import escape
from pathlib import Path

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ui.present.timeline_canvas import page

#: How the element of a chart begins. No text of a user's can: its quotes are escaped.
ELEMENT = '<div class="schedcast-chart"'


def chart_html(figure: go.Figure, about: str, fallback: str = "") -> Markup:
    """The element of one chart. `about`: what it shows, in words. `fallback`: the address of a picture for browsers without scripts."""
    plain = go.Figure(figure).update_layout(template=go.layout.Template(), autosize=True).update_xaxes(automargin=True)
    plain.update_yaxes(automargin=True)
    picture = f'<noscript><img src="{escape(fallback)}" alt="{escape(about)}"></noscript>' if fallback else ""
    look = f'aria-label="{escape(about)}" style="min-height: {figure.layout.height or 0}px"'
    return Markup(f"{ELEMENT} {look}>{_packed(plain.to_json())}{picture}</div>")


@cache
def head() -> Markup:
    """What a page with charts carries once: the library, and the script that draws every chart."""
    script = page.joined([page.HERE / "embedded.js", Path(__file__).with_name("templates") / "charts.js"])
    return Markup(f'{_packed(get_plotlyjs(), "schedcast-plotly")}\n<script type="module">\n{script}</script>')


def _packed(text: str, name: str = "") -> str:
    """A text that the page's script unpacks. In base64, nothing in it ends the element."""
    data = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    named = f' id="{name}"' if name else ""
    return f'<script type="application/octet-stream"{named}>{data}</script>'
