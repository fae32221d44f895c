"""Reads tables of an SQLite database that may be damaged or hostile: read-only, without running any of its code, in bounded time."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from traces.errors import UnusableFileError
from traces.files import check_regular

#: How every SQLite database begins (sqlite.org/fileformat.html).
MAGIC = b"SQLite format 3\0"
#: Bytes of a cell at most, and steps of SQLite's machine: a row takes some 30, so that reading ends after about half a minute.
LARGEST_CELL, MOST_STEPS, STEPS_PER_CHECK = 1 << 26, 1_000_000_000, 1_000_000


class Tables:
    """The tables of one database. `what` is the kind of file that messages name. Views and virtual tables, which run code, are not read.

    Raises UnusableFileError for a file that cannot be read, here and later.
    """

    def __init__(self, path: Path | str, what: str):
        self._path, self._what, self._steps = path, what, 0
        self._columns: dict[str, frozenset[str]] = {}
        try:
            check_regular(Path(path))
            self._database = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1", uri=True)
        except (OSError, ValueError, sqlite3.Error) as error:
            raise UnusableFileError(f"cannot read {what} {path}: {error}; check the file") from error
        self._database.text_factory = lambda text: text.decode("utf-8", "replace")
        self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_CELL)
        self._database.set_progress_handler(self._stop, STEPS_PER_CHECK)
        try:
            self._read_schema()
        except BaseException:
            self._database.close()
            raise

    def _read_schema(self) -> None:
        for pragma in ("query_only=ON", "trusted_schema=OFF", "cell_size_check=ON"):
            next(self._all(f"PRAGMA {pragma}"), None)
        names = self._all("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        for (name,) in names:
            if isinstance(name, str) and name.isidentifier():
                self._columns[name] = frozenset(row[1] for row in self._all(f'PRAGMA table_info("{name}")'))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._database.close()

    @property
    def names(self) -> frozenset[str]:
        """The names of the tables."""
        return frozenset(self._columns)

    def rows(self, table: str, columns: Sequence[str], needed: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the cells of `columns` of every row, None for a column that the table lacks; nothing if there is no such table.

        Raises UnusableFileError if the table lacks one of the columns `needed`.
        """
        if table not in self._columns:
            return
        own = self._columns[table]
        lacking = next((name for name in needed if name not in own), None)
        if lacking is not None:
            raise UnusableFileError(f"{self._what} {self._path} has no column {lacking} in its table {table}; export it again")
        cells = (f'"{name}"' if name in own else "NULL" for name in columns)
        yield from self._all(f'SELECT {", ".join(cells)} FROM "{table}"')

    def _all(self, query: str) -> Iterator[tuple[Any, ...]]:
        try:
            yield from map(tuple, self._database.execute(query))  # no cursor, which would be closed when the database already is
        except (sqlite3.Error, ValueError, OverflowError, MemoryError) as error:  # ValueError: text of the schema that is no text
            too_long = self._steps >= MOST_STEPS
            reason = "it takes too long to read; record fewer steps" if too_long else f"it is damaged ({error}); export it again"
            raise UnusableFileError(f"{self._what} {self._path} cannot be read: {reason}") from error

    def _stop(self) -> bool:
        self._steps += STEPS_PER_CHECK
        return self._steps >= MOST_STEPS
