"""Recorded traces that the user uploads: data only, kept in a folder that is removed when the app ends."""

import atexit
import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import streamlit as st

from ui.app.model import start_traces

#: Kinds of files that are taken.
KINDS = ("json", "gz")
_FOLDER, _KEPT = "uploads folder", "uploaded traces"


def offered_traces() -> list[Path]:
    """The traces that the app was started with, then those that this session uploaded."""
    return [*start_traces(), *st.session_state.get(_KEPT, ())]


def uploads_ui() -> bool:
    """Let the user upload traces, and return whether there are new ones.

    They are read as data; a damaged one is refused in one line where it is used.
    """
    about = "JSON, or JSON compressed with gzip"
    files = st.file_uploader("Upload traces of torch.profiler", KINDS, accept_multiple_files=True, help=about)
    kept = st.session_state.get(_KEPT, ())
    st.session_state[_KEPT] = tuple(dict.fromkeys([*kept, *_stored(files)])) if files else kept
    return len(st.session_state[_KEPT]) > len(kept)


def _stored(files: Sequence) -> list[Path]:
    """The paths of uploaded files, in a folder named by the content of each."""
    folder = st.session_state.get(_FOLDER)
    if folder is None:
        folder = st.session_state[_FOLDER] = Path(mkdtemp(prefix="stepcast-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    places = []
    for file in files:
        content = file.getvalue()
        place = folder / hashlib.blake2b(content, digest_size=8).hexdigest() / safe_name(file.name)
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content)
        places.append(place)
    return places


def safe_name(name: str) -> str:
    """A file name without folders, and without what a shell or a file system gives a meaning."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name.replace("\\", "/")).name).lstrip(".-")[-80:] or "trace.json"
