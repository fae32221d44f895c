"""Renders HTML pages from the templates beside this module. Pages carry their style inside and need no network. Pages with timelines also
carry the script that draws them; where scripts are off, a picture takes its place.

Every value is escaped (autoescape) except the elements of timelines, which `ui.figures.timeline_canvas.page` makes. A value that a template
names but does not receive is an error.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    """The page that `template` (a file name in TEMPLATES) makes of `values`."""
    return _environment().get_template(template).render(values)


def first_and_last(rows: Sequence[dict[str, str]]) -> set[str]:
    """The first and the last column of `rows`: those that most tables align at the left."""
    heads = list(rows[0]) if rows else []
    return {*heads[:1], *heads[-1:]}


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
