"""Streams a JSON document that is too large for memory: its top-level entries, and the items of one array, one at a time.

Memory is bounded by the largest single item (at most `LARGEST_ITEM` characters), and time by `LARGEST_TEXT` and `MOST_ITEMS`, whatever the
file contains.
"""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from traces.errors import UnusableFileError
from traces.files import TooLargeError, opened

CHUNK_BYTES = 1 << 20
LARGEST_ITEM = 1 << 26
#: Bytes of text after decompression, and items of the array, at most: several times a long recording, and about half a minute of reading.
LARGEST_TEXT, MOST_ITEMS = 1 << 30, 10_000_000
_BLANKS = re.compile(r"[ \t\r\n]*")
#: What separates two objects, before the second, and how many characters it has at most in the files of any profiler.
_COMMA, _BEFORE = re.compile(r"\}[ \t\r\n]*,[ \t\r\n]*\Z"), 100
#: Numbers that C++ prints and JSON lacks, as Kineto writes them; in a text, behind any string before them.
_NOT_FINITE = re.compile(r"-?(?:inf|nan)\b")
_STRING_OR_NOT_FINITE = re.compile(rf'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|{_NOT_FINITE.pattern}', re.DOTALL)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def items(path: Path | str, array: str, what: str, cut: Callable[[int], None] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) for the top-level entries of a document, and (array, item) for every item of the entry `array`, in file order.

    A document that is a list counts as that array. Numbers with a fraction are returned as text, so that no digit is lost; so are numbers
    that are not finite, as JSON does not have them. `what` is the kind of file that messages name. `cut`: called with the number of items
    if the file ends after a whole item, without the closing brackets.

    Raises UnusableFileError if the file is missing, unreadable, damaged, truncated (also without its brackets if there is no `cut`) or too
    large.
    """
    try:
        with opened(Path(path)) as file:
            yield from _Reader(file, array, cut).document()
    except FileNotFoundError as error:
        raise UnusableFileError(f"no {what} at {path}; check the name") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnusableFileError(f"{what} {path} is a damaged gzip file ({error}); make or fetch it again") from error
    except OSError as error:
        raise UnusableFileError(f"cannot read {what} {path}: {error.strerror or error}; check the file") from error
    except RecursionError as error:
        raise UnusableFileError(f"{what} {path} is nested too deeply to be a {what}; check the file") from error
    except TooLargeError as error:
        raise UnusableFileError(f"{what} {path} holds {error}; record fewer steps") from error
    except ValueError as error:
        raise UnusableFileError(f"{what} {path} is not valid JSON ({error}); make or fetch it again") from error


class _Reader:
    """A window over the text that begins with the first unused character."""

    def __init__(self, file: BufferedIOBase, array: str, cut: Callable[[int], None] | None):
        self._file, self._array, self._cut = file, array, cut
        self._decoder: codecs.IncrementalDecoder | None = None
        self._scan = json.JSONDecoder(parse_float=str, parse_constant=str, strict=False).raw_decode
        self._text, self._at, self._ended = "", 0, False
        self._read_bytes = 0
        self._lines, self._columns = 0, 0  # before the window: whole lines, and characters of the line in which it begins
        self._whole = 0  # items of the array
        self._has_not_finite = self._lacks_end = False
        self._is_new = False  # whether text was read since objects were last parsed at once

    def document(self) -> Iterator[tuple[str, Any]]:
        first = self._peek()
        if first == "[":
            yield from self._items()
        elif first == "{":
            yield from self._entries()
        else:
            raise self._fault(f"expected {{ or [ at the start, found {first[:1]!r}") if first else ValueError("it is empty")
        if self._peek():
            raise self._fault("there is more after its end")
        if self._lacks_end and self._cut is not None:
            self._cut(self._whole)

    def _fault(self, what: str, at: int | None = None) -> ValueError:
        """The error for a place in the window, by default the next character."""
        at = self._at if at is None else at
        line_start = self._text.rfind("\n", 0, at) + 1
        column = at - line_start + (0 if line_start else self._columns)
        line = self._lines + self._text.count("\n", 0, at)
        return ValueError(f"line {line + 1:,}, column {column + 1:,}, after {self._whole:,} whole items of {self._array}: {what}")

    def _entries(self) -> Iterator[tuple[str, Any]]:
        for key in self._values("}"):
            if not isinstance(key, str):
                raise self._fault("a name in its outermost object is not a string")
            self._expect(":")
            if key == self._array and self._peek() == "[":
                yield from self._items()
            else:
                yield key, self._value()

    def _items(self) -> Iterator[tuple[str, Any]]:
        for count, item in enumerate(self._values("]")):
            if count >= MOST_ITEMS:
                raise TooLargeError(f"more than {MOST_ITEMS:,} entries in {self._array}")
            self._whole += 1
            yield self._array, item

    def _values(self, closing: str) -> Iterator[Any]:
        """The values from the opening bracket to the closing one. After each value the caller may read on before the comma."""
        self._at += 1
        if self._peek() == closing:
            self._at += 1
            return
        while True:
            if closing == "]" and self._is_new:
                yield from self._objects()
            yield self._value()
            mark = self._peek()
            if mark not in ("", ",", closing):
                raise self._fault(f"expected , or {closing}, found {mark!r}")
            self._at += 1
            if mark == closing:
                return
            if not self._peek():
                if self._cut is None or not self._whole:
                    raise self._fault("it ends too early")
                self._lacks_end = True
                return

    def _objects(self) -> list[Any]:
        """The objects before the last that begins in the window, parsed at once; none if the window has no such beginning.

        What looks like a beginning, but is inside of an object or a string, leaves a text that cannot be parsed.
        """
        self._is_new = False
        end, comma = len(self._text), None
        while comma is None:
            end = self._text.rfind("{", max(self._at, len(self._text) - CHUNK_BYTES // 16), end)
            if end < 0:
                return []
            comma = _COMMA.search(self._text, max(self._at, end - _BEFORE), end)
        text = f"[{self._text[self._at : comma.start() + 1]}]"
        try:
            objects, length = self._scan(text)
        except (json.JSONDecodeError, RecursionError):
            return []
        if length < len(text):  # the array ends before
            return []
        self._at = end
        return objects

    def _expect(self, mark: str) -> None:
        character = self._peek()
        if character != mark:
            raise self._fault(f"expected {mark!r}, found {character!r}" if character else "it ends too early")
        self._at += 1

    def _peek(self) -> str:
        """The next character that is not blank; "" at the end."""
        while True:
            if blanks := _BLANKS.match(self._text, self._at):
                self._at = blanks.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def _value(self) -> Any:
        self._peek()
        wanted = CHUNK_BYTES
        while True:
            try:
                value, end = self._scan(self._text, self._at)
                if end < len(self._text) or self._ended:  # a number at the end of the window may continue
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                if not self._has_not_finite and _NOT_FINITE.match(self._text, error.pos):
                    self._has_not_finite = True
                    self._text, self._at = _with_constants(self._text[self._at :]), self._skip()
                    continue
                if error.msg.startswith("Invalid \\escape"):
                    shown = self._text[error.pos : error.pos + 20]
                    raise self._fault(f"a backslash must be doubled, as in Windows paths: {shown!r}", error.pos) from error
                if self._ended:
                    early = error.pos >= len(self._text) or error.msg.startswith("Unterminated")
                    raise self._fault("it ends within a value" if early else error.msg.lower(), error.pos) from error
                if len(self._text) - self._at > LARGEST_ITEM:
                    raise self._fault(f"no end of a value within {LARGEST_ITEM >> 20} MB: {error.msg.lower()}") from error
            self._fill(wanted)
            wanted *= 2

    def _fill(self, wanted: int = CHUNK_BYTES) -> bool:
        """Read more text. Returns False at the end of the file."""
        if self._ended:
            return False
        data = self._file.read(wanted)
        self._ended, self._is_new = not data, True
        self._read_bytes += len(data)
        if self._read_bytes > LARGEST_TEXT:
            raise TooLargeError(f"more than {LARGEST_TEXT >> 20} MiB of text")
        if self._decoder is None:
            encoding = "utf-16" if data.startswith(_UTF_16) else "utf-8-sig"
            self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        text = self._text[self._at :] + self._decoder.decode(data, self._ended)
        self._skip()
        self._text = _with_constants(text) if self._has_not_finite else text
        return not self._ended

    def _skip(self) -> int:
        """Count the used characters of the window, which are dropped, and return where the window then begins."""
        lines = self._text.count("\n", 0, self._at)
        self._columns = self._at - self._text.rfind("\n", 0, self._at) - 1 if lines else self._columns + self._at
        self._lines += lines
        self._at = 0
        return 0


def _with_constants(text: str) -> str:
    """Write numbers that are not finite, outside of strings, as Python's JSON reads them, in as many characters."""
    return _STRING_OR_NOT_FINITE.sub(lambda part: part[0] if part[0].startswith('"') else "NaN".rjust(len(part[0])), text)
