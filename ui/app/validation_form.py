"""The form of a validation on this machine."""

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from traces.errors import SchedcastError
from ui.app.model import parse_settings
from ui.app.state import number, select, several, text
from ui.request import JobRequest
from ui.service.jobs import Choices
from ui.service.kept import check_reads_no_file

#: Seconds that a validation waits for a quiet machine at most, if the user wants it to.
LONGEST_WAIT_S = 600


def validation_form_ui(choices: Choices) -> tuple[JobRequest, list[str]] | None:
    """What the form asks for, and more options of the command; None until it is started. Raises SchedcastError for unusable fields."""
    first, second, third = st.columns(3)
    job = {
        "model": select(first, "Model", choices.models, "model"),
        "batch": number(second, "Batch size", "batch", default=32) or 1,
        "image_size": number(third, "Image size", "image size", placeholder="the model's own"),
        "optimizer": select(first, "Optimizer", choices.optimizers, "optimizer"),
        "form": select(second, "Form of the update", choices.forms, "form"),
        "precision": select(third, "Precision", choices.precisions, "precision"),
        "strategies": tuple(several(first, "Strategies", choices.strategies, "strategies", choices.strategies[:2])),
    }
    settings = text(second.text_input, "Options", "settings", placeholder="overlap=off, bucket=0")
    devices = number(third, "Groups of this CPU's cores", "validation devices", placeholder="1")
    st.session_state.setdefault("validation quick", True)
    quick = st.toggle("Quick: fewer rounds, less certain", key="validation quick")
    wait = st.toggle(f"Wait up to {LONGEST_WAIT_S // 60} minutes until other processes leave the machine alone", key="validation wait")
    if not st.button("Validate here", type="primary", icon=":material/play_arrow:"):
        return None
    request = JobRequest(**job, devices=devices, settings=parse_settings(settings))
    if not request.strategies:
        raise SchedcastError("no strategy chosen; choose at least one")
    check_reads_no_file(request.shared)
    return request, ["--quick"] * quick + ["--wait", str(LONGEST_WAIT_S)] * wait


def free_folder(folder: Path, label: str, taken: Sequence[Path] = ()) -> Path:
    """A folder in `folder` that does not exist and is not `taken`, named after `label`."""
    place, count = folder / label, 1
    while place.exists() or place in taken:
        count += 1
        place = folder / f"{label}-{count}"
    return place
