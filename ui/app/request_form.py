"""The widgets of a request: the job, the machine, and the options of strategies, read from each strategy's dataclass."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import streamlit as st
from pydantic import TypeAdapter
from streamlit.delta_generator import DeltaGenerator

from simulator.machine.presets import listed_name
from simulator.machine.scaled import ABOUT, AS_IT_IS, scale_of
from simulator.predict.usual import Usual
from simulator.strategies import registry as strategies
from traces import units
from traces.errors import SchedcastError, UnknownNameError
from traces.units import read_integer, read_number
from ui.app.links import OPTIONS, request_fields
from ui.app.model import EXAMPLE, first_query
from ui.app.share_parts import check_link, opened_by_link, refuse_link
from ui.app.state import DEFAULT_OF, LONE_SURROGATE, MOST, factor, number, quantity, select, several, text
from ui.present.labels import markdown_escaped, model_name, option_value
from ui.request import DECLARED, DEVICES, FILES, JOB, JobRequest, Option, start_models
from ui.service import jobs
from ui.service.jobs import Choices, MachineFacts

#: The form of the name of a machine of many GPUs: 64xh100.
_CLUSTER = re.compile(r"[0-9]{1,5}x[a-z0-9][a-z0-9.-]{0,40}")


@dataclass(frozen=True)
class OptionField:
    """One option. `default` and `choices` are of the kind: booleans of a switch, texts of a choice or a text, numbers of a number.

    An "open" choice takes other texts too. `least`: the smallest number, if there is one.
    """

    name: str
    about: str
    kind: Literal["switch", "choice", "open", "number", "text"]
    default: Any
    choices: tuple[str, ...] = ()
    least: float | None = None


@cache
def option_fields(strategy: str) -> tuple[OptionField, ...]:
    """The options of a strategy, in the order of its dataclass; none of one that the registry does not have."""
    if strategy not in strategies.names():
        return ()
    known = strategies.get(strategy)
    schemas = TypeAdapter(known.options_type).json_schema().get("properties", {}).values()
    documented = zip(known.option_docs(), schemas, strict=True)
    return tuple(_field(name, about, default, schema) for (name, about, default), schema in documented if name not in FILES)


def _field(name: str, about: str, default: Any, schema: dict[str, Any]) -> OptionField:
    if schema.get("type") == "boolean":
        return OptionField(name, about, "switch", default)
    if "enum" in schema:
        return OptionField(name, about, "choice", option_value(default), tuple(map(str, schema["enum"])))
    if schema.get("type") in ("integer", "number"):
        return OptionField(name, about, "number", default, least=schema.get("minimum"))
    words = [str(each["const"]) for each in schema.get("anyOf", ()) if "const" in each]
    if words:
        return OptionField(name, about, "open", option_value(default), tuple(words))
    return OptionField(name, about, "text", option_value(default))


def strategy_text(strategy: str, values: dict[str, Any]) -> str:
    """A strategy with the options that differ from its defaults, as the command line takes it: turbodl:async=off,alpha=2."""
    usual = {field.name: field.default for field in option_fields(strategy)}
    texts = [f"{name}={option_value(value)}" for name, value in values.items() if value != usual[name] and option_value(value) != ""]
    return f"{strategy}:{','.join(texts)}" if texts else strategy


def option_values(text: str) -> dict[str, Any]:
    """The values that a text such as turbodl:async=off gives to options that a form shows. Other text is ignored."""
    strategy, _, tail = text.partition(":")
    if strategy not in strategies.names():
        return {}
    given = dict(part.partition("=")[::2] for part in tail.split(","))
    fields = {field.name: field for field in option_fields(strategy)}
    read = {name: _read(fields[name], value.strip()) for name, value in given.items() if name in fields}
    return {name: value for name, value in read.items() if value is not None}


def _read(field: OptionField, text: str) -> Any:
    """The value of a text, None if it is none of the field's."""
    if field.kind == "switch":
        return {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}.get(text.lower())
    if field.kind == "choice":
        return text if text in field.choices else None
    if field.kind == "number":
        try:
            return type(field.default)(text)
        except (ValueError, OverflowError):
            return None
    return text


