"""What an answer says, as a list of blocks. A document's module makes them; a terminal (`terminal`), an HTML page (`page`) and the app
(`ui.app.page_parts`) render every kind, each in its own form.

    >>> from ui.present.blocks import Headline, Sentences, Table
    >>> answer = [Headline("B is 7.0 ms slower than A."), Table([{"term": "launches", "ms": "+7.0"}], left=("term",))]
    >>> [type(block).__name__ for block in answer]
    ['Headline', 'Table']
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from traces.documents.base import Document
from traces.documents.timeline import Timeline

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Headline:
    """The answer in one sentence."""

    text: str


@dataclass(frozen=True)
class Sentences:
    """More sentences, one a line. `listed`: whether a page and the app make a list of them, not one paragraph.

    In a terminal, `mark` precedes a line, and its style is `style`, such as "bold red", or that of its number in `styles`. `below`: small
    print under each line. `detail`: whether a terminal shows them only with details.
    """

    lines: Sequence[str]
    listed: bool = True
    style: str = ""
    styles: Mapping[int, str] = field(default_factory=dict)
    mark: str = "- "
    below: Sequence[str] = ()
    detail: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of texts by column. Cells may have several lines. Without rows, nothing is shown.

    `left`: the columns of words, which a terminal may fold; the others are numbers, aligned at the right. `spare`: columns that a terminal
    drops, the first one first, while the table is too wide; its caption then names them. `styles` are those of rows, by number; before the
    rows in `sections` there is a blank line. `about`: the text below. `more`: quantities in addition to those of the columns whose formulas
    are offered. `asks`: by row, the query of the app's page that asks for it. `narrow`: what a terminal shows instead. `detail`: as of
    `Sentences`.
    """

    rows: Sequence[Mapping[str, str]]
    left: Collection[str] = ()
    spare: Sequence[str] = ()
    title: str = ""
    caption: str = ""
    styles: Mapping[int, str] = field(default_factory=dict)
    sections: Collection[int] = ()
    about: str = ""
    more: Sequence[str] = ()
    asks: Sequence[Mapping[str, Sequence[str]]] = ()
    narrow: "Table | Sentences | None" = None
    detail: bool = False


@dataclass(frozen=True)
class Bar:
    """One bar of a waterfall, from `start_s` to `end_s`: a whole step, which starts at 0, or a part. `ms`: its length or change, rounded.

    The rounded numbers of a waterfall add up.
    """

    label: str
    ms: str
    start_s: float
    end_s: float
    is_step: bool = False

    @property
    def change_s(self) -> float:
        """The time by which the bar makes the step longer."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Figure:
    """A chart, which `draw` makes when it is shown. `about`: what it shows, in words.

    `picture`: the address of a picture of it, for browsers without scripts. `continues`: whether it is part of the picture of the previous
    figure. `bars`: what a terminal draws instead; without them, nothing.
    """

    draw: Callable[[], "go.Figure"]
    about: str
    picture: str = ""
    bars: Sequence[Bar] = ()
    continues: bool = False


@dataclass(frozen=True)
class Timelines:
    """One step of each timeline, above each other; a terminal omits them. `title`: by default, step times and error."""

    timelines: Sequence[Timeline]
    title: str | None = None
    picture: str = ""


@dataclass(frozen=True)
class Note:
    """A remark in small print. `link`: the address that it leads to."""

    text: str
    link: str = ""


@dataclass(frozen=True)
class Links:
    """Files: pairs of an address and a text."""

    files: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Group:
    """Blocks below a heading; without a title, below a gap.

    `folded`: whether a page and the app show them on request, and a terminal with details.
    """

    title: str
    blocks: Sequence["Block"]
    folded: bool = False


Block = Headline | Sentences | Table | Figure | Timelines | Note | Links | Group


@dataclass(frozen=True)
class Section:
    """What a page says of one document, with a title. `headline`: if the blocks have none.

    `document`: whose data the page offers as a file called `name`, in addition to `files`, pairs of an address and a text.
    """

    title: str
    blocks: Sequence[Block]
    document: Document | None = None
    name: str = ""
    files: Sequence[tuple[str, str]] = ()
    headline: str = ""

    @property
    def summary(self) -> str:
        """The headline."""
        return self.headline or next((block.text for block in self.blocks if isinstance(block, Headline)), "")


def figures_of(blocks: Sequence[Block]) -> Iterator[Figure]:
    """Every figure among blocks."""
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Group):
            yield from figures_of(block.blocks)


def markdown(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The lines of a table in Markdown, whose heads are those of the first row; none without rows."""
    heads = list(rows[0]) if rows else []
    for line in (heads, ["---"] * len(heads), *([row.get(head, "") for head in heads] for row in rows)) if rows else ():
        yield "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in line) + " |"


def first_and_last(rows: Sequence[Mapping[str, str]]) -> set[str]:
    """The first and the last column of `rows`: those that most tables align at the left."""
    heads = list(rows[0]) if rows else []
    return {*heads[:1], *heads[-1:]}


def stacked(*texts: str) -> str:
    """The texts of one cell below each other, and text in parentheses below the text that it explains; empty ones and "-" are omitted."""
    lines = [line.removesuffix(")") for text in texts if text not in ("", "-") for line in text.split(" (")]
    return "\n".join(lines) or "-"
