"""The app's first page: four entry points, for a user with a model, a language model, a trace or a report, each with an example."""

from collections.abc import Mapping
from dataclasses import dataclass

import streamlit as st

from ui.app.model import EXAMPLE, LANGUAGE_MODEL, first_query, report_places, start_arguments, start_traces
from ui.app.navigation import link_ui
from ui.present.labels import SCHEDULE, markdown_escaped
from ui.request import start_models

TITLE, ICON, ORDER = "Home", ":material/home:", 0
ABOUT = f"How long a training step takes under a schedule: predicted for any machine, and measured by running that schedule. {SCHEDULE}"


@dataclass(frozen=True)
class Door:
    """One way in.

    `page`: the name of a module of `ui.app.pages`. `example`: the query of its link. `other`: more pages of this entry point.
    """

    title: str
    icon: str
    about: str
    page: str
    label: str
    command: str
    example: Mapping[str, list[str]]
    other: tuple[str, ...] = ()


def doors() -> list[Door]:
    """The entry points, which name what was given at start."""
    own, traces, reports = start_models(), start_traces(), report_places(start_arguments())
    return [
        Door(
            title="I have a model",
            icon=":material/model_training:",
            about="What would backward-fusion, TurboDL or several devices give? On this CPU, or on a GPU that you do not have.",
            page="what_if",
            label=f"Yours: {own[0]}" if own else f"Example: {EXAMPLE.model} on {EXAMPLE.machine}",
            command="schedcast ui --model FILE.py:FACTORY",
            example=first_query(own),
            other=("compare", "editor", "search", "machine"),
        ),
        Door(
            title="I have a language model and GPUs",
            icon=":material/hub:",
            about="Does it fit, how many tokens a second, and what does a training take and cost? On 2 to 512 GPUs that you need not own.",
            page="what_if",
            label=f"Example: {LANGUAGE_MODEL.model} on {LANGUAGE_MODEL.machine}",
            command="schedcast predict llama3:8b --batch 16 --machine 8xh100",
            example={"model": [LANGUAGE_MODEL.model], "batch": [str(LANGUAGE_MODEL.batch)], "machine": [LANGUAGE_MODEL.machine]},
            other=("search",),
        ),
        Door(
            title="I have a trace",
            icon=":material/timeline:",
            about="Where does a recorded step of torch.profiler lose its time, and what would make it faster?",
            page="trace",
            label="Your traces" if traces else "Example: a step that waits for its host",
            command="schedcast ui --trace trace.json.gz",
            example={},
            other=("differences",),
        ),
        Door(
            title="I have a report",
            icon=":material/fact_check:",
            about="How well did predictions hold when the schedules ran?",
            page="validate",
            label="Your reports" if reports else "Example: lenet5 on two cores",
            command="schedcast validate --model NAME --out DIR",
            example={},
            other=("accuracy", "papers"),
        ),
    ]


def page() -> None:
    """Show the entry points."""
    st.title("Schedcast", anchor=False)
    st.markdown(ABOUT)
    offered = doors()
    for column, door in zip(st.columns(len(offered)), offered, strict=True):
        with column.container(border=True):
            st.subheader(f"{door.icon} {door.title}", anchor=False)
            st.markdown(door.about)
            link_ui(door.page, markdown_escaped(door.label), door.example)
            st.caption("Your own:")
            st.code(door.command, language="bash", wrap_lines=True)
            with st.container(horizontal=True):
                for name in door.other:
                    link_ui(name)
