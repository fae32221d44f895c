"""A lock between processes that write the same file."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from traces.errors import SchedcastError
from traces.files import cannot_write

try:
    import fcntl
except ImportError:  # Windows: writes stay atomic, but the last of two processes wins
    fcntl = None

#: How long a process waits for another one, which holds the lock for about a second, and how often it tries.
PATIENCE_S, TRY_S = 60.0, 0.02


@contextmanager
def locked(path: Path | str) -> Iterator[None]:
    """Keep other processes out of this block for the same `path`. A process that ends, however it ends, lets go of its lock.

    The lock is on the file `.NAME.lock` in the same folder, which exists while it is held. Raises SchedcastError if the folder cannot be
    written, or if another process holds the lock for longer than `PATIENCE_S`.
    """
    path = Path(os.path.realpath(path))
    if fcntl is None or (path.exists() and not path.is_file()):
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
