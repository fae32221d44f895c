"""The form in which the user asks for predictions, and the words that title the answers."""

import streamlit as st

from calibrate.placement import DEFAULT_PLACEMENT
from traces.errors import StepcastError
from ui.app.model import Choices, Request, parse_settings
from ui.app.state import number, select, several, text
from ui.text.labels import options_text


def request_ui(choices: Choices) -> tuple[Request | None, bool]:
    """The request that the form describes now (None if a field cannot be used), and whether the user asks for its answers.

    Raises StepcastError for fields that cannot be used, if the user asks.
    """
    first, second, third = st.columns(3)
    model = select(first, "Model", choices.models, "model")
    batch = number(second, "Batch size", "batch", default=32)
    image_size = number(third, "Image size", "image size", placeholder="the model's own")
    optimizer = select(first, "Optimizer", choices.optimizers, "optimizer")
    form = select(second, "Form of the update", choices.forms, "form")
    precision = select(third, "Precision", choices.precisions, "precision")
    machine = select(first, "Machine", choices.machines, "machine")
    strategies = several(second, "Strategies", choices.strategies, "strategies", choices.strategies[:2])
    settings = text(third.text_input, "Options", "settings", placeholder="overlap=off, bucket=0")
    first, second, third = st.columns(3)
    devices = number(first, "Devices", "devices", placeholder="all of the machine's; 1 for this CPU")
    about = "alias, copy, or copy:GB/s such as copy:0.5; with ,blocking behind it, receives block as NCCL's do"
    link = text(second.text_input, "Link between groups of this CPU's cores", "link", DEFAULT_PLACEMENT.link, help=about)
    partition = number(third, "Parts of one GPU", "partition", placeholder="1: the GPU is not split")
    asked = st.button("Predict", type="primary")
    try:
        if not strategies:
            raise StepcastError("no strategy chosen; choose at least one")
        fields = (model, batch or 1, image_size, optimizer, form, precision, machine, tuple(strategies))
        return Request(*fields, parse_settings(settings), devices, link.strip() or DEFAULT_PLACEMENT.link, partition), asked
    except StepcastError:
        if asked:
            raise
        return None, False


def request_words(request: Request) -> str:
    """The job of a request: model, batch, image size, optimizer, precision, machine, devices and options."""
    parts = [request.model, f"batch {request.batch}"]
    if request.image_size:
        parts.append(f"image size {request.image_size}")
    parts += [f"{request.optimizer}:{request.form}", request.precision, f"on {request.machine}"]
    if request.devices:
        parts.append(f"{request.devices} device{'' if request.devices == 1 else 's'}")
    if request.partition:
        parts.append(f"split into {request.partition}")
    if request.link != DEFAULT_PLACEMENT.link:
        parts.append(f"link {request.link}")
    if request.settings:
        parts.append(options_text(dict(request.settings)))
    return ", ".join(parts)
