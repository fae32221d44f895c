"""The controls with which the user says what to predict, beside the answers, and the words that title the answers."""

from collections.abc import Mapping
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from calibrate.placement import DEFAULT_PLACEMENT
from simulator.machine.scaled import ABOUT, AS_IT_IS, scale_of
from traces import units
from traces.errors import StepcastError, UnknownNameError
from ui.app.model import EXAMPLE, Choices, MachineFacts, Predictor, Request, find_predictor, first_query, start_models
from ui.app.option_form import options_ui, put_options
from ui.app.share_parts import check_link, refuse_link
from ui.app.state import factor, number, quantity, select, several, text
from ui.text.labels import markdown_escaped, model_name, options_text

#: The steps of the sliders of a machine's figures, and the batches of the batch slider.
FACTORS = (0.05, 0.1, 0.2, 0.25, 0.33, 0.5, 0.67, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0, 20.0)
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
LABELS = {"sms": "SMs or cores", "flops": "FLOP/s", "memory": "Memory bandwidth", "launch": "Launch time", "link": "Link bandwidth"}
#: Keys of the widgets by the field of a request. Figures and options of strategies have widgets of their own.
_KEYS = {
    "model": "model", "batch": "batch", "image_size": "image size", "optimizer": "optimizer", "form": "form", "precision": "precision",
    "machine": "machine", "devices": "devices", "link": "link", "partition": "partition", "accumulate": "accumulate",
    "clip_norm": "clip norm", "layout": "layout", "mode": "mode", "memory_limit_gb": "memory limit",
}  # fmt: skip


def predictor_ui(command: str) -> Predictor | None:
    """The predictor. If this installation has none, the page says which `stepcast` command to use instead, and the result is None."""
    predictor = find_predictor()
    if predictor is None:
        st.info(
            f"This installation cannot predict from the app, because it has no `ui.jobs`. Use `stepcast {command}` on the command line."
        )
    return predictor


def linked_or_first(linked: dict[str, list[str]] | None, choices: Choices) -> dict[str, list[str]] | None:
    """The query that the user came with, or in a new session that of the first page's example; None if the controls stay as they are."""
    if linked is not None or "model" in st.session_state:
        return linked
    first = {name: [value] if isinstance(value, str) else value for name, value in first_query(start_models()).items()}
    return first if first["model"][0] in choices.models else None


def put_fields(given: Mapping[str, Any], choices: Choices) -> None:
    """Set the controls to the fields of a request that a link gives, and all others back to what is usual.

    What the link names and `choices` lack has no control; `check_link` says so.
    """
    refuse_link(_not_offered(given, choices))
    for key in [*_KEYS.values(), "strategies", *map(_scale_key, ABOUT)]:
        st.session_state.pop(key, None)
    for key in [key for key in st.session_state if str(key).startswith("option ")]:
        del st.session_state[key]
    for field, key in _KEYS.items():
        if field in given:
            st.session_state[key] = given[field]
    if "strategies" in given:
        st.session_state["strategies"] = list(dict.fromkeys(put_options(strategy) for strategy in given["strategies"]))
    try:
        scale = scale_of(given.get("scale", ""))
    except StepcastError:
        scale = AS_IT_IS
    for name in ABOUT:
        st.session_state[_scale_key(name)] = getattr(scale, name)


def _not_offered(given: Mapping[str, Any], choices: Choices) -> str:
    """Which name of a link is not among the choices, in one line; empty if all are."""
    for what in ("model", "machine", "strategy", "optimizer", "form", "precision", "layout", "mode"):
        offered = getattr(choices, "strategies" if what == "strategy" else f"{what}s")
        names = [text.partition(":")[0] for text in given.get("strategies", ())] if what == "strategy" else [given.get(what, offered[0])]
        for name in names:
            if name not in offered:
                return str(UnknownNameError(what, name, offered))
    return ""


def request_ui(predictor: Predictor, every: bool = False) -> Request:
    """The request that the controls describe now. With `every`, no strategy chosen means all of them, with everything that they offer.

    Raises StepcastError if no strategy is chosen otherwise, and as `check_link` does.
    """
    choices = predictor.choices()
    model = select(st, "Model", choices.models, "model", words=_short)
    batch = _batch_ui()
    machine = select(st, "Machine or profile", choices.machines, "machine", words=_short)
    about = st.container()
    if every:
        texts = tuple(several(st, "Strategies", choices.strategies, "searched strategies", (), placeholder="all"))
    else:
        usual = [name for name in EXAMPLE.strategies if name in choices.strategies] or choices.strategies[:2]
        strategies = several(st, "Strategies", choices.strategies, "strategies", usual)
        texts = tuple(options_ui(strategy) for strategy in strategies)
    job = _job_ui(choices)
    devices = st.empty()
    place = _place_ui()
    known = Request(model, batch, **job, **place, machine=machine, strategies=texts)
    try:
        facts = predictor.facts(known)
    except StepcastError:
        facts = MachineFacts(1, {})  # the answers say what is wrong
    _about_ui(about, facts)
    counted = _devices_ui(devices, facts)
    scale = _figures_ui(facts)
    request = Request(model, batch, **job, **place, machine=machine, strategies=texts, devices=counted, scale=scale)
    check_link(request)
    if not texts and not every:
        raise StepcastError("no strategy chosen; choose at least one")
    return request


