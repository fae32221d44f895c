"""A schedule as text: a line for each rank, a column for each unit of time."""

from collections.abc import Sequence
from typing import NamedTuple

#: What stands in a column in which a rank is idle, and in one in which it continues the action of the column before.
IDLE, CONTINUED = ".", "-"


class Cell(NamedTuple):
    """An action of a rank: its first column, the number of columns that it takes, and its text."""

    start: int
    length: int
    text: str


class Mark(NamedTuple):
    """The place of a fault: a rank, and a column of it."""

    rank: int
    column: int


def drawn(rows: Sequence[Sequence[Cell]], width: int | None = None, mark: Mark | None = None) -> str:
    """A line for each rank of `rows`, with an arrow beneath the cell at `mark`.

    If the lines are longer than `width` characters, all ranks' first columns come first, then all ranks' next columns.

    >>> print(drawn([[Cell(0, 1, "0F0"), Cell(2, 2, "0B0")], [Cell(1, 1, "1F0")]], mark=Mark(0, 2)))
    rank 0  0F0 .   0B0 -
                    ^ here
    rank 1  .   1F0
    """
    first, last = 0, max((cell.start + cell.length for row in rows for cell in row), default=0)
    return "\n\n".join(_block(rows, range(len(rows)), begin, end, mark) for begin, end in _pieces(rows, first, last, width))


def drawn_around(rows: Sequence[Sequence[Cell]], mark: Mark, columns: int = 12, ranks: int = 16) -> str:
    """The part of the grid up to `columns` columns and `ranks` ranks before and after the cell at `mark`."""
    last = max((cell.start + cell.length for row in rows for cell in row), default=0)
    begin, end = max(0, mark.column - columns), min(last, mark.column + columns + 1)
    shown = range(max(0, mark.rank - ranks), min(len(rows), mark.rank + ranks + 1))
    heading = f"columns {begin} to {end - 1} of {last}\n" if end - begin < last else ""
    return heading + _block(rows, shown, begin, end, mark)


def _pieces(rows: Sequence[Sequence[Cell]], first: int, last: int, width: int | None) -> list[tuple[int, int]]:
    columns = last - first if width is None else max(1, (width - _label_width(rows)) // (_cell_width(rows) + 1))
    return [(begin, min(begin + columns, last)) for begin in range(first, last, max(columns, 1))] or [(first, last)]


def _block(rows: Sequence[Sequence[Cell]], ranks: range, begin: int, end: int, mark: Mark | None) -> str:
    cell_width, label_width = _cell_width(rows), _label_width(rows)
    lines = []
    for rank in ranks:
        texts = [IDLE] * (end - begin)
        row_end = max((cell.start + cell.length for cell in rows[rank]), default=0)
        for cell in rows[rank]:
            for column in range(max(cell.start, begin), min(cell.start + cell.length, end)):
                texts[column - begin] = cell.text if column == cell.start else CONTINUED
        label = f"rank {rank}".ljust(label_width)
        lines.append((label + " ".join(text.ljust(cell_width) for text in texts[: max(row_end - begin, 0)])).rstrip())
        if mark is not None and mark.rank == rank and begin <= mark.column <= end:
            lines.append(" " * (label_width + (mark.column - begin) * (cell_width + 1)) + "^ here")
    return "\n".join(lines)


def _cell_width(rows: Sequence[Sequence[Cell]]) -> int:
    return max((len(cell.text) for row in rows for cell in row), default=1)


def _label_width(rows: Sequence[Sequence[Cell]]) -> int:
    return len(f"rank {len(rows) - 1}") + 2
