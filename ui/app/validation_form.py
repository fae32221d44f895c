"""The form of a validation on this machine, and the command that it stands for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from traces.errors import StepcastError
from ui.app.model import Choices, check_reads_no_file, parse_settings
from ui.app.state import number, select, several, text

#: Seconds that a validation waits for a quiet machine at most, if the user wants it to.
LONGEST_WAIT_S = 600


@dataclass(frozen=True)
class ValidationRequest:
    """A job to validate on this machine's CPU. `settings`: (option, value) pairs of strategies; `devices`: groups of cores."""

    model: str
    batch: int
    image_size: int | None
    optimizer: str
    form: str
    precision: str
    strategies: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    devices: int | None = None
    quick: bool = True
    wait: bool = False

    @property
    def label(self) -> str:
        """A short name for a folder: lenet5-32px-b64."""
        size = f"-{self.image_size}px" if self.image_size else ""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{self.model}{size}-b{self.batch}").strip("-")

    def arguments(self, out: Path) -> list[str]:
        """The arguments of `stepcast` that validate the job and write its report to `out`."""
        command = ["validate", "--model", self.model, "--batch", str(self.batch)]
        command += ["--image-size", str(self.image_size)] if self.image_size else []
        command += ["--optimizer", f"{self.optimizer}:{self.form}", "--precision", self.precision]
        command += ["--devices", str(self.devices)] if self.devices else []
        for strategy in self.strategies:
            command += ["--strategy", strategy]
        for name, value in self.settings:
            command += ["--set", f"{name}={value}"]
        waiting = ["--wait", str(LONGEST_WAIT_S)] if self.wait else []
        return [*command, *(["--quick"] if self.quick else []), *waiting, "--out", str(out)]


def validation_form_ui(choices: Choices) -> tuple[ValidationRequest | None, bool]:
    """What the form asks for (None if a field cannot be used), and whether the user starts it.

    Raises StepcastError for unusable fields, if the user starts it.
    """
    first, second, third = st.columns(3)
    model = select(first, "Model", choices.models, "model")
    batch = number(second, "Batch size", "batch", default=32)
    image_size = number(third, "Image size", "image size", placeholder="the model's own")
    optimizer = select(first, "Optimizer", choices.optimizers, "optimizer")
    form = select(second, "Form of the update", choices.forms, "form")
    precision = select(third, "Precision", choices.precisions, "precision")
    strategies = several(first, "Strategies", choices.strategies, "strategies", choices.strategies[:2])
    settings = text(second.text_input, "Options", "settings", placeholder="overlap=off, bucket=0")
    devices = number(third, "Groups of this CPU's cores", "validation devices", placeholder="1")
    st.session_state.setdefault("validation quick", True)
    quick = st.toggle("Quick: fewer rounds, less certain", key="validation quick")
    wait = st.toggle(f"Wait up to {LONGEST_WAIT_S // 60} minutes until other processes leave the machine alone", key="validation wait")
    asked = st.button("Validate here", type="primary", icon=":material/play_arrow:")
    try:
        if not strategies:
            raise StepcastError("no strategy chosen; choose at least one")
        options = parse_settings(settings)
        check_reads_no_file(name for name, _ in options)
        fields = (model, batch or 1, image_size, optimizer, form, precision, tuple(strategies))
        return ValidationRequest(*fields, options, devices, quick, wait), asked
    except StepcastError:
        if asked:
            raise
        return None, False


def free_folder(folder: Path, label: str, taken: Sequence[Path] = ()) -> Path:
    """A folder in `folder` that does not exist and is not `taken`, named after `label`."""
    place, count = folder / label, 1
    while place.exists() or place in taken:
        count += 1
        place = folder / f"{label}-{count}"
    return place
