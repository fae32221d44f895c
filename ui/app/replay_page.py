"""The app's page of recorded traces: the replay compared with the recording, and the effect of what-if rules."""

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from simulator.whatif import registry as whatif
from simulator.whatif.replayed import Answer, Replayed, ask, one_step, replayed, typical_step
from traces import units
from traces.errors import StepcastError
from ui.figures.timeline_chart import timelines_figure
from ui.text import replays as replay_words
from ui.text.labels import markdown_escaped

EXAMPLE = "kernel:gemm|conv*=0.5\nhost*=0.5"


def replay_ui(traces: Sequence[Path]) -> None:
    """Let the user choose a trace, show its replay, and answer what-if rules."""
    if not traces:
        st.info(
            "No trace yet. Record a few steps with `torch.profiler`, call `export_chrome_trace`, and start the app with"
            " `stepcast ui --trace trace.json.gz`."
        )
        return
    choices = [(trace,) for trace in traces] + ([tuple(traces)] if len(traces) > 1 else [])
    chosen = st.sidebar.selectbox("Trace", choices, format_func=_choice_words)
    rules = rules_ui()
    try:
        replay = load_replay(tuple(map(str, chosen)), tuple(map(_stamp, chosen)))
        summary_ui(replay)
        if rules:
            answer_ui(replay, ask(replay, rules))
    except StepcastError as error:
        st.error(markdown_escaped(str(error)))


def _choice_words(traces: Sequence[Path]) -> str:
    return traces[0].name if len(traces) == 1 else f"all {len(traces)}, as ranks of one job"


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


@st.cache_resource(max_entries=4, show_spinner="Replaying the trace")
def load_replay(traces: tuple[str, ...], stamps: tuple[int, ...]) -> Replayed:
    """The replay of traces, from the cache. They are replayed again when a file has changed, which `stamps` show."""
    return replayed(traces)


def rules_ui() -> list[str]:
    """The rules that the user last entered, one per line."""
    with st.sidebar.form("rules"):
        text = st.text_area("What if", placeholder=EXAMPLE, help="One rule per line, applied in order.", key="rules text")
        st.form_submit_button("Ask", type="primary")
    with st.sidebar.expander("Rules"):
        for rule in whatif.rules():
            st.markdown(f"`{rule.form}`: {markdown_escaped(rule.about)}")
    return [line.strip() for line in text.splitlines() if line.strip()]


def summary_ui(replay: Replayed) -> None:
    """Show the replay compared with the recording: figures, one step drawn, sentences, tables."""
    result = replay.result
    number = typical_step(result)
    simulated = one_step(replay.replay, replay.simulated, number, "replayed")
    recorded = one_step(replay.replay, replay.replay.recorded, number, "recorded")
    left, middle, right = st.columns(3)
    left.metric("GPU period, recorded", units.duration(result.gpu_period_measured_s))
    middle.metric("Replayed", units.duration(result.gpu_period_simulated_s))
    right.metric("Error", units.percent(result.error))
    st.plotly_chart(timelines_figure(simulated, recorded), key="replay")
    st.write(markdown_escaped(" ".join(replay_words.replay_words(result))))
    for title, cells in (
        ("Streams", replay_words.busy_cells(result)),
        ("Steps", replay_words.step_cells(result)),
        ("Worst-placed kernels", replay_words.misplaced_cells(result)),
    ):
        if cells:
            with st.expander(title):
                st.dataframe(cells, hide_index=True)


def answer_ui(replay: Replayed, answer: Answer) -> None:
    """Show the effect of the rules, and what was assumed."""
    st.subheader("What if " + markdown_escaped(", ".join(answer.what_if.rules)))
    left, middle, right = st.columns(3)
    left.metric("GPU period before", units.duration(answer.what_if.gpu_period_before_s))
    middle.metric("After", units.duration(answer.what_if.gpu_period_after_s))
    right.metric("Speed-up", units.speedup(answer.what_if.speedup))
    step = one_step(answer.replay, answer.timeline, typical_step(replay.result), "what if")
    st.plotly_chart(timelines_figure(step), key="what if replay")
    for line in replay_words.what_if_words(answer.what_if)[1:]:
        st.markdown(f"- {markdown_escaped(line)}")
