"""Where profiles lie, and the raw samples beside them."""

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from traces.files import cannot_write


def default_folder() -> Path:
    """The platform's data folder for profiles; the environment variable STEPCAST_DATA names another one."""
    return Path(os.environ.get("STEPCAST_DATA") or platformdirs.user_data_dir("stepcast")) / "profiles"


def default_path(identity_name: str) -> Path:
    """Where the profile of the machine called `identity_name` (`Identity.name`) lies unless told otherwise."""
    return default_folder() / f"{identity_name}.json"


def list_profiles() -> list[Path]:
    """The profiles in the default folder, by name."""
    return sorted(default_folder().glob("*.json"))


def samples_path(profile: Path | str) -> Path:
    """`NAME.samples.jsonl.gz` beside the profile `NAME.json` (or `NAME.json.gz`)."""
    path = Path(profile)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    return path.with_name(f"{name}.samples.jsonl.gz")


def append_samples(profile: Path | str, records: Iterable[dict]) -> Path:
    """Append raw samples, one JSON object per line (say `{"key", "state", "samples_s"}`), as one more gzip member.

    Raises StepcastError where the file cannot be written.
    """
    path = samples_path(profile)
    lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(path, gzip.compress(lines.encode(), mtime=0))
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def _append(path: Path, data: bytes) -> None:
    """Append all of `data`, or on any failure nothing: half a gzip member would damage what comes after it."""
    before = path.stat().st_size if path.exists() else None
    try:
        with path.open("ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]
    except BaseException:
        if before is not None:
            os.truncate(path, before)
        else:
            path.unlink(missing_ok=True)
        raise
