"""Renders blocks as HTML pages. A page carries all that it shows: style, data, and the scripts that draw charts and timelines. It needs
no network and no other file; where scripts are off, pictures of its folder take their place.

Every value is escaped, except the elements of charts and timelines, which are made here and in `timeline_canvas`. Each chart is compressed,
and a page has the library that draws them all once.
"""

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from traces.documents.base import Document
from traces.files import write_atomic
from ui.present.blocks import Block, Figure, Group, Headline, Links, Note, Section, Sentences, Table, Timelines, figures_of
from ui.present.formulas import formulas_of
from ui.present.pictures import write_picture
from ui.present.timeline_canvas import page as timelines_page

TEMPLATES = Path(__file__).with_name("templates")
#: How the element of a chart begins. No text of a user's can: its quotes are escaped.
ELEMENT = '<div class="schedcast-chart"'


def page(title: str, sections: Sequence[Section]) -> str:
    """A page of sections, with a table of contents if there are several."""
    shown = [(section.title, section.summary, html(section)) for section in sections]
    bodies = "".join(body for *_, body in shown)
    heads = [head() for head, element in ((timelines_page.head, timelines_page.ELEMENT), (library, ELEMENT)) if element in bodies]
    return _environment().get_template("page.html").render(title=title, sections=shown, heads=heads)


def write_page(folder: Path, title: str, *sections: Section, heading: str = "") -> Path:
    """Write the pictures of the sections' figures into a folder, then the page, and return its path. `heading`: that of the pictures.

    Raises SchedcastError if a file cannot be written.
    """
    pictures: list[list[Figure]] = []
    for figure in figures_of([block for section in sections for block in section.blocks]):
        if figure.picture:
            pictures.append([])
        if pictures and (figure.picture or figure.continues):
            pictures[-1].append(figure)
    for figures in pictures:
        write_picture(folder / figures[0].picture, *(figure.draw() for figure in figures), heading=heading)
    return write_atomic(folder / "index.html", page(title, sections))


def html(section: Section) -> Markup:
    """The body of a section."""
    links = [(document_data(section.document), f"All figures ({section.name})")] if section.document is not None else []
    headline = [Headline(section.headline)] if section.headline else []
    return _joined([*map(_html, [*headline, *section.blocks]), _links([*links, *section.files], section.name) if links else ""])


def document_data(document: Document) -> str:
    """The address of a document that holds its data."""
    text = json.dumps(document.document(), allow_nan=False)
    return f"data:application/json;base64,{base64.b64encode(text.encode()).decode()}"


def _html(block: Block) -> Markup:
    return _RENDERED[type(block)](block)


def _joined(parts: Iterable[str]) -> Markup:
    return Markup("").join(parts)


def _headline(block: Headline) -> Markup:
    return Markup('<p class="headline">{}</p>\n').format(block.text)


def _sentences(block: Sentences) -> Markup:
    if not block.lines:
        return Markup("")
    if not block.listed:
        return Markup("<p>{}</p>\n").format(" ".join(block.lines))
    if block.below:
        line = Markup('<li><b>{}</b><br><span class="soft">{}</span></li>\n')
        items = [line.format(*both) for both in zip(block.lines, block.below, strict=True)]
    else:
        items = [Markup("<li>{}</li>\n").format(line) for line in block.lines]
    return Markup("<ul>\n{}</ul>\n").format(_joined(items))


def _table(block: Table) -> Markup:
    """The table, and below it the formulas of its columns. Columns of words are aligned at the left, all others at the right."""
    if not block.rows:
        return Markup("")
    looks = {head: Markup(' class="text"') if head in block.left else "" for head in block.rows[0]}
    heads = _joined(Markup("<th{}>{}</th>").format(look, head) for head, look in looks.items())
    rows = [_joined(Markup("<td{}>{}</td>").format(looks[head], text) for head, text in row.items()) for row in block.rows]
    body = _joined(Markup("<tr>{}</tr>\n").format(row) for row in rows)
    drawn = Markup('<div class="wide"><table>\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n</table></div>\n').format(heads, body)
    title = Markup("<h3>{}</h3>\n").format(block.title) if block.title else ""
    about = Markup('<p class="soft">{}</p>\n').format(block.about) if block.about else ""
    return _joined([title, drawn, _formulas(formulas_of(block.rows[0], block.more)), about])


def _formulas(formulas: Mapping[str, str]) -> Markup:
    """How quantities are computed, for those who ask."""
    listed = _joined(Markup("<dt>{}</dt><dd>{}</dd>\n").format(*each) for each in formulas.items())
    about = Markup('<details class="formulas"><summary>How is this computed?</summary><dl>\n{}</dl></details>\n')
    return about.format(listed) if formulas else Markup("")


def _figure(block: Figure) -> Markup:
    """The element of a chart."""
    figure = block.draw()
    plain = go.Figure(figure).update_layout(template=go.layout.Template(), autosize=True).update_xaxes(automargin=True)
    plain.update_yaxes(automargin=True)
    picture = f'<noscript><img src="{escape(block.picture)}" alt="{escape(block.about)}"></noscript>' if block.picture else ""
    look = f'aria-label="{escape(block.about)}" style="min-height: {figure.layout.height or 0}px"'
    return Markup(f"{ELEMENT} {look}>{_packed(plain.to_json())}{picture}</div>\n")


def _timelines(block: Timelines) -> Markup:
    return Markup("{}\n").format(timelines_page.timelines_html(block.timelines, block.title, block.picture))


def _note(block: Note) -> Markup:
    if block.link:
        return Markup('<p><a href="{}">{}</a></p>\n').format(block.link, block.text)
    return Markup('<p class="soft">{}</p>\n').format(block.text)


def _links(files: Sequence[tuple[str, str]], download: str = "") -> Markup:
    """Links to files, of which the first one is saved as `download`, if it has that name."""
    kept = Markup(' download="{}"').format(download) if download else ""
    listed = [Markup('<a{} href="{}">{}</a>\n').format("" if number else kept, *file) for number, file in enumerate(files)]
    return Markup('<p class="links">{}</p>\n').format(_joined(listed)) if files else Markup("")


def _group(block: Group) -> Markup:
    inside = _joined(map(_html, block.blocks))
    if not block.title:
        return inside
    whole = "<details><summary>{}</summary>\n{}</details>\n" if block.folded else "<h3>{}</h3>\n{}"
    return Markup(whole).format(block.title, inside)


_RENDERED: Mapping[type, Callable[..., Markup]] = {
    Headline: _headline,
    Sentences: _sentences,
    Table: _table,
    Figure: _figure,
    Timelines: _timelines,
    Note: _note,
    Links: lambda block: _links(block.files),
    Group: _group,
}


@cache
def library() -> Markup:
    """What a page with charts carries once: the library, and the script that draws every chart."""
    script = timelines_page.joined([timelines_page.HERE / "embedded.js", TEMPLATES / "charts.js"])
    return Markup(f'{_packed(get_plotlyjs(), "schedcast-plotly")}\n<script type="module">\n{script}</script>')


def _packed(text: str, name: str = "") -> str:
    """A text that the page's script unpacks. In base64, nothing in it ends the element."""
    data = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    named = f' id="{name}"' if name else ""
    return f'<script type="application/octet-stream"{named}>{data}</script>'


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
