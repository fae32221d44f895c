"""Safe reading and writing of files: a crash, a full disk or a damaged file does no harm.

Writes are atomic (a temporary file in the same folder, then a rename), except to devices and pipes. All data is JSON, plain or gzip;
nothing is unpickled. Tables of others are CSV.
"""

import csv
import errno
import gzip
import io
import json
import os
import re
import secrets
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from traces.errors import SchedcastError, UnusableFileError

#: Bytes of a document after decompression, and its items (list and object entries), at most. Documents of the largest plans and recordings
#: are a fifth of that. Within these limits reading takes seconds and less than 2 GB.
LARGEST_DOCUMENT, MOST_ITEMS = 1 << 27, 6_000_000
#: Bytes of a table after decompression, and its lines, at most: hundreds of times those of the largest table that has been published.
LARGEST_TABLE, MOST_ROWS = 1 << 26, 200_000
#: Faults of a document that are looked at; each takes about a kilobyte.
_MOST_FAULTS = 10_000
#: Digits of the version of a schema.
_LONGEST_VERSION = 9
#: Bytes of a document that say what it is.
_HEAD_BYTES = 512
#: A number that may be too large for a float or for 64 bits, and an escape that may be half a character.
_LONG_NUMBER = re.compile(rb"(?<!\d)\d{19}|[eE]\+?\d{3}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: The beginning of documents from when the project was called Stepcast, and the names that have changed.
_FORMER_HEAD = re.compile(rb'\s*\{\s*"schema"\s*:\s*"stepcast\.')
_FORMER_NAMES = (
    (re.compile(rb"\bstepcast(?=[.:])"), b"schedcast"),
    (re.compile(rb'"micro_batch(?=(es)?")'), b'"microbatch'),
    (re.compile(rb'"image-parallel(?=[":])'), b'"data-parallel'),
)


def write_atomic(path: Path | str, content: bytes | str) -> Path:
    """Replace the file at `path` by `content` in one step. On failure the old file stays and no partial file is left.

    A symbolic link stays, and the file that it points to is replaced. A device or a pipe is written in place. A new file has the
    permissions of the umask; a replaced file keeps its permissions.

    Raises SchedcastError if the folder cannot be written or the disk is full.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if is_special(path):
            _append(path, data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise cannot_write(path, error) from error
    return Path(path)


def kind_at(path: Path | str) -> Literal["", "file", "folder", "special"]:
    """What is at a path that a user named; empty if nothing is, or if no file can have this name, of which the methods of Path raise.

    `special`: a device or a pipe.
    """
    if os.path.isdir(path):
        return "folder"
    if os.path.isfile(path):
        return "file"
    return "special" if os.path.exists(path) else ""


def is_special(path: Path | str) -> bool:
    """Whether `path` is a device, a pipe or an open file (/dev/stdout), which is written in place and never replaced."""
    absolute = os.path.abspath(path)
    opened = absolute.startswith(("/proc/", "/dev/fd/")) or absolute in ("/dev/stdout", "/dev/stderr")  # maybe a regular file
    return kind_at(path) in (("file", "special") if opened else ("special",))


def _append(path: Path | str, data: bytes) -> None:
    with open(path, "wb", opener=lambda name, _: os.open(name, os.O_WRONLY | os.O_APPEND)) as file:
        file.write(data)


def _replace(path: Path, data: bytes) -> None:
    """Write a new file in the folder of `path`, and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode if path.exists() else None
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
            if mode is not None:
                os.fchmod(handle, stat.S_IMODE(mode))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def cannot_write(path: Path | str, error: OSError) -> SchedcastError:
    """The error that tells the user about a failed write."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return SchedcastError(f"cannot write {path}: {error.filename or path} is not a folder; choose another place")
    return SchedcastError(f"cannot write {path}: {error.strerror or error}; free some space or choose another place")


def check_writable(path: Path | str, folder: bool = False) -> None:
    """Raise SchedcastError if a file (or a `folder`) cannot be written at `path`. Called before long work; leaves no file behind."""
    path = Path(path)
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise cannot_write(f"{str(path)[:40]}...", error) from error
    except ValueError as error:  # a NUL in the name
        raise SchedcastError(f"cannot write {str(path)!r}: {error}; choose another name") from error
    if path.is_dir() != folder and path.exists():
        expected, actual = ("a folder", "a file") if folder else ("a file", "a folder")
        raise SchedcastError(f"cannot write {path}: it is {actual}, expected the name of {expected}; choose another place")
    if path.exists() and not os.access(path, os.W_OK):
        raise SchedcastError(f"cannot write {path}: {os.strerror(errno.EACCES)}; change its permissions or choose another place")
    if is_special(path):
        return
    path = Path(os.path.realpath(path))
    existing = path if folder and path.exists() else path.parent
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(existing))
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise cannot_write(path, error) from error


def write_json(path: Path | str, document: Any, indent: int | None = None) -> Path:
    """Write `document` as JSON, compressed with gzip if the name ends in `.gz`."""
    text = json.dumps(document, indent=indent, allow_nan=False)
    return write_atomic(path, gzip.compress(text.encode(), mtime=0) if str(path).endswith(".gz") else text)


class TooLargeError(ValueError):
    """A text that would take too much time or memory to read. The message says what it has too much of."""


def read_json(path: Path | str, what: str) -> Any:
    """Read JSON, plain or gzip (recognized by its first bytes). `what` is the kind of file that messages name.

    Numbers are finite, integers have at most 64 bits, and text can be encoded: `write_json` writes nothing else. Raises UnusableFileError
    if the file is missing, unreadable, truncated, larger than `LARGEST_DOCUMENT` after decompression, or not such JSON.
    """
    text = _with_present_names(read_bytes(path, what))
    try:
        return parse_json(text)
    except TooLargeError as error:
        raise _too_large(path, what, error) from error
    except RecursionError as error:
        raise UnusableFileError(f"{what} {path} is not valid JSON (it is nested too deeply); make it again") from error
    except ValueError as error:
        raise UnusableFileError(f"{what} {path} is not valid JSON ({error}); it may be truncated: delete it and make it again") from error


def _with_present_names(text: bytes) -> bytes:
    if not _FORMER_HEAD.match(text):
        return text
    for former, present in _FORMER_NAMES:
        text = former.sub(present, text)
    return text


def read_text(path: Path | str, what: str, most_bytes: int | None = None) -> str:
    """Read a text file in UTF-8, plain or gzip. `what` is the kind of file that messages name.

    Raises UnusableFileError as `read_bytes` does, and for a file that is not UTF-8.
    """
    data = read_bytes(path, what, most_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnusableFileError(
            f"{what} {path} is not text in UTF-8 (its byte {error.start} is {data[error.start]:#04x}); check the file"
        ) from error


def read_bytes(path: Path | str, what: str, most_bytes: int | None = None) -> bytes:
    """Read a file, plain or gzip (recognized by its first bytes). `what` is the kind of file that messages name.

    Raises UnusableFileError if the file is missing, unreadable, truncated, or larger than `most_bytes` (default:
    `LARGEST_DOCUMENT`) after decompression.
    """
    try:
        return _read_bytes(Path(path), LARGEST_DOCUMENT if most_bytes is None else most_bytes)
    except TooLargeError as error:
        raise _too_large(path, what, error) from error
    except FileNotFoundError as error:
        raise UnusableFileError(f"no {what} at {path}; check the name") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnusableFileError(f"{what} {path} is a damaged gzip file ({error}); make or fetch it again") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnusableFileError(f"cannot read {what} {path}: {reason}; check the file") from error
    except ValueError as error:  # a NUL in the name
        raise UnusableFileError(f"cannot read {what} {path}: {error}; check the name") from error


def _too_large(path: Path | str, what: str, error: TooLargeError) -> UnusableFileError:
    return UnusableFileError(f"{what} {path} holds {error}, too much for a {what}; check the file")


class Table(NamedTuple):
    """A table in CSV: the names of its columns, and its rows in order.

    A row is its line and its cells by their columns, without blanks around them, "" for those that it lacks; or why it cannot be read.
    """

    columns: tuple[str, ...]
    rows: Iterator[tuple[int, dict[str, str] | str]]


def read_table(path: Path | str, what: str) -> Table:
    """Read a table in CSV, plain or gzip. `what` is the kind of file that messages name.

    Raises UnusableFileError as `read_text` does, for a header that cannot be read, and for more than `LARGEST_TABLE` bytes or `MOST_ROWS`
    lines.
    """
    text = read_text(path, what, LARGEST_TABLE)
    if text.count("\n") > MOST_ROWS:
        raise _too_large(path, what, TooLargeError(f"more than {MOST_ROWS:,} rows"))
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = tuple(reader.fieldnames or ())
    except csv.Error as error:
        raise UnusableFileError(f"{what} {path} has no header that can be read: {error}; check the file") from error
    return Table(columns, _rows(reader))


def _rows(reader: csv.DictReader) -> Iterator[tuple[int, dict[str, str] | str]]:
    while True:
        try:
            record = next(reader)
            yield reader.line_num, {name: (cell or "").strip() for name, cell in record.items() if name is not None}
        except csv.Error as error:  # the next row can be read again
            yield reader.line_num + 1, f"it cannot be read: {error}"
        except StopIteration:
            return


def parse_json(text: bytes) -> Any:
    """The content of a JSON text. Raises ValueError for numbers that are not finite, integers of more than 64 bits, and lone surrogates,
    and TooLargeError for more than `MOST_ITEMS` items.

    Most texts have no number or escape that could be one of these, and are parsed at full speed.
    """
    if sum(text.count(mark) for mark in (b"[", b"{", b",", b":")) > MOST_ITEMS:
        raise TooLargeError(f"more than {MOST_ITEMS:,} items")
    suspicious = _LONG_NUMBER.search(text) is not None
    to_int, to_float = (_integer, _finite) if suspicious else (None, None)
    content = json.loads(text.decode("utf-8-sig"), parse_constant=_finite, parse_int=to_int, parse_float=to_float)
    if _SURROGATE.search(text):
        json.dumps(content, ensure_ascii=False).encode()
    return content


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError(f"the number {text[:20]} is not finite")
    return number


def _integer(text: str) -> int:
    number = int(text) if len(text) <= 20 else 2**64
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"an integer of {len(text)} digits is too large")
    return number


def check_regular(path: Path) -> None:
    """Raise OSError or ValueError if `path` cannot be read to an end: a folder, a pipe, a device, or a name that no file can have."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a file", str(path))


