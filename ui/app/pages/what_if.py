"""The app's page of predictions: a job, a machine and strategies next to the predictions, which follow every change.

Predictions that do not fit in memory come first, in red and without a step time; if too little was measured for a verdict, the page offers
to measure it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import streamlit as st

from simulator.predict.sweep import outcome
from traces import units
from traces.documents.comparison import BASELINE, PYTORCH
from traces.documents.predictions import Predictions
from traces.errors import Refusal
from ui.app import runs
from ui.app.history import pin, remember
from ui.app.links import arguments, command, query_of, request_fields
from ui.app.navigation import link_ui, refusals_shown
from ui.app.page_parts import blocks_ui, formulas_ui, timelines_ui
from ui.app.request_form import put_link, request_ui, request_words, title
from ui.app.runs import command_ui
from ui.app.share_parts import Download, csv, json_bytes, keep_link, one_page, share_ui, timeline_svg
from ui.app.state import BUTTON, quantity, select
from ui.present import predictions
from ui.present.blocks import Section
from ui.present.formulas import FORMULAS, PREDICTED
from ui.present.labels import PEAK, markdown_escaped, no_verdict_words, strategy_name
from ui.present.predictions import fit_words
from ui.request import JobRequest
from ui.service import jobs
from ui.service.jobs import Answer

#: The module of `ui.app.pages` that shows the runs.
PAGE = "what_if"


def unmeasured_ui(request: JobRequest, forecasts: Sequence[Answer]) -> None:
    """Say first if too little was measured for a verdict. On this CPU, offer to measure the job, as `predict --calibrate` does."""
    here = all(answer.measured_here for answer in forecasts)
    words = no_verdict_words((answer.prediction.measured_share for answer in forecasts), here)
    if not words:
        return
    st.warning(markdown_escaped(words[0]))
    if not here or request.scale or not all(use.name.startswith("cpu") for answer in forecasts for use in answer.prediction.devices):
        return
    if runs.running() is not None:
        return
    run = runs.latest(PAGE)
    if run is not None and run.command.status and not run.command.cancelled:
        st.error(markdown_escaped(run.command.mistake))
    if st.button("Measure this job", icon=":material/timer:", key=f"{BUTTON}measure", help="Adds its costs to this machine's profile."):
        with refusals_shown():
            runs.start(arguments(request, "--calibrate", "--json"), PAGE)
            st.rerun()


TITLE, ICON, ORDER = "What if", ":material/tune:", 10
#: Rows of the table of the critical path's longest tasks.
LONGEST = 12
#: Seconds after a change of the batch in which another change may follow.
SETTLE_S = 0.4
_SETTLED = "settled batch"
#: Where a session keeps the last request, its steps, and those before it.
_STEPS = "predicted steps"
#: Answers and refusals by the text of the strategy.
Answers = Mapping[str, Answer | Refusal]


def page() -> None:
    """Show the controls in the sidebar, and the answers to what they say now."""
    run = runs.latest(PAGE)
    if run is not None and run.command.running:  # measures a job; when it has ended, the page is drawn again, with the new costs
        with st.container(border=True):
            st.fragment(command_ui, run_every=runs.REFRESH_S)(run.command)
    put_link("what if")
    with st.sidebar:
        request = request_ui()
    keep_link("what if", query_of(request))
    settle(request.stated_batch)
    with st.spinner("Predicting", show_time=True):
        answers = jobs.predict_many(request)
    st.subheader(title(request), anchor=False)
    answers_ui(request, answers)
    outcomes = [outcome(each.text, (), each.prediction) for each in forecasts_of(answers)]
    remember(request_words(request), outcomes)


def settle(batch: int) -> None:
    """Wait a moment after the batch has changed: every new batch is captured, and the user may want the one after the next click."""
    if st.session_state.get(_SETTLED, batch) != batch:
        time.sleep(SETTLE_S)
        st.empty()  # a newer change ends this run here
    st.session_state[_SETTLED] = batch


def pin_ui(request: JobRequest) -> None:
    """Offer to pin these answers next to those of other requests."""
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Pin", icon=":material/keep:", key=f"{BUTTON}pin", help="Keeps these answers side by side with others you pin."):
            pin(request_words(request))
            st.toast("Pinned. Compare shows what is pinned side by side.")
        link_ui("compare", "Compare what is pinned")


def forecasts_of(answers: Answers) -> list[Answer]:
    """Return the answers that are forecasts."""
    return [answer for answer in answers.values() if isinstance(answer, Answer)]


def refusals_of(answers: Answers) -> dict[str, Refusal]:
    """Return the refusals by the text of the strategy."""
    return {text: answer for text, answer in answers.items() if isinstance(answer, Refusal)}


def answers_ui(request: JobRequest, answers: Answers) -> None:
    """Show the verdicts, one strategy in detail, all in a table, and the ways to export them."""
    for number, (text, refusal) in enumerate(refusals_of(answers).items()):
        st.warning(markdown_escaped(f"{text}: {refusal.words}"))
        if refusal.excess_bytes:
            fitting_ui(request, text, len(answers) + number)
    forecasts = forecasts_of(answers)
    if not forecasts:
        return
    verdicts_ui(request, forecasts)
    pin_ui(request)
    labels = [predictions.prediction_label(answer.prediction) for answer in forecasts]
    fitting = [number for number, answer in enumerate(forecasts) if answer.prediction.fits] or range(len(forecasts))
    known = [answer.prediction for answer in forecasts]
    fastest = labels[min(fitting, key=lambda number: (known[number].is_at_limit, known[number].step_s))]
    chosen = forecasts[labels.index(select(st, "Look at", labels, "looked at", fastest))]
    details_ui(chosen, next((each for each in forecasts if each.prediction.strategy == PYTORCH), None), earlier_step_s(request, forecasts))
    speed_ui(request, chosen)
    st.subheader("All strategies", anchor=False)
    blocks_ui(predictions.compared([answer.prediction for answer in forecasts], chosen.measured_here), "predictions")
    share_ui(command(request), query_of(request), downloads(request, answers, chosen))


def verdicts_ui(request: JobRequest, forecasts: Sequence[Answer]) -> None:
    """Say what the request does not state, then show a line per strategy: green if faster, red if it does not fit, yellow if slower."""
    for words in predictions.usual_words([answer.prediction for answer in forecasts]):
        st.caption(markdown_escaped(words))
    unmeasured_ui(request, forecasts)
    for answer in (answer for answer in forecasts if fit_words(answer.prediction)):
        (st.warning if answer.prediction.fits else st.error)(markdown_escaped(" ".join(fit_words(answer.prediction))))
    for number, answer in enumerate(forecasts):
        prediction = answer.prediction
        if not prediction.fits:
            if prediction.largest_batch is None:
                fitting_ui(request, answer.text, number)
        elif prediction.strategy != PYTORCH:
            word = prediction.gain.verdict if prediction.gain is not None else ""
            box = {"faster": st.success, "slower": st.warning}.get(word, st.info)
            box(markdown_escaped(predictions.verdict_line(prediction)))


def fitting_ui(request: JobRequest, text: str, number: int) -> None:
    """Search for what fits if a strategy does not, when the user asks: other jobs are captured and planned for it, which takes a while."""
    if not st.button(f"Find what fits instead of {markdown_escaped(text)}", key=f"{BUTTON}fitting {number}"):
        return
    with st.spinner("Predicting other batches and options", show_time=True):
        fits = jobs.fitting(request, text)
    st.write(markdown_escaped(" ".join(predictions.sentences_of(fits.words))))
    for change in [*fits.changes, *([] if fits.batch is None else [f"--batch {fits.batch}"])]:
        link_ui("what_if", f"Open with {markdown_escaped(change)}", query_of(changed(request, text, change)))


def changed(request: JobRequest, text: str, change: str) -> JobRequest:
    """The request with the options of `change` (--checkpoint full); a strategy takes the place of the one that is called `text`."""
    options = dict(pair.split(" ", 1) for pair in change.removeprefix("--").split(" --"))
    given = request_fields({name: [value] for name, value in options.items()})
    if "strategies" in given:
        given["strategies"] = tuple(dict.fromkeys(given["strategies"][0] if each == text else each for each in request.strategies))
    return replace(request, **given)


def earlier_step_s(request: JobRequest, forecasts: Sequence[Answer]) -> Mapping[str, float]:
    """The step of each strategy before the last change of the controls, and stores the present ones for the next change."""
    now = {answer.text: answer.prediction.step_s for answer in forecasts}
    kept = st.session_state.get(_STEPS)
    if kept is None or kept[0] != request:
        kept = st.session_state[_STEPS] = (request, now, kept[1] if kept is not None and kept[0].model == request.model else {})
    return kept[2]


def details_ui(answer: Answer, plain: Answer | None, earlier: Mapping[str, float]) -> None:
    """Show one prediction: figures, its timeline below that of plain PyTorch, explanation and longest tasks of its critical path."""
    prediction = answer.prediction
    figures_ui(answer, earlier.get(answer.text))
    shown = [each for each in (plain, answer) if each is not None and each is not answer] + [answer]
    named = [replace(each.timeline, kind=f"{strategy_name(each.text)}, predicted") for each in shown]
    timelines_ui(
        "forecast", *named, title=", ".join(f"{strategy_name(each.text)} {units.duration(each.prediction.step_s)}" for each in shown)
    )
    blocks_ui(predictions.memory_chart(prediction), "memory at its peak")
    blocks_ui(predictions.explained(prediction, answer.measured_here), "why")
    with st.expander("Longest tasks on the critical path"):
        st.dataframe(predictions.critical_cells(prediction, LONGEST), hide_index=True)


def speed_ui(request: JobRequest, answer: Answer) -> None:
    """Compare the predicted step with one that the user measured, and with the nearest published ones."""
    with st.expander("Is my step normal?"):
        measured_ms = quantity(st, "A step that you measured, ms", "measured ms", placeholder="none")
        speed = jobs.speed(request, answer.text, measured_ms and measured_ms / 1e3)
        blocks_ui(predictions.normality(speed), "normal")


def figures_ui(answer: Answer, earlier_s: float | None = None) -> None:
    """Show the figures of one prediction, and on request how they are computed. A step that does not fit has no reliable time.

    `earlier_s`: the step before the last change of the controls.
    """
    prediction = answer.prediction
    busiest = max((device.busy_share for device in prediction.devices), default=None)
    peak = max((device.peak_bytes for device in prediction.devices), default=None)
    figures = [
        ("Busy", units.percent(busiest, signed=False), ""),
        (PEAK.capitalize(), units.memory(peak), predictions.memory_words(prediction)),
    ]
    figures.append(("Exposed transfer", units.duration(prediction.exposed_transfer_s), ""))
    if prediction.fits:
        interval = f"90 %: {units.between(prediction.interval_s)}" if prediction.interval_s else ""
        plain = predictions.gain_words(prediction.against_pytorch_interval, prediction.faster_than_pytorch_probability)
        base = predictions.gain_words(prediction.speedup_interval, prediction.faster_probability)
        times = [("Step time", units.duration(prediction.step_s), interval)]
        (over_plain, _), (over_baseline, _) = (prediction.compared_by[name] for name in (PYTORCH, BASELINE))
        times += [("Against PyTorch", units.speedup(over_plain), plain)] if PYTORCH not in prediction.too_large else []
        tokens = [("Tokens per second", *predictions.token_rates(prediction))] if prediction.tokens else []
        tokens += [("MFU", units.percent(prediction.mfu, signed=False), "")] if prediction.tokens and prediction.mfu is not None else []
        own = [("Over the baseline", units.speedup(over_baseline), base)] if BASELINE not in prediction.too_large else []
        figures = [*times, *tokens, *own, *figures]
    for column, (label, value, below) in zip(st.columns(len(figures)), figures, strict=True):
        change = _change_words(earlier_s, prediction.step_s) if label == "Step time" else None
        column.metric(label, value, change, "inverse", help=FORMULAS[label])
        if below:
            column.caption(below)
    formulas_ui(*PREDICTED)


def _change_words(earlier_s: float | None, step_s: float) -> str | None:
    """The change of a step, with a sign; None if it has not changed."""
    if earlier_s in (None, step_s):
        return None
    return f"{'-' if step_s < earlier_s else '+'}{units.duration(abs(step_s - earlier_s))}"


def page_sections(document: Predictions, chosen: Answer) -> list[Section]:
    """The content of a page for a colleague: the answers in `document`, and the timeline of the chosen one."""
    return [*predictions.sections(document), predictions.timeline_section(chosen.timeline, f"of {chosen.text}")]


def downloads(request: JobRequest, answers: Answers, chosen: Answer) -> list[Download]:
    """The page, the table and the document of all answers, and the picture of the chosen one's timeline."""
    rows = partial(predictions.prediction_rows, [answer.prediction for answer in forecasts_of(answers)], chosen.measured_here)
    name = chosen.prediction.strategy
    made = partial(jobs.document, request)
    return [
        one_page(lambda: page_sections(made(), chosen)),
        Download("Table (CSV)", "predictions.csv", "text/csv", lambda: csv(rows())),
        Download("Predictions (JSON)", "predictions.json", "application/json", lambda: json_bytes(made().document())),
        timeline_svg("Timeline", name, lambda: chosen.timeline),
    ]
