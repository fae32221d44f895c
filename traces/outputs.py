"""Checks where a command writes before its work begins, and packs a folder into one archive.

An output never destroys an input, another output, or a folder of someone else.
"""

import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from traces.errors import SchedcastError, UnusableFileError
from traces.files import check_writable, is_special, kind_at, read_json, write_atomic


def archive_path(folder: Path) -> Path:
    """The path of the archive of a folder: next to it, as NAME.tar.gz."""
    return folder.with_name(f"{Path(os.path.abspath(folder)).name}.tar.gz")


def write_archive(folder: Path, path: Path) -> Path:
    """Write the folder's files, except hidden ones and archives, to a .tar.gz file, which is replaced in one step. The archive has one
    top-level folder.

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


@dataclass(frozen=True)
class FolderKind:
    """A kind of folder that a command writes, recognized by its `document`, whose schema is `schema` of any version.

    `files` are the names in it that the command replaces, in addition to those of folders below.
    """

    document: str
    schema: str
    files: tuple[str, ...]

    def written(self, folder: Path) -> bool:
        """Whether `folder` is one of this kind."""
        try:
            content = read_json(folder / self.document, "document")
        except UnusableFileError:
            return False
        schema = content.get("schema") if isinstance(content, dict) else None
        return isinstance(schema, str) and schema.startswith(f"{self.schema}/")


@dataclass(frozen=True)
class OutputFolder:
    """A folder to write."""

    path: Path
    kind: FolderKind

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the command replaces."""
        return tuple(self.path / name for name in self.kind.files)

    def check(self, option: str) -> None:
        """Raise SchedcastError if it cannot be written, or if it has files but no folder of its kind was written there before."""
        check_writable(self.path, folder=True)
        entries = [entry for entry in os.listdir(self.path) if not entry.startswith(".")] if self.path.exists() else []
        if entries and not self.kind.written(self.path):
            raise SchedcastError(
                f"{option} {self.path} has files ({', '.join(sorted(entries)[:3])}{', ...' if len(entries) > 3 else ''}) but no report of"
                f" this command (a {self.kind.document} with schema {self.kind.schema}); choose a new or an empty folder"
            )


Output = Path | OutputFolder | None


def check_outputs(outputs: Mapping[str, Output], inputs: Iterable[tuple[str, Path | None]] = ()) -> None:
    """Raise SchedcastError if an output cannot be written, or is the same file as an input or another output.

    `outputs` has each output by its option, such as `--timeline`; None is skipped. `inputs` are pairs of an option and its file. Links are
    followed. A device or a pipe may be written by several outputs.
    """
    taken = [(name, path) for name, path in inputs if path is not None]
    for option, output in outputs.items():
        if output is None:
            continue
        if isinstance(output, OutputFolder):
            output.check(option)
        else:
            check_writable(output)
        files = output.files if isinstance(output, OutputFolder) else () if is_special(output) else (output,)
        for file in files:
            for name, other in taken:
                if _same(file, other):
                    raise SchedcastError(f"{option} would overwrite {file}, the file of {name}; choose another place")
        taken += [(option, file) for file in files]


def _same(one: Path, other: Path) -> bool:
    """Whether two names mean one file, whether or not it exists."""
    if kind_at(one) and kind_at(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)
