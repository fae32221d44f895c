"""What a terminal shows: tables that fit into 80 columns and more, and the console that they are printed on."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

#: Columns of the narrowest terminal that is written for; in a narrower one, lines are broken by the terminal.
LEAST_WIDTH = 80
#: Characters of a line in the head of a column, of one in a column of words that is folded, and the blanks between two columns.
HEAD_WIDTH, WORDS_WIDTH, GAP = 10, 16, 2


def console() -> Console:
    """The console of standard output, as wide as the terminal, or LEAST_WIDTH."""
    return Console(width=max(LEAST_WIDTH, Console().width))


@dataclass(frozen=True)
class Grid:
    """Rows of texts by column, as a table that fits the terminal. Cells may have several lines.

    `left`: the columns of words, which may be folded; the others are numbers, aligned at the right. `spare`: columns that are left out, the
    first one first, while the table is too wide; its caption then names them. If it still is, the other columns of numbers follow in a
    table below it. `styles` are those of rows, by number; before the rows in `sections` there is a blank line.
    """

    rows: Sequence[Mapping[str, str]]
    left: Collection[str] = ()
    spare: Sequence[str] = ()
    title: str = ""
    caption: str = ""
    styles: Mapping[int, str] = field(default_factory=dict)
    sections: Collection[int] = ()

    def heads(self, width: int) -> list[str]:
        """The columns that a terminal of `width` columns has room for."""
        heads = list(self.rows[0]) if self.rows else []
        for spare in self.spare:
            if self._fits(heads, width):
                break
            heads = [head for head in heads if head != spare]
        return heads

    def _fits(self, heads: Sequence[str], width: int) -> bool:
        return sum(map(self._width, heads)) + GAP * (len(heads) + 1) <= width

    def _width(self, head: str) -> int:
        lines = (line for text in (_folded(head), *(row[head] for row in self.rows)) for line in text.splitlines())
        natural = max(map(cell_len, lines), default=0)
        return min(natural, WORDS_WIDTH) if head in self.left else natural

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        """The table, or the tables that follow each other, and below them the caption."""
        heads = self.heads(options.max_width)
        first, *more = self._parts(heads, options.max_width)
        yield self._table(first, self.title)
        yield from (self._table(part) for part in more)
        missing = [head for head in (self.rows[0] if self.rows else ()) if head not in heads]
        left_out = f"A wider terminal also shows: {'; '.join(missing)}." if missing else ""
        if caption := "\n".join(filter(None, (self.caption, left_out))):
            yield Text(caption, style="italic")

    def _table(self, heads: Sequence[str], title: str = "") -> Table:
        heading = Text(title, style="bold") if title else None
        table = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, header_style="bold", padding=(0, GAP - 1, 0, 0), pad_edge=False)
        for head in heads:
            left = head in self.left
            table.add_column(_folded(head), justify="left" if left else "right", overflow="fold", no_wrap=not left)
        for number, row in enumerate(self.rows):
            if number in self.sections:
                table.add_section()
            texts = (_on_lines(row[head]) if head in self.left else row[head] for head in heads)
            table.add_row(*map(Text, texts), style=self.styles.get(number))
        return table

    def _parts(self, heads: Sequence[str], width: int) -> list[list[str]]:
        """The columns of tables that fit, each with the columns of words; one alone if nothing has to be divided."""
        words = [head for head in heads if head in self.left]
        parts: list[list[str]] = [[]]
        for head in (head for head in heads if head not in self.left):
            if parts[-1] and not self._fits([*words, *parts[-1], head], width):
                parts.append([])
            parts[-1].append(head)
        return [[head for head in heads if head in words or head in part] for part in parts]


def stacked(*texts: str) -> str:
    """The texts of one cell below each other, and what is in parentheses below what it explains; empty ones and "-" are left out."""
    lines = [line.removesuffix(")") for text in texts if text not in ("", "-") for line in text.split(" (")]
    return "\n".join(lines) or "-"


def _on_lines(words: str) -> str:
    """A long name of a strategy, with its options on lines of their own; other words as they are."""
    name, bracket, rest = words.partition(" (")
    if " " in name or cell_len(name) <= WORDS_WIDTH:
        return words
    return name.replace(":", ":\n").replace(",", ",\n") + (f"\n({rest}" if bracket else "")


def _folded(head: str) -> str:
    return fill(head, HEAD_WIDTH, break_long_words=False, break_on_hyphens=False)
