"""Recorded traces and reports that the user uploads: data only, stored in a folder that is removed when the app ends.

All sessions of the app share them, so that a reload finds them; the app serves this machine only.
"""

import atexit
import hashlib
import re
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import streamlit as st

from ui.app.model import report_places, start_arguments, start_traces

_traces: list[Path] = []
_reports: list[Path] = []


def offered_traces() -> list[Path]:
    """The traces that the app was started with, then those that were uploaded."""
    return [*start_traces(), *_traces]


def offered_reports() -> list[Path]:
    """The reports that were uploaded, then those named at start and stored in the data folder."""
    return list(dict.fromkeys([*_reports, *report_places(start_arguments())]))


def stamp(path: Path) -> int:
    """When a file was last changed, which shows whether its cached content is still valid; 0 if there is no file."""
    return path.stat().st_mtime_ns if path.exists() else 0


def uploads_ui() -> list[Path]:
    """Let the user upload traces, and return the new ones.

    They are read as data; a damaged one is refused in one line where it is used.
    """
    about = "JSON of torch.profiler, plain or compressed with gzip, or what `nsys export --type sqlite` wrote"
    return _upload_ui("Upload traces", _traces, ("json", "gz", "sqlite"), about)


def report_upload_ui() -> list[Path]:
    """Let the user upload reports, as `uploads_ui` does."""
    about = "validation.json of a report's folder, or what `schedcast validate --json` printed"
    return _upload_ui("Open a report", _reports, ("json",), about)


def _upload_ui(label: str, kept: list[Path], kinds: Sequence[str], about: str) -> list[Path]:
    files = st.file_uploader(label, kinds, accept_multiple_files=True, help=about)
    new = [place for place in dict.fromkeys(_stored(files or ())) if place not in kept]
    kept += new
    return new


@cache
def _folder() -> Path:
    folder = Path(mkdtemp(prefix="schedcast-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _stored(files: Sequence) -> list[Path]:
    """The paths of uploaded files, in a folder named by the content of each."""
    places = []
    for file in files:
        content = file.getvalue()
        place = _folder() / hashlib.blake2b(content, digest_size=8).hexdigest() / safe_name(file.name)
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content)
        places.append(place)
    return places


def safe_name(name: str) -> str:
    """A file name without folders, and without characters that have a meaning for a shell or a file system."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name.replace("\\", "/")).name).lstrip(".-")[-80:] or "trace.json"