def options_ui(strategy: str) -> str:
    """Let the user change a strategy's options. Returns the strategy with those that differ, as the command line takes it."""
    fields = option_fields(strategy)
    if not fields:
        return strategy
    with st.expander(f"Options of {strategy}"):
        return strategy_text(strategy, {field.name: _value(strategy, field) for field in fields})


def put_options(strategy: str) -> str:
    """Set the widgets to the options of a text such as turbodl:async=off. Returns the name of the strategy."""
    name = strategy.partition(":")[0]
    for option, value in option_values(strategy).items():
        st.session_state[_key(name, option)] = value
    return name


def _key(strategy: str, option: str) -> str:
    return f"option {strategy} {option}"


def _value(strategy: str, field: OptionField) -> Any:
    key, about = _key(strategy, field.name), markdown_escaped(field.about)
    if field.kind == "switch":
        kept = st.session_state.get(key, field.default)
        st.session_state[key] = kept if isinstance(kept, bool) else field.default
        return st.toggle(field.name, key=key, help=about)
    if field.kind == "choice":
        return select(st, field.name, field.choices, key, field.default, help=about)
    if field.kind == "open":
        kept = st.session_state.get(key)
        kept = kept.strip() if isinstance(kept, str) and not LONE_SURROGATE.search(kept) else ""
        kept = kept or field.default
        offered = list(dict.fromkeys([*field.choices, "1", "2", "4", kept]))
        return select(st, field.name, offered, key, kept, help=about, accept_new_options=True) or field.default
    if field.kind == "number":
        return _number(key, field, about)
    return text(st.text_input, field.name, key, field.default, help=about).strip()


def _number(key: str, field: OptionField, about: str) -> float:
    whole, least = isinstance(field.default, int), field.least or 0
    kept = st.session_state.get(key, field.default)
    usable = isinstance(kept, int if whole else int | float) and not isinstance(kept, bool) and least <= kept <= MOST
    st.session_state[key] = (int if whole else float)(kept if usable else field.default)
    bounds = {"min_value": int(least), "max_value": MOST, "step": 1} if whole else {"min_value": float(least), "max_value": float(MOST)}
    return st.number_input(field.name, key=key, help=about, **bounds)


#: The steps of the sliders of a machine's figures, and the batches of the batch slider.
FACTORS = (0.05, 0.1, 0.2, 0.25, 0.33, 0.5, 0.67, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0, 20.0)
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
LABELS = {"sms": "SMs or cores", "flops": "FLOP/s", "memory": "Memory bandwidth", "launch": "Launch time", "link": "Link bandwidth"}


def put_link(page: str, *more: str) -> dict[str, list[str]] | None:
    """Set the controls to the link that the user came with, or in a new session to the first page's example. Returns the link's query.

    `more`: what the page's links name besides a request. Without a link, the result is None.
    """
    linked = put = opened_by_link(page, (*OPTIONS, *more))
    choices = jobs.choices()
    if linked is None and "model" not in st.session_state:
        first = first_query(start_models())
        put = first if first["model"][0] in choices["model"] else None
    if put is not None:
        put_fields(request_fields(put), choices)
    return linked


def put_fields(given: Mapping[str, Any], choices: Choices) -> None:
    """Set the controls to the fields of a request that a link gives, and all others to their defaults.

    Values of the link that are not in `choices` have no control; `check_link` says so.
    """
    refuse_link(_not_offered(given, choices))
    names = {option.widget: option.name for option in DECLARED if not option.several}
    shown = {*names, "strategies"}
    for key in [key for key in st.session_state if str(key).removeprefix(DEFAULT_OF) in shown or str(key).startswith("option ")]:
        del st.session_state[key]
    for key in (key for key, name in names.items() if name in given):
        st.session_state[key] = given[names[key]]
    if "strategies" in given:
        st.session_state["strategies"] = list(dict.fromkeys(put_options(strategy) for strategy in given["strategies"]))
    try:
        scale = scale_of(given.get("scale", ""))
    except SchedcastError:
        scale = AS_IT_IS
    for name in ABOUT:
        st.session_state[_scale_key(name)] = getattr(scale, name)


