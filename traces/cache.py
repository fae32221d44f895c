"""JSON documents in the user's cache folder, each under a hash of everything that decides it. An unreadable document counts as missing."""

import logging
import os
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from traces.errors import SchedcastError
from traces.files import read_json, write_json


def cache_folder(kind: str) -> Path:
    """The folder of documents of one kind; SCHEDCAST_CACHE overrides the platform's cache folder."""
    return Path(os.environ.get("SCHEDCAST_CACHE") or user_cache_dir("schedcast")) / kind


def cached(path: Path, what: str) -> Any | None:
    """The document at `path`, or None if there is none or it is damaged. `what`: as in `read_json`."""
    try:
        return read_json(path, what) if path.exists() else None
    except SchedcastError:
        return None


def store(path: Path, document: Any, complaint: str) -> bool:
    """Write a document to `path`, and return whether that succeeded. If not, one warning says so: it is made again next time.

    `complaint`: the text before the reason; empty for no warning.
    """
    try:
        write_json(path, document)
    except SchedcastError as error:
        if complaint:
            logging.getLogger("schedcast").warning("%s: %s", complaint, error)
        return False
    return True
