"""Streams a JSON document that is too large for memory: its top-level entries, and the items of one array, one at a time.

Memory is bounded by the largest single item (at most `LARGEST_ITEM` characters), and time by `LARGEST_TEXT` and `MOST_ITEMS`, whatever the
file contains.
"""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
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


def items(path: Path | str, array: str, what: str) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) for the top-level entries of a document, and (array, item) for every item of the entry `array`, in file order.

    A document that is a list counts as that array. Numbers with a fraction are returned as text, so that no digit is lost. `what` is the
    kind of file that messages name. Raises UnusableFileError if the file is missing, unreadable, damaged, truncated or too large.
    """
    try:
        with opened(Path(path)) as file:
            yield from _Reader(file, array).document()
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
        raise UnusableFileError(f"{what} {path} is not valid JSON ({error}); it may be truncated, make it again") from error


class _Reader:
    """A window over the text that begins with the first unused character."""

    def __init__(self, file: BufferedIOBase, array: str):
        self._file, self._array = file, array
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._scan = json.JSONDecoder(parse_float=str, parse_constant=str, strict=False).raw_decode
        self._text, self._at, self._ended = "", 0, False
        self._read_bytes = 0

    def document(self) -> Iterator[tuple[str, Any]]:
        first = self._peek()
        if first == "[":
            yield from self._items()
        elif first == "{":
            yield from self._entries()
        else:
            raise ValueError(f"expected {{ or [ at the start, found {first[:1]!r}" if first else "it is empty")
        if self._peek():
            raise ValueError("there is more after its end")

    def _entries(self) -> Iterator[tuple[str, Any]]:
        for key in self._values("}"):
            if not isinstance(key, str):
                raise ValueError("a name in its outermost object is not a string")
            self._expect(":")
            if key == self._array and self._peek() == "[":
                yield from self._items()
            else:
                yield key, self._value()

    def _items(self) -> Iterator[tuple[str, Any]]:
        for count, item in enumerate(self._values("]")):
            if count >= MOST_ITEMS:
                raise TooLargeError(f"more than {MOST_ITEMS:,} entries in {self._array}")
            yield self._array, item

    def _values(self, closing: str) -> Iterator[Any]:
        """The values from the opening bracket to the closing one. After each value the caller may read on before the comma."""
        self._at += 1
        if self._peek() == closing:
            self._at += 1
            return
        while True:
            yield self._value()
            mark = self._peek()
            self._at += 1
            if mark == closing:
                return
            if mark != ",":
                raise ValueError(f"expected , or {closing}, found {mark!r}" if mark else "it ends too early")

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            raise ValueError(f"expected {mark!r}")
        self._at += 1

    def _peek(self) -> str:
        """The next character that is not blank; "" at the end."""
        while True:
            self._at = _BLANKS.match(self._text, self._at).end()
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
                if self._ended:
                    raise ValueError(error.msg) from error
                if len(self._text) - self._at > LARGEST_ITEM:
                    raise ValueError(f"no end of a value within {LARGEST_ITEM >> 20} MB: {error.msg}") from error
            self._fill(wanted)
            wanted *= 2

    def _fill(self, wanted: int = CHUNK_BYTES) -> bool:
        """Read more text. Returns False at the end of the file."""
        if self._ended:
            return False
        data = self._file.read(wanted)
        self._ended = not data
        self._read_bytes += len(data)
        if self._read_bytes > LARGEST_TEXT:
            raise TooLargeError(f"more than {LARGEST_TEXT >> 20} MiB of text")
        self._text = self._text[self._at :] + self._decode(data, self._ended)
        self._at = 0
        return not self._ended
