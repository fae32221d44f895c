"""Predictions in sentences, tables and charts: what does not fit in memory, how sure a speed-up is, and why."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import Any

from simulator.engine.memory.contents import AT_LIMIT_WORDS, fitting_words, holders_words, need_words, peak_words, shortfall_words
from simulator.machine.presets import card_of
from simulator.predict.forecast import Forecast
from simulator.strategies import registry as strategies
from simulator.strategies.options import option_values
from traces import units
from traces.documents.base import Document
from traces.documents.comparison import BASELINE, PYTORCH, Prediction
from traces.documents.predictions import Normal, PlacedPrediction, Predictions
from traces.documents.search_result import SearchResult
from traces.documents.timeline import Cause, CriticalSpan, Timeline
from traces.documents.whole_training import BILLION, WholeTraining
from ui.present import charts
from ui.present.blocks import Block, Figure, Group, Section, Sentences, Table, Timelines, stacked
from ui.present.labels import OVER_BASELINE, PEAK, division, model_name, options_text, source_words, strategy_name, verdict_cell

#: The column of predictions that a terminal shows only if it is not 0 everywhere.
COMMUNICATION = "communication not hidden ms"
#: The same, if it is known, which it is on GPUs.
MFU = "MFU"
#: The same, if the model reads tokens.
TOKENS = "tokens/s"
#: Columns of predictions that a narrow terminal has no room for, the least important one first.
SPARE = ("idle", COMMUNICATION, "over baseline", MFU, PEAK)


CAUSE_WORDS = {
    Cause.DEPENDENCY: "waiting for a value from another task",
    Cause.LANE: "waiting for the task before them in their lane",
    Cause.LAUNCH: "waiting for the host to issue them",
    Cause.LINK: "waiting for a link",
    Cause.SMS: "waiting for SMs or cores",
    Cause.START: "at the start",
}


def timeline_section(timeline: Timeline, name: str) -> Section:
    """One step drawn, with its memory. `name`: what the timeline is called."""
    summary = f"{timeline.kind}: a step of {units.duration(timeline.step_s)}"
    return Section(f"Timeline {name}", [Timelines([timeline], "")], headline=summary)


def section(prediction: Prediction) -> Section:
    """A prediction in a document of an older version, which does not name the job."""
    return _section(f"Predicted: {prediction_label(prediction)}", [prediction], prediction, "prediction.json")


def sections(document: Predictions) -> list[Section]:
    """Every batch of a model on a machine, with refusals."""

    def place(each: PlacedPrediction) -> tuple[str, int, str]:
        return each.model, each.batch, each.machine

    made = []
    for (model, batch, machine), group in groupby(document.predictions, key=place):
        refused = [
            f"{own.strategy}: {own.why}" for own in document.refused if (own.model, own.batch, own.machine) == (model, batch, machine)
        ]
        title = f"Predicted: {model_name(model)}, batch {batch}, on {machine}"
        made.append(_section(title, list(group), document, "predictions.json", refused))
    return made


def _section(title: str, known: Sequence[Prediction], document: Document, name: str, refused: Sequence[str] = ()) -> Section:
    labels = [prediction_label(prediction) for prediction in known]
    fastest = min((p for p in known if p.fits), key=lambda own: (own.is_at_limit, own.step_s), default=None)
    summary = "Nothing fits."
    if fastest is not None:
        summary = f"Fastest: {prediction_label(fastest)}, {units.duration(fastest.step_s)} per step."
    each = [
        Group(label, [Sentences(fit_words(own), listed=False), *explained(own, here=False)])
        for label, own in zip(labels, known, strict=True)
    ]
    return Section(title, [*compared(known, here=False), *(Sentences([line], listed=False) for line in refused), *each],
                   document, name, headline=summary)  # fmt: skip


def compared(known: Sequence[Prediction], here: bool = True) -> list[Block]:
    """Step times of several strategies. `here`: whether measured costs are this machine's."""
    labels = [prediction_label(prediction) for prediction in known]
    return [_chart(known, labels), Table(prediction_rows(known, here), ("strategy", "fits"), styles=red(known), more=("Why",))]


