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


def drawn_around(rows: Sequence[Sequence[Cell]], mark: Mark, columns: int = 12, ranks: int = 16) -> str:
    """The part of the grid up to `columns` columns and `ranks` ranks before and after the cell at `mark`."""
    last = max((cell.start + cell.length for row in rows for cell in row), default=0)
    begin, end = max(0, mark.column - columns), min(last, mark.column + columns + 1)
    shown = range(max(0, mark.rank - ranks), min(len(rows), mark.rank + ranks + 1))
    heading = f"columns {begin} to {end - 1} of {last}\n" if end - begin < last else ""
    return heading + _block(rows, shown, begin, end, mark)


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
