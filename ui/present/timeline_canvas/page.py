"""Timelines in HTML pages that need no network: the script and the style that a page carries, and the compressed payload."""

import base64
import gzip
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path

from markupsafe import Markup

from traces.documents.timeline import Timeline
from ui.present.timeline_canvas.payload import timelines_payload

HERE = Path(__file__).parent
#: Every module after those that it imports. Entry points import all of them.
MODULES = ("model", "tracks", "search", "view", "surfaces", "layout", "memory", "draw", "parts", "download", "control", "timeline")
_IMPORT = re.compile(r'^import \{[^}]*\} from "[./\w]+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)


@cache
def script(entry: str) -> str:
    """One JavaScript module made of all modules and an entry point, "streamlit" or "page". Top-level names are unique in all modules."""
    shared = ("embedded",) if entry == "page" else ()
    return joined([HERE / f"{name}.js" for name in (*shared, *MODULES, entry)])


def joined(files: Iterable[Path]) -> str:
    """One JavaScript module made of several files, each after those that it imports."""
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", file.read_text(encoding="utf-8"))) for file in files)


@cache
def style() -> str:
    """The style sheet."""
    return (HERE / "style.css").read_text(encoding="utf-8")


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
