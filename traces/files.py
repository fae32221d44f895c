"""Reading and writing files so that neither a crash, a full disk nor a damaged file can do harm.

Writes are atomic (a temporary file in the same folder, then a rename). Everything is JSON, plain or gzip; nothing is ever unpickled.
"""

import errno
import gzip
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from traces.errors import StepcastError, UnusableFileError


def write_atomic(path: Path | str, content: bytes | str) -> Path:
    """Replace `path` by `content` in one step; on any failure the old file stays and no partial one is left.

    Raises StepcastError when the folder cannot be written or the disk is full.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
    return path


def cannot_write(path: Path | str, error: OSError) -> StepcastError:
    """What to tell the user about a failed write."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return StepcastError(f"cannot write {path}: {error.filename or path} is not a folder; choose another place")
    return StepcastError(f"cannot write {path}: {error.strerror or error}; free some space or choose another place")


def check_writable(path: Path | str, folder: bool = False) -> None:
    """Raise StepcastError where a file (or a `folder`) cannot be written at `path`. Asked before long work; leaves nothing behind."""
    path = Path(path)
    if path.is_dir() != folder and path.exists():
        expected, found = ("a folder", "a file") if folder else ("a file", "a folder")
        raise StepcastError(f"cannot write {path}: it is {found}, expected the name of {expected}; choose another place")
    place = path if folder and path.exists() else path.parent
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise cannot_write(path, error) from error


def write_json(path: Path | str, document: Any, indent: int | None = None) -> Path:
    """Write `document` as JSON, gzip-compressed when the name ends in `.gz`."""
    text = json.dumps(document, indent=indent, allow_nan=False)
    return write_atomic(path, gzip.compress(text.encode(), mtime=0) if str(path).endswith(".gz") else text)


def read_json(path: Path | str, what: str) -> Any:
    """Read JSON (plain or gzip, told by its first bytes); `what` names the expected kind in messages.

    Raises UnusableFileError for a file that is missing, unreadable, truncated or not JSON.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return json.loads(data)
    except FileNotFoundError as error:
        raise UnusableFileError(f"no {what} at {path}; check the name") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnusableFileError(f"cannot read {what} {path}: {reason}; check the file") from error
    except (EOFError, zlib.error) as error:
        raise UnusableFileError(f"{what} {path} is a damaged gzip file ({error}); make or fetch it again") from error
    except (ValueError, RecursionError) as error:
        raise UnusableFileError(f"{what} {path} is not valid JSON ({error}); it may be truncated: delete it and make it again") from error


def read_document(path: Path | str, what: str, schema: str) -> dict:
    """Read a JSON object whose "schema" is `NAME/VERSION` as given, or an older version of it.

    Raises UnusableFileError for another kind of document or a newer version.
    """
    document = read_json(path, what)
    name, _, version = schema.partition("/")
    given = document.get("schema") if isinstance(document, dict) else None
    given_name, _, given_version = given.partition("/") if isinstance(given, str) else ("", "", "")
    if given_name != name or not given_version.isdigit():
        raise UnusableFileError(f"{path} is not a {what} (expected schema {schema}, found {given!r}); check the name")
    if int(given_version) > int(version):
        raise UnusableFileError(f"{what} {path} has schema {given}, newer than {schema} of this version; upgrade stepcast")
    return document


def first_fault(error: ValidationError) -> str:
    """The first thing wrong with a document, on one line: `at costs > aten.mm|... > 0 > 0: Input should be ...`."""
    fault = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = " > ".join(map(str, fault["loc"])) or "its top level"
    return " ".join(f"at {where}: {fault['msg']}".split())