#: The first bytes of files that are not read, what they are, and what to do.
_FOREIGN = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: fetch that with git lfs pull"),
    (b"PK\x03\x04", "a zip archive: unpack it"),
    (b"\xfd7zXZ\x00", "compressed with xz: decompress it, or use gzip"),
    (b"BZh", "compressed with bzip2: decompress it, or use gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: decompress it, or use gzip"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"),
    (b"<!DOCTYPE html", "a web page: fetch the file itself"),
    (b"<html", "a web page: fetch the file itself"),
)
#: Where a tar archive says that it is one.
_TAR = slice(257, 262), b"ustar"


def _check_known(head: bytes, path: Path) -> None:
    """Raise OSError if a file that begins with `head` is of a kind that is never read, such as an archive."""
    kinds = (kind for magic, kind in _FOREIGN if head[: len(magic)].lower() == magic.lower())
    kind = "a tar archive: unpack it" if head[_TAR[0]] == _TAR[1] else next(kinds, None)
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}", str(path))


@contextmanager
def opened(path: Path) -> Iterator[BufferedIOBase]:
    """The bytes of a file, decompressed if it is gzip (recognized by its first bytes). Raises as `check_regular` does, and OSError for an
    archive and the like."""
    check_regular(path)
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.GzipFile(fileobj=raw) if packed else raw as file:
            _check_known(file.peek(_HEAD_BYTES), path)
            yield file


