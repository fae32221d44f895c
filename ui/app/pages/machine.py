"""The app's page of a machine: its figures, the roofline of a job, what was measured on it, and what makes that less reliable."""

from dataclasses import replace
from functools import lru_cache

import streamlit as st

from calibrate.identity import comparable_cpu
from calibrate.profiles import own_profile
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.op_points import OpPoint, key_points, op_points, roof
from simulator.predict.forecast import plan_of
from ui.app.links import command, query_of, request_fields
from ui.app.page_parts import blocks_ui, formulas_ui, table_ui
from ui.app.request_form import put_fields
from ui.app.share_parts import Download, check_link, csv, keep_link, opened_by_link, share_ui
from ui.app.state import number, select
from ui.present import machines
from ui.present.blocks import Group, Table
from ui.present.labels import markdown_escaped
from ui.present.machines import roofline_figure
from ui.request import LARGEST_BATCH, PROFILE, JobRequest, stored_profiles
from ui.service import jobs
from ui.service.cache import Asked, asked_of

TITLE, ICON, ORDER = "Machine", ":material/memory:", 80
#: The names in the query of the page's link.
LINKED = ("machine", "model", "batch", "precision")
_THIS_CPU = "this-cpu"


def page() -> None:
    """Let the user choose a machine and a job, and show both."""
    choices = jobs.choices()
    linked = opened_by_link("machine", LINKED)
    if linked is not None:
        put_fields(request_fields(linked), choices)
    first, second, third, fourth = st.columns(4)
    chosen = select(first, "Machine or profile", choices["machine"], "machine")
    name = select(second, "Model", choices["model"], "model")
    batch = number(third, "Batch size", "batch", default=32) or 1
    precision = select(fourth, "Precision", choices["precision"], "precision")
    request = JobRequest(name, batch, precision=precision, machine=chosen, strategies=("baseline",))
    check_link(request)
    keep_link("machine", query_of(request))
    with st.spinner("Planning the job"):
        model, points = machine_of_job(asked_of(replace(request, batch=min(batch, LARGEST_BATCH))))
    profile = model.profile
    if profile is not None:
        st.write(markdown_escaped(machines.age_words(profile)))
        by_name = chosen.startswith(PROFILE) and profile.identity.kind == "cpu"  # others need not be of this machine
        for warning in machines.warnings(profile, comparable_cpu() if by_name else None):
            st.warning(markdown_escaped(warning))
    elif chosen == _THIS_CPU:
        st.warning(markdown_escaped(machines.NOT_CALIBRATED))
        if own_profile() is None and any(path.name == f"{comparable_cpu().name}.json" for path in stored_profiles().values()):
            st.caption("A profile of this machine exists, but with other software; `schedcast profiles` lists it.")
    own_roof = roof(model)
    keys = key_points(profile) if profile is not None else []
    st.plotly_chart(roofline_figure(points, own_roof, keys), key="roofline")
    table_ui(machines.op_cells(points, own_roof))
    formulas_ui("FLOPs per byte", "FLOP/s", "Share of the roof", "Cold over warm", "Spread", "Slow-down")
    figures_ui(model)
    if profile is not None:
        blocks_ui(machines.profile_blocks(profile, keys), "profile")
    ops = machines.op_cells(points, own_roof, len(points))
    share_ui(command(request), query_of(request), [Download("Ops (CSV)", "ops.csv", "text/csv", lambda: csv(ops))])


@lru_cache(maxsize=8)
def machine_of_job(asked: Asked) -> tuple[CostModel, tuple[OpPoint, ...]]:
    """The costs of the requested machine, and the ops of the job's baseline on it."""
    model = asked.target.costs
    return model, tuple(op_points(plan_of(asked.job, "baseline", asked.target), model))


def figures_ui(model: CostModel) -> None:
    """Show the machine's figures, links and host costs."""
    left, right = st.columns(2)
    tables = [Table(machines.specification_cells(model.machine)), Table(machines.link_cells(model.machine))]
    with left:
        blocks_ui([Group("Figures", tables)], "figures")
    with right:
        blocks_ui([Group("Host and executor", [Table(machines.host_cells(model.machine, model.profile))])], "host")
