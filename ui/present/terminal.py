"""Renders blocks in a terminal: lines that begin with a mark, tables that fit its width, and bars of characters."""

from collections.abc import Iterable, Sequence
from textwrap import fill

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Drawn
from rich.text import Text

from ui.present.blocks import Bar, Block, Figure, Group, Headline, Note, Sentences, Table

#: Columns of the narrowest terminal that is written for; in a narrower one, lines are broken by the terminal.
LEAST_WIDTH = 80
#: Characters of a line in the head of a column, of one in a column of words that is folded, and the blanks between two columns.
HEAD_WIDTH, WORDS_WIDTH, GAP = 10, 16, 2
#: Characters of the longest bar.
BAR_WIDTH = 50


def console() -> Console:
    """The console of standard output, as wide as the terminal, or LEAST_WIDTH."""
    return Console(width=max(LEAST_WIDTH, Console().width))


def show(console: Console, *blocks: Block, details: bool = True) -> None:
    """Print blocks; without `details`, those that are no detail. Timelines and links have no form in a terminal."""
    for block in blocks:
        if isinstance(block, Headline):
            print_lines(console, [block.text], "bold", mark="")
        elif isinstance(block, Note):
            console.print(Text(block.text, style="dim"))
        elif isinstance(block, Figure) and block.bars:
            console.print(_bars(block.bars, console.width))
        elif isinstance(block, Group) and (details or not block.folded):
            console.print(Text(f"\n{block.title}" if block.title else "", style="bold"))
            show(console, *block.blocks, details=details)
        elif isinstance(block, Table | Sentences) and (details or not block.detail):
            own = (block.narrow or block) if isinstance(block, Table) else block
            if isinstance(own, Sentences):
                _print_sentences(console, own)
            elif own.rows:
                _print_table(console, own)


def print_lines(console: Console, lines: Iterable[str], style: str = "", mark: str = "- ") -> None:
    """Print lines as they are, each after a mark."""
    for line in lines:
        console.print(f"{mark}{line}", style=style, highlight=False, markup=False)


def _print_sentences(console: Console, sentences: Sentences) -> None:
    for number, line in enumerate(sentences.lines):
        print_lines(console, [line], sentences.styles.get(number, sentences.style), sentences.mark)
        if sentences.below:
            console.print(Padding(Text(sentences.below[number], style="dim"), (0, 0, 0, 2)))


def _print_table(console: Console, table: Table) -> None:
    """Print a table, or, if it is too wide, tables that follow each other, and below them the caption and the text below."""
    heads = heads_of(table, console.width)
    for number, part in enumerate(_parts(table, heads, console.width)):
        console.print(_drawn(table, part, "" if number else table.title))
    missing = [head for head in table.rows[0] if head not in heads]
    left_out = f"A wider terminal also shows: {'; '.join(missing)}." if missing else ""
    if caption := "\n".join(filter(None, (table.caption, left_out))):
        console.print(Text(caption, style="italic"))
    if table.about:
        console.print(Text(table.about, style="dim"))


def heads_of(table: Table, width: int) -> list[str]:
    """The columns of a table that a terminal of `width` columns has room for."""
    heads = list(table.rows[0]) if table.rows else []
    for spare in table.spare:
        if _fits(table, heads, width):
            break
        heads = [head for head in heads if head != spare]
    return heads


def _fits(table: Table, heads: Sequence[str], width: int) -> bool:
    return sum(_width(table, head) for head in heads) + GAP * (len(heads) + 1) <= width


def _width(table: Table, head: str) -> int:
    lines = (line for text in (_folded(head), *(row[head] for row in table.rows)) for line in text.splitlines())
    natural = max(map(cell_len, lines), default=0)
    return min(natural, WORDS_WIDTH) if head in table.left else natural


def _drawn(table: Table, heads: Sequence[str], title: str) -> Drawn:
    heading = Text(title, style="bold") if title else None
    drawn = Drawn(title=heading, title_justify="left", box=SIMPLE_HEAD, header_style="bold", padding=(0, GAP - 1, 0, 0), pad_edge=False)
    for head in heads:
        left = head in table.left
        drawn.add_column(_folded(head), justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for number, row in enumerate(table.rows):
        if number in table.sections:
            drawn.add_section()
        texts = (_on_lines(row[head]) if head in table.left else row[head] for head in heads)
        drawn.add_row(*map(Text, texts), style=table.styles.get(number))
    return drawn


def _parts(table: Table, heads: Sequence[str], width: int) -> list[list[str]]:
    """The columns of tables that fit, each with the columns of words; one alone if nothing has to be divided."""
    words = [head for head in heads if head in table.left]
    parts: list[list[str]] = [[]]
    for head in (head for head in heads if head not in table.left):
        if parts[-1] and not _fits(table, [*words, *parts[-1], head], width):
            parts.append([])
        parts[-1].append(head)
    return [[head for head in heads if head in words or head in part] for part in parts]


def _on_lines(words: str) -> str:
    """A long name of a strategy, with its options on lines of their own; other words as they are."""
    name, bracket, rest = words.partition(" (")
    if " " in name or cell_len(name) <= WORDS_WIDTH:
        return words
    return name.replace(":", ":\n").replace(",", ",\n") + (f"\n({rest}" if bracket else "")


def _folded(head: str) -> str:
    return fill(head, HEAD_WIDTH, break_long_words=False, break_on_hyphens=False)


def _bars(waterfall: Sequence[Bar], columns: int) -> Drawn:
    """The bars of a waterfall for a terminal with this many columns: label, milliseconds, and the bar.

    What shortens the step is green, what lengthens it red.
    """
    table = Drawn(box=None, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    words = max(len(bar.label) for bar in waterfall) + max(len(f"{bar.ms} ms") for bar in waterfall)
    width = max(8, min(BAR_WIDTH, columns - words - 6))
    longest_s = max(max(bar.start_s, bar.end_s) for bar in waterfall)
    for bar in waterfall:
        left, right = (round(width * max(0.0, end) / longest_s) for end in sorted((bar.start_s, bar.end_s)))
        left = min(left, width - 1)
        style = "bold" if bar.is_step else "green" if bar.change_s < 0 else "red"
        blocks = " " * left + ("█" if bar.is_step else "▓") * max(1, right - left)
        table.add_row(Text(bar.label, style="bold" if bar.is_step else ""), Text(f"{bar.ms} ms"), Text(blocks, style=style))
    return table