def _read_bytes(path: Path, most_bytes: int) -> bytes:
    """All bytes of a file after decompression, at most `most_bytes`."""
    with opened(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise TooLargeError(f"more than {most_bytes >> 20} MiB of text")
    return data


def read_document(path: Path | str, what: str, schema: str) -> dict:
    """Read a JSON object whose "schema" is `schema` (`NAME/VERSION`) or an older version of it.

    Raises UnusableFileError for another kind of document and for a newer version.
    """
    document = read_json(path, what)
    name, _, version = schema.partition("/")
    actual = document.get("schema") if isinstance(document, dict) else None
    actual_name, _, actual_version = actual.partition("/") if isinstance(actual, str) else ("", "", "")
    if actual_name != name or not (actual_version.isdecimal() and len(actual_version) <= _LONGEST_VERSION):
        raise UnusableFileError(f"{path} is not a {what} (expected schema {schema}, found {actual!r}); check the name")
    if int(actual_version) > int(version):
        raise UnusableFileError(f"{what} {path} has schema {actual}, newer than {schema}, the newest this version reads; upgrade schedcast")
    return document


def starts_with_schema(path: Path | str, schema: str) -> bool:
    """Whether a file, plain or gzip, begins as a document of Schedcast's whose schema starts with `schema`. False if it cannot be read."""
    try:
        with opened(Path(path)) as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error, ValueError):
        return False
    return re.match(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(schema.encode()), _with_present_names(head)) is not None


def first_fault(error: ValidationError) -> str:
    """The first validation error of a document, on one line: `at costs > aten.mm|... > 0 > 0: Input should be ...`."""
    if error.error_count() > _MOST_FAULTS:
        return f"at {error.error_count():,} places"
    fault = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = " > ".join(map(str, fault["loc"])) or "its top level"
    return " ".join(f"at {where}: {fault['msg']}".split())
