"""Where profiles and their raw samples are stored, a lock between processes that write one of them, and the merge of two changed copies."""

import gzip
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import BaseModel

from traces.errors import SchedcastError
from traces.files import cannot_write

_NOTHING = object()


def merged(base: Any, ours: Any, theirs: Any) -> Any:
    """Merge two changed copies of `base`: entries of dictionaries and fields of models individually, lists joined, anything else as a
    whole.

    A change, addition or removal by one side is taken over; if both sides changed something, `ours` wins.

    >>> merged({"a": 1, "b": 1}, {"a": 2, "b": 1, "c": 3}, {"a": 1, "d": 4})
    {'a': 2, 'd': 4, 'c': 3}
    """
    if ours is theirs or ours == base:
        return theirs
    if theirs == base:
        return ours
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        base = base if isinstance(base, Mapping) else {}
        entries = {
            name: merged(base.get(name, _NOTHING), ours.get(name, _NOTHING), theirs.get(name, _NOTHING)) for name in {**theirs, **ours}
        }
        return {name: entry for name, entry in entries.items() if entry is not _NOTHING}
    if isinstance(ours, BaseModel) and type(ours) is type(theirs):
        fields = {name: merged(getattr(base, name, None), getattr(ours, name), getattr(theirs, name)) for name in type(ours).model_fields}
        return ours.model_copy(update=fields)
    if isinstance(ours, list) and isinstance(theirs, list):
        return [*theirs, *(item for item in ours if item not in theirs)]
    return ours


try:
    import fcntl

    _LOCKS = True
except ImportError:  # Windows: writes stay atomic, but the last of two processes wins
    _LOCKS = False

#: How long a process waits for another one, which holds the lock for about a second, and how often it tries.
PATIENCE_S, TRY_S = 60.0, 0.02


@contextmanager
def locked(path: Path | str) -> Iterator[None]:
    """Exclude other processes from this block for the same `path`. A process that ends, however it ends, releases its lock.

    The lock is on the file `.NAME.lock` in the same folder, which exists while it is locked. Raises SchedcastError if the folder cannot be
    written, or if another process holds the lock for longer than `PATIENCE_S`.
    """
    path = Path(os.path.realpath(path))
    if not _LOCKS or (path.exists() and not path.is_file()):
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _acquire(lock)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(lock)
        os.close(handle)


def _acquire(lock: Path) -> int:
    """The open lock file, with the lock on it. By then its owner may have removed it, so that the name is free: then try again."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(lock) and os.path.samestat(os.fstat(handle), os.stat(lock)):
                return handle
        except BlockingIOError:
            pass
        except FileNotFoundError:  # removed between the two looks at it
            pass
        except OSError:  # a file system without locks
            return handle
        os.close(handle)
        if time.monotonic() > end_s:
            raise SchedcastError(
                f"another process has been writing {lock.name[1:-5]} for {PATIENCE_S:.0f} s; end it, or choose another file"
            )
        time.sleep(TRY_S)


def user_folder() -> Path:
    """The user's data folder: that of the project's former name if only that exists."""
    folder, former = (Path(platformdirs.user_data_dir(name)) for name in ("schedcast", "stepcast"))
    return former if former.exists() and not folder.exists() else folder


def data_folder() -> Path:
    """The folder that the environment variable SCHEDCAST_DATA names, or else the user's data folder."""
    return Path(os.environ.get("SCHEDCAST_DATA") or user_folder())


def default_folder() -> Path:
    """The folder for profiles in `data_folder`."""
    return data_folder() / "profiles"


def default_path(identity_name: str) -> Path:
    """The default path of the profile of the machine called `identity_name` (`Identity.name`)."""
    return default_folder() / f"{identity_name}.json"


def list_profiles() -> list[Path]:
    """Paths of the profiles in the default folder, sorted by name."""
    return sorted(default_folder().glob("*.json"))


def samples_path(profile: Path | str) -> Path:
    """The path of the samples: `NAME.samples.jsonl.gz` next to the profile `NAME.json` or `NAME.json.gz`."""
    path = Path(profile)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    return path.with_name(f"{name}.samples.jsonl.gz")


def append_samples(profile: Path | str, records: Iterable[dict]) -> Path:
    """Append raw samples as one more gzip member, one JSON object per line, such as `{"key", "state", "samples_s"}`.

    Raises SchedcastError if the file cannot be written.
    """
    path = samples_path(profile)
    lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
    try:
        with locked(path):
            _append(path, gzip.compress(lines.encode(), mtime=0))
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def _append(path: Path, data: bytes) -> None:
    """Append all of `data`, or nothing on failure: half a gzip member would make later members unreadable."""
    old_size = path.stat().st_size if path.exists() else None
    try:
        with path.open("ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]
    except BaseException:
        if old_size is not None:
            os.truncate(path, old_size)
        else:
            path.unlink(missing_ok=True)
        raise