def red(known: Iterable[Prediction]) -> dict[int, str]:
    """The style of rows that do not fit in memory."""
    return {number: "red" for number, prediction in enumerate(known) if not prediction.fits}


def _chart(known: Sequence[Prediction], labels: Sequence[str]) -> Figure:
    return Figure(lambda: charts.predictions_figure(known, labels), "Predicted step time of every strategy")


def explained(prediction: Prediction, here: bool = True, planned: Mapping[str, Any] = MappingProxyType({})) -> list[Block]:
    """Why a prediction is as it is, part by part. `here`: whether measured costs are this machine's. `planned`: its plan's semantics."""
    divided, experts, folded = division(planned), planned.get("experts"), planned.get("folded")
    words = [
        *([f"Layers are divided by {divided}."] if divided else []),
        *([f"Experts are {experts}."] if experts else []),
        *prediction_words(prediction, here),
        *([f"{folded}."] if folded else []),
        *charts.prediction_words(prediction),
    ]
    title = f"From the baseline to {prediction_label(prediction)}"
    drawn = [charts.waterfall(own, title)] if (own := charts.prediction_bars(prediction)) else []
    return [Sentences(words, listed=False), *drawn]


def verdict_line(prediction: Prediction) -> str:
    """The prediction in one line: turbodl: 25.8 ms, 1.16x (1.08 to 1.22), faster, fits in memory (3.00 GiB of 80 GiB)."""
    if not prediction.fits:
        return f"{prediction_label(prediction)}: {memory_words(prediction)}"
    over = " over the baseline" if prediction.compared_with == BASELINE else ""
    judged = [] if prediction.gain is None else [f"{prediction.gain.text}{over}, {prediction.gain.verdict}"]
    return ", ".join([f"{prediction_label(prediction)}: {units.duration(prediction.step_s)}", *judged, memory_words(prediction)])


#: What a value of an option is, in words that the option's name follows.
_USUAL_VALUES = {"amp": "autocast to bf16", "amp-fp16": "autocast to fp16", "adamw:fused": "fused AdamW"}


def usual_words(known: Sequence[Prediction | SearchResult]) -> list[str]:
    """What nobody stated and people train such models with, each with the option that changes it; no sentence if there is nothing."""
    said = []
    for usual in {tuple(each.usual.items()): each.usual for each in known if each.usual}.values():
        parts = [f"{_usual_value(name, value)} (--{name})" for name, value in usual.items()]
        said.append(f"Not stated, so as language models are usually trained on several GPUs: {', '.join(parts)}.")
    return said


def _usual_value(name: str, value: str) -> str:
    if name == "checkpoint":
        return "no activation checkpointing, which fits" if value == "none" else f"{value} activation checkpointing, the least that fits"
    return _USUAL_VALUES.get(value, value)


def too_large_words(forecasts: Mapping[str, Forecast]) -> list[str]:
    """What people run that was not requested and does not fit, with what it needs; no sentence if there is nothing."""
    needs = {strategy_name(text): max(need.needed_bytes for need in own.memories) for text, own in forecasts.items() if text != BASELINE}
    if not needs:
        return []
    return [f"Not compared with what does not fit: {', '.join(f'{name} (needs {units.memory(size)})' for name, size in needs.items())}."]


def memory_words(prediction: Prediction) -> str:
    """Whether the prediction fits the memory that it fills most, and by how much."""
    if not prediction.memories:
        return "fits" if prediction.fits else "does not fit"
    fullest = max(prediction.memories, key=lambda need: need.needed_bytes / need.size_bytes if need.size_bytes else 0.0)
    needed, size = (units.memory(count) for count in (fullest.needed_bytes, fullest.size_bytes))
    own = need_words(fullest)
    if not prediction.fits:
        return f"needs {needed}{f' ({own})' if own else ''}, {size} there"
    return f"{AT_LIMIT_WORDS if prediction.is_at_limit else 'fits in memory'} ({needed} of {size}{f': {own}' if own else ''})"


