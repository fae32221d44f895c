"""The app's page of recorded traces: where the step's time goes, what would make it faster, and the effect of what-if rules."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import streamlit as st

from simulator.predict.rule_records import record_of
from simulator.replay.diff.stragglers import stragglers
from simulator.replay.replay import Replay
from simulator.replay.whatif import registry as whatif
from simulator.replay.whatif.edit import device_work
from simulator.replay.whatif.matching import kernel_classes, kernel_matches
from simulator.replay.whatif.replayed import Answer, Replayed, ask, changes, marked, one_step, ranked, replayed, with_median_step
from traces import units
from traces.documents.replay_result import ReplayResult, StragglerCost
from traces.documents.shipped import example_traces
from traces.errors import UnknownNameError
from ui.app.navigation import refusals_shown
from ui.app.page_parts import blocks_ui, formulas_ui, table_ui, timelines_ui
from ui.app.share_parts import Download, check_link, csv, json_bytes, keep_link, opened_by_link, refuse_link, share_ui, timeline_svg
from ui.app.state import select, text
from ui.app.uploads import offered_traces, stamp, uploads_ui
from ui.present import replays as replay_words
from ui.present.blocks import Group, Sentences, Table
from ui.present.formulas import FORMULAS
from ui.present.labels import markdown_escaped
from ui.present.rules import JUDGED, OF_KERNELS, RULES, SPEEDS, changed_words, match_cells, match_words, record_words, rule_text

#: The key of the text of the requested rules.
RULES_KEY = "rules text"
#: Kernel names that are offered.
OFFERED = 8
_OWN = "a search of my own"


def rule_builder_ui(replay: Replay) -> None:
    """Let the user put a rule together, see what it matches, and add it to those that are asked."""
    st.subheader("Build a change", anchor=False)
    first, second, third = st.columns(3)
    kind = select(first, "Change", list(RULES), "built kind", words=RULES.__getitem__)
    speed = select(second, "How much", list(SPEEDS), "built speed") if "{speed}" in kind else ""
    regex = ""
    if kind in OF_KERNELS:
        classes = {each.name: each.pattern for each in kernel_classes(device_work(replay))[:OFFERED]}
        chosen = select(third, "Kernels", [*classes, _OWN], "built kernels")
        regex = classes.get(chosen, "")
        if chosen == _OWN:
            regex = text(st.text_input, "Search kernels by a regular expression", "built regex", placeholder="gemm|conv").strip()
        if not regex:
            st.caption("Write what the kernels' names contain.")
            return
        matches = kernel_matches(replay, regex)
        st.write(markdown_escaped(match_words(matches)))
        st.dataframe(match_cells(matches), hide_index=True)
    rule = rule_text(kind, speed, regex)
    if kind not in OF_KERNELS:
        st.write(markdown_escaped(replay_words.sentence(whatif.apply_rules(replay, [rule])[1][0])))
    left, right = st.columns([3, 1], vertical_alignment="center")
    left.code(rule, language=None)
    right.button("Add the change", icon=":material/add:", on_click=add_rule, args=(rule,), width="stretch")


def add_rule(rule: str) -> None:
    """Add a rule to the requested ones, unless it is there."""
    lines = [line for line in str(st.session_state.get(RULES_KEY, "")).splitlines() if line.strip()]
    st.session_state[RULES_KEY] = "\n".join(dict.fromkeys([*lines, rule]))


TITLE, ICON, ORDER = "Trace", ":material/replay:", 60
#: The names in the query of the page's link.
LINKED = ("trace", "what-if")
EXAMPLE = "kernel:/gemm|conv/ 2x faster\nhost 2x faster"


def page() -> None:
    """Let the user choose or upload a trace; show where its time goes, what would make it faster, and the effect of what-if rules."""
    traces = offered_traces()
    if not traces:
        st.info(
            "No trace yet, so this is a made-up example. Record a few steps with `torch.profiler`, call `export_chrome_trace`"
            " (or `nsys export --type sqlite`), and upload the file here, or start the app with `schedcast ui --trace trace.json.gz`."
        )
    choices = [(trace,) for trace in traces or example_traces()] + ([tuple(traces)] if len(traces) > 1 else [])
    linked = opened_by_link("trace", LINKED)
    if linked is not None:
        st.session_state[RULES_KEY] = "\n".join(linked.get("what-if", ()))
        _choose(choices, linked.get("trace", ()))
    named = {each: each[0].name if len(each) == 1 else f"all {len(each)}, as ranks of one job" for each in choices}
    chosen = select(st.sidebar, "Trace", choices, "trace", words=named.__getitem__)
    rules = rules_ui()
    with st.sidebar:
        if uploads_ui():
            st.rerun()
    files = (tuple(map(str, chosen)), tuple(map(stamp, chosen)))
    check_link(chosen)
    keep_link("trace", _query(chosen, rules))
    replay = load_replay(*files)
    st.subheader(markdown_escaped(replay_words.headline(replay.result)))
    largest_gain = st.empty()  # filled when the changes have been tried
    answer = ask(replay, rules) if rules else None
    number = diagnosis_ui(replay, answer)
    costs = load_stragglers(*files)
    stragglers_ui(costs, replay.result.gpu_period_simulated_s)
    if answer is not None:
        answer_ui(replay, answer, number)
    ladder = load_ladder(*files)
    ladder_ui(ladder)
    largest_gain.markdown(markdown_escaped(" ".join(replay_words.ladder_words(ladder))))
    with refusals_shown():
        rule_builder_ui(replay.replay)
    summary_ui(replay, number)
    command = ["schedcast", "replay", *map(str, chosen), *(word for rule in rules for word in ("--what-if", rule))]
    share_ui(shlex.join(command), _query(chosen, rules), downloads(replay, ladder, answer, costs, number))


def _choose(choices: Sequence[tuple[Path, ...]], named: Sequence[str]) -> None:
    """Choose the traces that a link names, if it names any. One that is not here is refused."""
    by_names = {tuple(path.name for path in choice): choice for choice in choices}
    st.session_state["trace"] = by_names.get(tuple(named))
    known = not named or tuple(named) in by_names
    refuse_link("" if known else str(UnknownNameError("trace", ", ".join(named), [", ".join(names) for names in by_names])))


def _query(traces: Sequence[Path], rules: Sequence[str]) -> dict[str, list[str]]:
    """The query of the page's link: the traces' names, and the rules."""
    return {name: values for name, values in zip(LINKED, ([path.name for path in traces], list(rules)), strict=True) if values}


def downloads(replay: Replayed, ladder: ReplayResult, answer: Answer | None, costs: Sequence[StragglerCost], number: int) -> list[Download]:
    """The ranked changes, the document of the command line (with rules, that of their answer), and the drawn step."""
    result = ladder if answer is None else answer.result
    if costs:
        result = result.model_copy(update={"stragglers": costs})
    step = partial(one_step, replay.replay, replay.simulated, number, "replayed")
    return [
        Download("Changes (CSV)", "changes.csv", "text/csv", lambda: csv(replay_words.ladder_cells(ladder))),
        Download(
            "Replay (JSON)", "replay.json", "application/json", lambda: json_bytes(with_median_step(result, replay.replay).document())
        ),
        timeline_svg("Step", "step", step),
    ]


@st.cache_resource(max_entries=4, show_spinner="Replaying the trace")
def load_replay(traces: tuple[str, ...], stamps: tuple[int, ...]) -> Replayed:
    """The replay of traces, from the cache. They are replayed again when a file has changed, which `stamps` show."""
    return replayed(traces)


@st.cache_resource(max_entries=4, show_spinner="Trying what would make it faster")
def load_ladder(traces: tuple[str, ...], stamps: tuple[int, ...]) -> ReplayResult:
    """The result with the ranked changes, from the cache."""
    return ranked(load_replay(traces, stamps))


@st.cache_resource(max_entries=4, show_spinner="Replaying every rank at the median rank's pace")
def load_stragglers(traces: tuple[str, ...], stamps: tuple[int, ...]) -> tuple[StragglerCost, ...]:
    """The cost of every rank, from the cache."""
    return stragglers(load_replay(traces, stamps).replay)


def stragglers_ui(costs: Sequence[StragglerCost], step_s: float) -> None:
    """Show what each rank, and each kind of work, costs the job."""
    if costs:
        table = Table(replay_words.cells(costs), title=replay_words.TITLE)
        blocks_ui([Group("Stragglers", [Sentences(replay_words.words(costs, step_s), listed=False), table])], "stragglers")


def rules_ui() -> list[str]:
    """The rules that the user last entered or added, one per line."""
    with st.sidebar.form("rules"):
        about = "One rule per line, answered alone and together, in order."
        entered = text(st.text_area, "What if", RULES_KEY, placeholder=EXAMPLE, help=about)
        st.form_submit_button("Ask", type="primary")
    with st.sidebar.expander("Rules"):
        for rule in whatif.rules():
            st.markdown(f"`{rule.form}`: {markdown_escaped(rule.about)} ({JUDGED}: {record_words(record_of(rule.name))})")
    return [line.strip() for line in entered.splitlines() if line.strip()]


def diagnosis_ui(replay: Replayed, answer: Answer | None) -> int:
    """Show the step times, let the user pick a step, and show where its time goes. Returns the number of the step."""
    result = replay.result if answer is None else answer.result
    median = result.steps[result.median_step]
    columns = st.columns(4)
    label = "Median step (GPU), recorded" if len(result.steps) > 1 else "Step time (GPU), recorded"
    columns[0].metric(label, units.duration(median.measured_s), help=FORMULAS["Step time (GPU)"])
    columns[1].metric("Replayed", units.duration(median.simulated_s))
    columns[2].metric("Mean, recorded", units.duration(result.gpu_period_measured_s), help=FORMULAS["Step time (GPU)"])
    columns[3].metric("Error of the mean", units.percent(result.error), help=FORMULAS["Error of a replay"])
    if result.slow_steps:
        st.markdown(markdown_escaped(" ".join(replay_words.slow_words(result))))
        table_ui(replay_words.slow_cells(result))
    number = result.median_step
    if len(result.steps) > 1:
        numbers, words = range(len(result.steps)), partial(replay_words.picked_words, result)
        number = select(st, "Step, in this table and in the timelines", numbers, "replayed step", result.median_step, words)
    if number != result.median_step:
        st.markdown(markdown_escaped(replay_words.step_headline(result, number)))
    table_ui(replay_words.diagnosis_cells(result, number))
    st.write(markdown_escaped(" ".join(replay_words.wait_words(result, number))))
    formulas_ui("Step time (GPU)", "Error of a replay", "Part of a step", "Saves", "Speed-up")
    return number


def summary_ui(replay: Replayed, number: int) -> None:
    """Show the replay compared with the recording: one step drawn, sentences, tables."""
    result = replay.result
    simulated = one_step(replay.replay, replay.simulated, number, "replayed")
    recorded = one_step(replay.replay, replay.replay.recording, number, "recorded")
    title = f"{result.steps[number].name}: replayed {units.duration(simulated.step_s)}, recorded {units.duration(recorded.step_s)}"
    timelines_ui("replay", simulated, recorded, title=title)
    blocks_ui([Sentences(replay_words.replay_words(result), listed=False), *replay_words.details(result)], "replay details")


def ladder_ui(result: ReplayResult) -> None:
    """Show the ranked changes and the bounds."""
    if not result.ladder:
        return
    st.subheader("What would make it faster")
    changes_table(replay_words.ladder_cells(result))
    st.markdown("Bounds: what a host, a network or an optimizer that takes no time would gain.")
    changes_table(replay_words.bounds_cells(result))


def changes_table(cells: list[dict[str, str]]) -> None:
    """Show changes and their gains in a table whose notes are as long as they need to be."""
    if not cells:
        return
    rows = [{name: markdown_escaped(words) for name, words in row.items()} for row in cells]
    st.table(pd.DataFrame(rows).set_index("change"), border="horizontal")


def answer_ui(replay: Replayed, answer: Answer, number: int) -> None:
    """Show the effect of the rules, on one step too, and on request what was assumed."""
    what_if = answer.what_if
    st.subheader("What if " + markdown_escaped(", ".join(each.rule for each in what_if.answers)))
    if what_if.remark:
        st.warning(markdown_escaped(what_if.remark))
    left, middle, right = st.columns(3)
    left.metric("Mean step (GPU) before", units.duration(what_if.gpu_period_before_s))
    middle.metric("After", units.duration(what_if.gpu_period_after_s))
    right.metric("Speed-up", units.speedup(what_if.speedup), help=FORMULAS["Speed-up"])
    changes_table(replay_words.answers_cells(what_if))
    changed = changes(replay.simulated, answer.timeline)
    recorded = one_step(replay.replay, marked(replay.replay.recording, changed), number, "recorded")
    step = one_step(answer.replay, marked(answer.timeline, changed), number, "what if")
    rules = ", ".join(what_if.rules) or "no change"
    title = f"recorded {units.duration(recorded.step_s)}, with {rules} {units.duration(step.step_s)}"
    timelines_ui("what if replay", recorded, step, title=title)
    st.write(markdown_escaped(changed_words(changed)))
    lines = replay_words.assumption_words(what_if)
    if lines:
        with st.expander("What was assumed"):
            st.markdown("\n".join(f"- {markdown_escaped(line)}" for line in lines))
