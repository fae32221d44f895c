"""Timelines in HTML pages that need no network: the payload, compressed, beside the script that draws it."""

import base64
import gzip
from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from traces.documents.timeline import Timeline
from ui.present.figures.timeline_canvas.assets import script, style
from ui.present.figures.timeline_canvas.payload import timelines_payload

#: How the element of timelines begins. No text of a user's can: its quotes are escaped.
ELEMENT = '<div class="schedcast-payload"'


def timelines_html(timelines: Sequence[Timeline], title: str | None = None, fallback: str = "") -> Markup:
    """The element of one timeline. `fallback`: the address of a picture for browsers without scripts."""
    payload = gzip.compress(timelines_payload(timelines, title), mtime=0)
    picture = f'<noscript><img src="{escape(fallback)}" alt="Timelines"></noscript>' if fallback else ""
    data = base64.b64encode(payload).decode()
    return Markup(f'{ELEMENT}><script type="application/octet-stream">{data}</script>{picture}</div>')


def head() -> Markup:
    """What a page with timelines carries once: the style, and the script that draws every timeline when the page is complete."""
    return Markup(f'<style>\n{style()}</style>\n<script type="module">\n{script("page")}</script>')
