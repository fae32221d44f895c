"""Renders HTML pages from sections and templates. A page carries all that it shows: style, data, and the scripts that draw charts
and timelines. It needs no network and no other file; where scripts are off, pictures of its folder take their place.

Every value is escaped (autoescape) except the elements of charts and timelines, which are made here and in `ui.present`.
A value that a template names but does not receive is an error.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from traces.documents.base import Document
from ui.present import charts_page
from ui.present.formulas import formulas_of
from ui.present.timeline_canvas import page as timelines_page

TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Section:
    """One part of a page, about one result. `title` and `summary` are also its entry in the table of contents; `body` is HTML."""

    title: str
    summary: str
    body: Markup


def section(title: str, summary: str, template: str, **values: Any) -> Section:
    """The section whose body `template` (a file name in TEMPLATES) makes of `values`."""
    return Section(title, summary, Markup(_environment().get_template(template).render(values)))


def page(title: str, sections: Sequence[Section]) -> str:
    """A page of sections, with a table of contents if there are several."""
    bodies = "".join(each.body for each in sections)
    heads = [own.head() for own in (timelines_page, charts_page) if own.ELEMENT in bodies]
    return _environment().get_template("page.html").render(title=title, sections=sections, heads=heads)


def first_and_last(rows: Sequence[dict[str, str]]) -> set[str]:
    """The first and the last column of `rows`: those that most tables align at the left."""
    heads = list(rows[0]) if rows else []
    return {*heads[:1], *heads[-1:]}


def document_data(document: Document) -> str:
    """The address of a document that holds its data."""
    text = json.dumps(document.document(), allow_nan=False)
    return f"data:application/json;base64,{base64.b64encode(text.encode()).decode()}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.globals["formulas_of"] = formulas_of
    return environment