def _not_offered(given: Mapping[str, Any], choices: Choices) -> str:
    """Which name of a link is not among the choices, in one line; empty if all are."""
    for name, value in given.items():
        listed, offered = isinstance(value, tuple), choices.get(name)
        for each in [strategy.partition(":")[0] for strategy in value] if listed else [value]:
            if offered is not None and each not in offered and not (name == "machine" and _CLUSTER.fullmatch(each)):
                return str(UnknownNameError("strategy" if listed else name, each, offered))
    return ""


def request_ui(every: bool = False) -> JobRequest:
    """The request that the controls describe now. With `every`, no strategy chosen means all of them, with everything that they offer.

    Raises SchedcastError if no strategy is chosen otherwise, and as `check_link` does.
    """
    choices = jobs.choices()
    model = select(st, "Model", choices["model"], "model", words=_short)
    batch = _batch_ui()
    machine = _machine_ui(choices)
    usual = usual_of_machine(model, machine)
    about = st.container()
    if every:
        texts = tuple(several(st, "Strategies", choices["strategies"], "searched strategies", (), placeholder="all"))
    else:
        every_name = choices["strategies"]
        first = [name for name in usual.strategies or EXAMPLE.strategies if name in every_name] or every_name[:2]
        strategies = several(st, "Strategies", every_name, "strategies", first)
        texts = tuple(options_ui(strategy) for strategy in strategies)
    job = _group_ui("Job", JOB, choices, usual)
    devices = st.empty()
    place = _group_ui("Placement", DEVICES, choices, usual)
    request = JobRequest(model, batch, **job, **place, machine=machine, strategies=texts)
    try:
        facts = jobs.facts(request)
    except SchedcastError:
        facts = MachineFacts(1, {})  # the answers say what is wrong
    _about_ui(about, facts)
    request = replace(request, devices=_devices_ui(devices, facts), scale=_figures_ui(facts)).brief
    check_link(request)
    if not texts and not every:
        raise SchedcastError("no strategy chosen; choose at least one")
    return request


def _machine_ui(choices: Choices) -> str:
    """The machine: one of the choices, or what the user writes, by its usual name. The answers refuse what is none."""
    kept = st.session_state.get("machine")
    if isinstance(kept, str) and kept not in choices["machine"]:
        kept = st.session_state["machine"] = listed_name(kept)
    written = [kept] if isinstance(kept, str) and kept and not LONE_SURROGATE.search(kept) else []
    offered = list(dict.fromkeys([*choices["machine"], *written]))
    about = "Or write a number of GPUs, such as 64xh100: nodes of eight, and the usual network between them."
    return select(st, "Machine or profile", offered, "machine", words=_short, help=about, accept_new_options=True)


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


def usual_of_machine(model: str, machine: str) -> Usual:
    """What is usual for a model on a machine, on the devices that the user chose of it before."""
    kept, most = st.session_state.get("devices"), JobRequest(model, machine=machine).gpus
    return JobRequest(model, machine=machine, devices=kept if isinstance(kept, int) and 1 <= kept < most else None).usual


def _group_ui(title: str, group: str, choices: Choices, usual: Usual) -> dict[str, Any]:
    """The fields of a group that have an ordinary control, as it says now. `usual`: what they are at first."""
    with st.expander(title):
        return {
            option.name: _control_ui(option, choices, getattr(usual, option.name, option.default))
            for option in DECLARED
            if option.group == group and option.label
        }


def _control_ui(option: Option, choices: Choices, default: Any) -> Any:
    offered, key, about = choices.get(option.name), option.widget, option.about
    if offered is not None:
        return select(st, option.label, offered, key, default if default in offered else None, help=about)
    if option.read is read_integer:
        return number(st, option.label, key, option.default, option.empty, help=about) or option.default
    if option.read is read_number:
        return quantity(st, option.label, key, option.empty, help=about)
    return text(st.text_input, option.label, key, default or "", placeholder=option.empty, help=about).strip() or option.default


def _devices_ui(place: DeltaGenerator, facts: MachineFacts) -> int | None:
    """The number of devices; None for all of a named machine, or one group of a CPU's cores. Without a choice, there is no control."""
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


def request_words(request: JobRequest) -> str:
    """The job of a request: model, batch, input size, optimizer, precision, machine, devices and everything else that is not a default."""
    return ", ".join([model_name(request.model), *request.words])


def title(request: JobRequest) -> str:
    """The words of a request as Markdown."""
    return markdown_escaped(request_words(request))