def gain_words(interval: tuple[float, float] | None, probability: float | None) -> str:
    """What is known of a speed-up in addition to its value: its 90 % interval and how likely the step is shorter."""
    parts = [f"90 %: {units.factors(interval)}"] if interval is not None else []
    if probability is not None:
        parts.append(f"faster with a probability of {units.percent(probability, signed=False)}")
    return "; ".join(parts)


def fit_words(prediction: Prediction) -> list[str]:
    """By how much the prediction does not fit, what occupies the memory, and what would fit; or that it is at its limit."""
    if prediction.fits:
        slow = "published steps took 3 to 16 times as long there, so there is no verdict"
        return [f"{prediction.strategy} {memory_words(prediction)}; {slow}."] if prediction.is_at_limit else []
    shortfall = f": {shortfall_words(prediction.memories)}" if prediction.memories else ""
    held = [f"Memory: {holders_words(prediction.at_peak)}."] if prediction.at_peak else []
    sought = prediction.batch_sought or prediction.largest_batch is not None
    tried = prediction.changes_sought or bool(prediction.would_fit) or not prediction.batch_sought
    fitting = sentences_of(fitting_words(prediction.largest_batch, prediction.would_fit, tried)) if sought else []
    return [f"{prediction.strategy} does not fit{shortfall}.", *held, *fitting]


def ending_words(prediction: Prediction) -> list[str]:
    """What would fit in place of a prediction that does not, which an answer ends with: the last of `fit_words`."""
    return [] if prediction.fits else [words for words in fit_words(prediction)[1:] if not words.startswith("Memory: ")]


def sentences_of(phrases: Iterable[str]) -> list[str]:
    """Phrases as sentences."""
    return [f"{phrase[:1].upper()}{phrase[1:]}." for phrase in phrases]


def _cells(predictions: Sequence[tuple[int, str, Prediction]]) -> list[dict[str, str]]:
    rows = prediction_rows([prediction for *_, prediction in predictions])
    return [row | {"machine": machine, "batch": str(batch)} for (batch, machine, _), row in zip(predictions, rows, strict=True)]


def predictions_table(predictions: Sequence[tuple[int, str, Prediction]]) -> Table:
    """The rows for the terminal, with a line between machines and batches. One that does not fit in memory is red."""
    rows = [{"machine": row["machine"], "batch": row["batch"]} | folded_prediction(row) for row in _cells(predictions)]
    places = [(batch, machine) for batch, machine, _ in predictions]
    kept = [head for head in rows[0] if head not in (COMMUNICATION, "idle")]
    return Table(
        [{head: row[head] for head in kept} for row in rows],
        ("machine", "strategy"),
        SPARE,
        styles=red(prediction for *_, prediction in predictions),
        sections=[number for number, (before, after) in enumerate(pairwise(places), 1) if before != after],
    )


def normal_words(document: Normal) -> list[str]:
    """Whether a measured step is as long as predicted, what is usual if it is not, and how accurate predictions of such steps are."""
    sentences = []
    if document.measured_s is not None:
        predicted = units.duration(document.step_s, document.interval_s)
        factor = f"{units.speedup(document.measured_s / document.step_s)} the predicted {predicted}"
        within = f"normal: the prediction is {predicted}"
        kind = {"slower": f"slower than expected: {factor}", "faster": f"faster than expected: {factor}"}.get(str(document.verdict), within)
        sentences = [f"A measured step of {units.duration(document.measured_s)} is {kind}.", *_USUAL.get(str(document.verdict), ())]
    if document.groups:
        rows = sum(group.score.rows for group in document.groups)
        errors = sorted(group.score.median_error for group in document.groups)
        between = " to ".join(dict.fromkeys(units.percent(error, signed=False) for error in (errors[0], errors[-1])))
        covered = sum(round(group.score.covered * group.score.rows) for group in document.groups)
        sources = ", ".join(dict.fromkeys(group.source for group in document.groups))
        where = f"{document.groups[0].family} on {', '.join(dict.fromkeys(group.gpu for group in document.groups))}"
        sentences.append(
            f"Of {rows} published steps of {where} ({sources}), {covered} lie in their intervals; median errors by source: {between}."
        )
    return sentences


