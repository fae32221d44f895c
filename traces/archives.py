"""A folder as one compressed archive, so that the results of a run can be carried away as one file."""

import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path

from traces.files import write_atomic


def archive_path(folder: Path) -> Path:
    """Where the archive of a folder lies: beside it, as NAME.tar.gz."""
    return folder.with_name(f"{Path(os.path.abspath(folder)).name}.tar.gz")


def write_archive(folder: Path, path: Path) -> Path:
    """Write the folder's files, except hidden ones and archives, to a .tar.gz file, which is replaced in one step. They lie in one folder.

    Raises SchedcastError if the file cannot be written.
    """
    packed = io.BytesIO()
    name = Path(os.path.abspath(folder)).name
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file in sorted(folder.rglob("*")):
            inside = file.relative_to(folder)
            if file.is_file() and not any(part.startswith(".") for part in inside.parts) and not file.name.endswith(".tar.gz"):
                with suppress(FileNotFoundError):  # another process replaces it just now
                    archive.add(file, arcname=str(Path(name) / inside), recursive=False)
    return write_atomic(path, packed.getvalue())