def _about_ui(place: DeltaGenerator, facts: MachineFacts) -> None:
    """Show the specification of the machine, how old its profile is, and what makes it less reliable."""
    if facts.about:
        place.caption(markdown_escaped(facts.about))
    for caution in facts.cautions:
        place.caption(f":material/info: {markdown_escaped(caution)}")


def _short(model: str) -> str:
    return model if len(model) <= 40 else f"...{model[-37:]}"


def _batch_ui() -> int:
    """The batch, in a box for any number and on a slider for the usual ones."""
    batch = number(st, "Batch size", "batch", default=32) or 1
    st.session_state["batch slider"] = batch

    def moved() -> None:
        st.session_state["batch"] = st.session_state["batch slider"]

    offered = sorted({*BATCHES, batch})
    st.select_slider("Batch size", offered, key="batch slider", on_change=moved, label_visibility="collapsed")
    return batch


def _job_ui(choices: Choices) -> dict[str, Any]:
    with st.expander("Job"):
        return {
            "image_size": number(st, "Image size, or length of a sequence", "image size", placeholder="the model's own"),
            "optimizer": select(st, "Optimizer", choices.optimizers, "optimizer"),
            "form": select(st, "Form of the update", choices.forms, "form"),
            "precision": select(st, "Precision", choices.precisions, "precision", help="amp: autocast to bf16, as users run it"),
            "layout": select(st, "Layout of images", choices.layouts, "layout"),
            "accumulate": number(st, "Micro-batches per update", "accumulate", default=1, help="gradient accumulation") or 1,
            "clip_norm": quantity(st, "Clip gradients to the norm", "clip norm", "no clipping"),
        }


def _place_ui() -> dict[str, Any]:
    with st.expander("Placement"):
        about = "alias, copy, or copy:GB/s such as copy:0.5; with ,blocking behind it, receives block as NCCL's do"
        return {
            "mode": select(st, "Mode", ("eager", "graph"), "mode", help="graph: CUDA graphs, on a GPU"),
            "memory_limit_gb": quantity(st, "Memory limit, GB", "memory limit", "the memory's size"),
            "partition": number(st, "Parts of one GPU", "partition", placeholder="1: the GPU is not split"),
            "link": text(st.text_input, "Link between groups of CPU cores", "link", DEFAULT_PLACEMENT.link, help=about).strip()
            or DEFAULT_PLACEMENT.link,
        }


def _devices_ui(place: DeltaGenerator, facts: MachineFacts) -> int | None:
    """The number of devices; None for all of a named machine, or one group of a CPU's cores. No control where there is no choice."""
    usual = 1 if facts.is_cpu else facts.devices
    if facts.devices < 2:
        return None
    kept = st.session_state.get("devices")
    st.session_state["devices"] = kept if isinstance(kept, int) and not isinstance(kept, bool) and 1 <= kept <= facts.devices else usual
    about = "Devices that strategies for several may use; all others use one." + (" On a CPU, groups of its cores." if facts.is_cpu else "")
    count = place.select_slider("Devices", range(1, facts.devices + 1), key="devices", help=about)
    return None if count == usual else count


def _figures_ui(facts: MachineFacts) -> str:
    """The factors of the machine's figures, as `scale_of` reads them."""
    factors = {}
    with st.expander("What if the machine were faster", expanded=True):
        for name, figure in facts.figures.items():

            def words(times: float, figure=figure) -> str:
                value = figure.value * times
                shown = f"{value:.0f}" if value >= 100 or figure.unit in ("SMs", "cores") else units.digits(value)
                return markdown_escaped(f"{shown} {figure.unit}" + ("" if times == 1 else f" ({times:g}x)"))  # a slider shows Markdown

            factors[name] = factor(st, LABELS[name], _scale_key(name), FACTORS, words, help=ABOUT[name])
    return ",".join(f"{name}={times:g}" for name, times in factors.items() if times != 1)


def _scale_key(name: str) -> str:
    return f"times {name}"


def request_words(request: Request) -> str:
    """The job of a request: model, batch, image size, optimizer, precision, machine, devices and what else is not as usual."""
    counts = "1 device" if request.devices == 1 else f"{request.devices} devices"
    parts = [
        model_name(request.model),
        f"batch {request.batch}",
        f"image size {request.image_size}" if request.image_size else "",
        f"{request.accumulate} micro-batches" if request.accumulate > 1 else "",
        f"{request.optimizer}:{request.form}",
        f"norm at most {request.clip_norm:g}" if request.clip_norm else "",
        "default precision" if request.precision == "default" else request.precision,
        request.layout if request.layout != "nchw" else "",
        request.mode if request.mode != "eager" else "",
        f"on {request.machine}",
        counts if request.devices else "",
        f"split into {request.partition}" if request.partition else "",
        f"link {request.link}" if request.link != DEFAULT_PLACEMENT.link else "",
        f"{request.memory_limit_gb:g} GB at most" if request.memory_limit_gb else "",
        f"with {request.scale}" if request.scale else "",
        options_text(dict(request.settings)),
    ]
    return ", ".join(filter(None, parts))


def title(request: Request) -> str:
    """The words of a request as Markdown."""
    return markdown_escaped(request_words(request))