#: What usually is the cause if a measured step is not as long as predicted.
_USUAL = {
    "slower": (
        "Usually the loop waits for data, for Python or for a synchronization (.item(), a print of the loss), which a prediction leaves"
        " out: schedcast replay of a trace, or sc.watch, says which.",
    ),
    "faster": (
        "Usually the job is another one: lower precision (TF32, autocast), torch.compile, a smaller batch; or the clock was read before the"
        " GPU was done (torch.cuda.synchronize).",
    ),
}


def near_cells(document: Normal) -> list[dict[str, str]]:
    """The published steps nearest to a job, with what is predicted for them, in ms of a sample; column name to text."""
    return [
        {
            "published step": f"{step.model}, {step.devices} x {card}" if step.devices > 1 else f"{step.model}, {card}",
            "schedule": step.strategy,
            "batch": str(step.batch),
            "precision": step.precision,
            "published ms per sample": units.ms(step.published_s / step.batch),
            "predicted": units.ms(step.predicted_s / step.batch),
            "error": units.error(step.predicted_s, step.published_s),
            "source": step.source,
        }
        for step in document.near
        for card in [card_of(step.machine) or step.machine]
    ]


def normality(document: Normal) -> list[Block]:
    """Whether a measured step is normal, and the published steps nearest to a job."""
    near = Table(near_cells(document), ("published step", "schedule", "source"), ("source", "schedule"))
    return [Sentences(normal_words(document)), near]


def prediction_cells(prediction: Prediction, here: bool) -> dict[str, str]:
    """Column name to text, for one prediction. `here`: whether measured costs are this machine's."""
    busiest = max((device.busy_share for device in prediction.devices), default=None)
    return {
        "strategy": prediction_label(prediction),
        "step ms": units.ms(prediction.step_s),
        "90 % interval": units.interval(prediction.interval_s),
        "against PyTorch": units.speedup(*prediction.compared_by[PYTORCH]),
        "verdict": verdict_cell(prediction.gain, prediction.compared_with),
        "over baseline": units.speedup(*prediction.compared_by[BASELINE]),
        "busiest device": units.percent(busiest, signed=False),
        PEAK: units.memory(max((device.peak_bytes for device in prediction.devices), default=None)),
        COMMUNICATION: units.ms(prediction.exposed_transfer_s),
        "idle": units.percent(prediction.bubble_share, signed=False),
        **({TOKENS: _tokens_cell(prediction)} if prediction.tokens else {}),
        MFU: units.percent(prediction.mfu, signed=False),
        "costs": source_words(prediction.shares, here),
        "fits": "at its limit" if prediction.is_at_limit else "yes" if prediction.fits else "no",
    }


def token_rates(prediction: Prediction) -> tuple[str, str]:
    """The tokens that a plan trains on each second, and on each of several devices (else ""); "-" if it does not fit in memory."""
    if not prediction.tokens or not prediction.fits:
        return units.NONE, ""
    rate, devices = prediction.tokens / prediction.step_s, prediction.devices_used
    return units.rate(rate), f"{units.rate(rate / devices)} each" if devices > 1 else ""


def _tokens_cell(prediction: Prediction) -> str:
    rate, each = token_rates(prediction)
    return f"{rate} ({each})" if each else rate


