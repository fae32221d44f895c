"""Reads a recorded trace, of whatever profiler: its content says which."""

from pathlib import Path

from traces.errors import UnusableFileError
from traces.formats import kineto, nsys
from traces.formats.recording import Recording
from traces.formats.sqlite_tables import MAGIC

#: The names of reports that only Nsight Systems reads.
_REPORTS = (".nsys-rep", ".qdrep")


def load_ranks(path: Path | str) -> list[Recording]:
    """Read the processes of a trace: one of torch.profiler has one, an export of Nsight Systems one or more.

    Raises UnusableFileError for a file that is not a trace, or is damaged.
    """
    if str(path).endswith(_REPORTS):
        raise UnusableFileError(f"{path} is a report that only Nsight Systems reads; export it: nsys export --type sqlite {path}")
    return nsys.load_export(path) if _begins_with(path, MAGIC) else [kineto.load_trace(path)]


def load_trace(path: Path | str) -> Recording:
    """Read a trace of one process. Raises UnusableFileError as `load_ranks`, and for an export of several processes."""
    recordings = load_ranks(path)
    if len(recordings) > 1:
        raise UnusableFileError(f"{path} has GPU work of {len(recordings)} processes; expected one")
    return recordings[0]


def _begins_with(path: Path | str, magic: bytes) -> bool:
    """Whether a regular file begins like that; anything else is refused by the reader."""
    try:
        if not Path(path).is_file():
            return False
        with open(path, "rb") as file:
            return file.read(len(magic)) == magic
    except (OSError, ValueError):
        return False
