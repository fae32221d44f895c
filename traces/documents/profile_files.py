"""Paths of profiles and of the raw samples beside them."""

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from traces.files import cannot_write
from traces.locks import locked


def user_folder() -> Path:
    """The user's data folder: that of the project's former name if only that exists."""
    folder, former = (Path(platformdirs.user_data_dir(name)) for name in ("schedcast", "stepcast"))
    return former if former.exists() and not folder.exists() else folder


def default_folder() -> Path:
    """The folder for profiles in the user's data folder, or in the folder that the environment variable SCHEDCAST_DATA names."""
    return Path(os.environ.get("SCHEDCAST_DATA") or user_folder()) / "profiles"


def default_path(identity_name: str) -> Path:
    """The default path of the profile of the machine called `identity_name` (`Identity.name`)."""
    return default_folder() / f"{identity_name}.json"


def list_profiles() -> list[Path]:
    """Paths of the profiles in the default folder, sorted by name."""
    return sorted(default_folder().glob("*.json"))


def samples_path(profile: Path | str) -> Path:
    """The path of the samples: `NAME.samples.jsonl.gz` beside the profile `NAME.json` or `NAME.json.gz`."""
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