def training_words(training: WholeTraining, tokens: int, devices: int, device: str) -> str:
    """How long a whole training takes, and what it costs. `tokens`: of a step. `device`: what its devices are called."""
    hours = f", {training.device_hours:,.0f} {device} hours" if devices > 1 else ""
    money = "" if training.cost is None else f", ${training.cost:,.0f} at ${training.price:,g} for a {device} and hour"
    bounds = training.interval_hours and (3600 * training.interval_hours[0], 3600 * training.interval_hours[1])
    time = units.duration(3600 * training.hours, bounds)
    return f"A step has {tokens:,} tokens; at this rate, {units.amount(training.tokens)} take {time}{hours}{money}."


def prediction_rows(predictions: Sequence[Prediction], here: bool = True) -> list[dict[str, str]]:
    """The cells of several predictions. Each is labelled by its strategy and by the options that differ from the strategy's defaults."""
    return [prediction_cells(prediction, here) for prediction in predictions]


def prediction_label(prediction: Prediction) -> str:
    """The strategy of a prediction, with the options that differ from its defaults."""
    options = dict(prediction.options)
    if prediction.strategy in strategies.names():
        usual = option_values(strategies.get(prediction.strategy).options())
        options = {name: value for name, value in options.items() if value != usual.get(name)}
    return f"{prediction.strategy}:{options_text(options)}" if options else strategy_name(prediction.strategy)


def prediction_table(predictions: Sequence[Prediction], here: bool = True) -> Table:
    """Several predictions, for the terminal. One that does not fit in memory is red."""
    rows = [folded_prediction(row) for row in prediction_rows(predictions, here)]
    empty = {COMMUNICATION: not any(each.exposed_transfer_s for each in predictions), MFU: not any(each.mfu for each in predictions)}
    rows = [{head: text for head, text in row.items() if not empty.get(head)} for row in rows]
    rows = without_empty(rows, ("against PyTorch", "over baseline"))
    return Table(rows, ("strategy",), SPARE, styles={n: "red" for n, prediction in enumerate(predictions) if not prediction.fits})


def without_empty(rows: Sequence[dict[str, str]], heads: Iterable[str]) -> list[dict[str, str]]:
    """The rows without those of the columns `heads` in which none of them has a value."""
    empty = {head for head in heads if all(row.get(head, units.NONE).strip(f"{units.NONE}\n") == "" for row in rows)}
    return [{head: text for head, text in row.items() if head not in empty} for row in rows]


def folded_prediction(cells: dict[str, str]) -> dict[str, str]:
    """A row of `prediction_cells` for a terminal: the verdict and intervals are below the values that they belong to."""
    over = cells["verdict"].endswith(OVER_BASELINE)
    return {
        "strategy": cells["strategy"],
        "step ms": stacked(cells["step ms"], cells["90 % interval"]),
        "against PyTorch": stacked(units.NONE if over else cells["verdict"], cells["against PyTorch"]),
        "over baseline": stacked(cells["verdict"].removesuffix(OVER_BASELINE) if over else units.NONE, cells["over baseline"]),
    } | {head: stacked(cells[head]) for head in (TOKENS, PEAK, COMMUNICATION, "idle", MFU, "fits") if head in cells}


def critical_cells(prediction: Prediction, count: int) -> list[dict[str, str]]:
    """The `count` longest tasks of the critical path, longest first."""
    longest = sorted(prediction.critical_path, key=lambda link: link.start_s - link.end_s)[:count]
    return [
        {
            "task": link.task,
            "layer": link.layer,
            "phase": link.phase,
            "ms": units.ms(link.end_s - link.start_s),
            "waited for": str(link.cause),
        }
        for link in longest
    ]


def memory_chart(prediction: Prediction) -> list[Figure]:
    """What occupies the fullest device at its peak, as one bar beside the size of its memory; nothing if that is not known."""
    if not prediction.at_peak or not prediction.memories:
        return []
    return [Figure(lambda: charts.memory_figure(prediction), "What occupies the memory at its peak")]


