"""Reads the raw samples that calibration appends beside a profile."""

import gzip
import json
from pathlib import Path

from traces.documents.profile_files import samples_path


def read_samples(profile: Path | str) -> list[dict]:
    """The raw samples beside a profile, oldest first; none if there is no file."""
    path = samples_path(profile)
    if not path.exists():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