def holder_words(prediction: Prediction) -> list[str]:
    """The contents of the memory at the peak of the device that needs most, the other devices' peaks, and what every replica stores."""
    if not prediction.at_peak:
        return []
    highest = max(prediction.at_peak, key=lambda peak: peak.bytes)
    sentences = [f"Memory: {peak_words(highest)}."]
    others = [f"{peak.device} {units.memory(peak.bytes)}" for peak in prediction.at_peak if peak is not highest]
    if others:
        sentences.append(f"The peaks of the other devices: {', '.join(others)}.")
    replicas = [peak for peak in prediction.at_peak if peak.replicated_bytes]
    if replicas:
        copied = units.memory(max(peak.replicated_bytes for peak in replicas))
        sentences.append(f"Of this, {copied} are parameters and state that each of {len(replicas)} devices holds a copy of.")
    return sentences


#: About a step time that is only an estimate.
NOT_SETTLED = "Not settled: the schedule does not repeat itself, and longer runs of it take another time per step."


def prediction_words(prediction: Prediction, here: bool = True) -> list[str]:
    """A prediction in sentences: its speed-up, its critical path, memory, communication and the source of its costs.

    Without memory if it does not fit, since then `fits.fit_words` comes first. `here`: whether measured costs are this machine's.
    """
    sentences = [f"Assumed: {what}." for what in prediction.assumed]
    sentences += [] if prediction.settled else [NOT_SETTLED]
    sentences += [f"The loss is {prediction.loss}."] if prediction.loss else []
    if prediction.tokens and prediction.fits:
        device, used = "GPU" if prediction.mfu is not None else "device", prediction.devices_used
        training = prediction.training or WholeTraining.at(prediction, prediction.tokens, used, (BILLION, None))  # in older documents
        sentences.append(training_words(training, prediction.tokens, used, device))
    if prediction.gain_over_pytorch is not None and prediction.pytorch_step_s is not None:
        sentences.append(f"Against plain PyTorch's {units.duration(prediction.pytorch_step_s)}: {prediction.gain_over_pytorch.judged}.")
    if prediction.gain_over_baseline is not None and prediction.baseline_step_s is not None:
        sentences.append(f"Against the baseline's {units.duration(prediction.baseline_step_s)}: {prediction.gain_over_baseline.judged}.")
    sentences += _causes(prediction.critical_path)
    sentences += holder_words(prediction) if prediction.fits else []
    sentences += [f"Checkpointing: {prediction.checkpoint}."] if prediction.checkpoint else []
    sentences += [f"{prediction.shown}."] if prediction.shown else []
    hidden, idle = units.duration(prediction.exposed_transfer_s), units.percent(prediction.bubble_share, signed=False)
    communication = f"Communication not hidden by computation takes {hidden}; " if prediction.exposed_transfer_s else ""
    sentences.append(f"{communication}{'devices are' if communication else 'Devices are'} idle for {idle} of the step.")
    if prediction.unused_devices:
        used, given = len(prediction.devices), len(prediction.devices) + prediction.unused_devices
        sentences.append(f"Uses {used} of {given} devices; the others have nothing to do.")
    return [*sentences, f"Predicted task time: {source_words(prediction.shares, here)}."]


def _causes(path: tuple[CriticalSpan, ...]) -> list[str]:
    if not path:
        return []
    counts = {cause: sum(link.cause == cause for link in path) for cause in Cause if cause != Cause.START}
    causes = [f"{count} {CAUSE_WORDS[cause]}" for cause, count in sorted(counts.items(), key=lambda item: -item[1]) if count]
    longest = max(path, key=lambda link: link.end_s - link.start_s)
    longest_task = f"the longest is {longest.task} ({units.duration(longest.end_s - longest.start_s)})"
    count = f"{len(path)} {'task' if len(path) == 1 else 'tasks'}"
    return [f"The critical path has {count}{': ' + ', '.join(causes) if causes else ''}; {longest_task}."]
