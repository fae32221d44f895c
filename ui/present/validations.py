"""A validation: predicted against measured step times, each compared strategy with its timelines, and charts of the errors by phase, layer
or op; and the pictures and the page of a report folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING

from simulator.replay.diff.task_errors import Cause, GroupError, TaskError, grouped, task_errors
from traces import units
from traces.documents.comparison import BASELINE, INTERLEAVED, PYTORCH, Comparison, Validation, ValidationResult
from traces.files import write_atomic
from ui.present import charts, labels
from ui.present.blocks import Block, Figure, Group, Links, Note, Section, Sentences, Table, Timelines, first_and_last, stacked
from ui.present.labels import (
    PEAK,
    busy_line,
    differing,
    division,
    labelled_rows,
    model_name,
    numbers_cell,
    plain_label,
    plain_threads,
    row_labels,
    source_words,
    strategy_name,
)  # fmt: skip

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: The columns of a validation.
COLUMNS = (
    "strategy",
    "predicted ms",
    "90 % interval",
    "measured ms",
    "error",
    "against PyTorch",
    "verdict",
    "over baseline, predicted",
    "over baseline, measured",
    "memory pred. / meas.",
    "numbers",
    "status",
)
#: The columns of `folded` rows that do not fit a terminal.
FOR_PAGES = ("memory pred. / meas.", "status")
#: Files in the folder of a comparison that a page links to, and the text of the links.
LINKED: Mapping[str, str] = MappingProxyType({
    "timelines.svg": "picture (SVG)",
    "memory.svg": "memory over time (SVG)",
    "perfetto.json.gz": "trace for ui.perfetto.dev",
    "predicted.json.gz": "predicted timeline",
    "measured.json.gz": "measured timeline",
    "plan.json.gz": "plan",
})  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A comparison on a page. `folder`: the address of its files if they are next to the page, and `files`: the names of those."""

    comparison: Comparison
    folder: str = ""
    files: frozenset[str] = frozenset()

    def address(self, name: str) -> str:
        """The address of one of its files; "" without it."""
        return f"{self.folder}/{name}" if name in self.files else ""


def section(validation: Validation, shown: Sequence[Shown] = (), picture: str = "") -> Section:
    """What a page says of a validation: the fastest comparison, then sentences, chart and table, then the other comparisons.

    `picture`: the address of its picture for want of scripts.
    """
    made = [_comparison(validation, each) for each in sorted(shown, key=lambda each: each.comparison.measured.step_s)]
    blocks: list[Block] = [*made[:1], *summary(validation, picture), *made[1:]]
    return Section(job_words(validation), blocks, validation, "validation.json", headline=headline(validation))


def sections(validations: Sequence[Validation], comparisons: Sequence[Sequence[Comparison]]) -> list[Section]:
    """The sections of a page that stands alone, one per validation, each with its comparisons."""
    pairs = zip(validations, comparisons, strict=True)
    return [section(validation, [Shown(comparison) for comparison in compared]) for validation, compared in pairs]


def printed(validations: Sequence[Validation]) -> list[Block]:
    """What a terminal prints of validations: one table of all of them, and sentences on each."""
    words = [line for each in validations for line in (*validation_words(each), *charts.validation_words(each))]
    return [
        Sentences(headlines(validations), style="bold", mark=""),
        validation_table(validations),
        Sentences(words),
    ]


def summary(validation: Validation, picture: str = "", wide: bool = False) -> list[Block]:
    """The results in sentences, a chart and a table. `picture`: the address of the chart's. `wide`: each figure has a separate column."""
    rows = [cells if wide else folded(cells) for cells in validation_cells(validation)]
    more = ("90 % interval", "Verdict", "A/A spread", "Drift", "Why")
    return [
        Sentences(validation_words(validation), listed=False),
        *([speedups(validation, picture)] if validation.ran else []),
        Table(rows, first_and_last(rows), more=more),
        Note("On a CPU, the baseline uses one core."),
    ]


def speedups(validation: Validation, picture: str = "") -> Figure:
    """Step times and speed-ups of all strategies."""
    about = "Predicted and measured step time of every strategy"
    return Figure(lambda: charts.speedups_figure(validation, short_headline(validation)), about, picture)


def _comparison(validation: Validation, shown: Shown) -> Group:
    """What a page shows of one comparison."""
    comparison = shown.comparison
    words, *drawn = compared(validation, comparison, shown.address("waterfall.svg"))
    files = [(shown.address(name), text) for name, text in LINKED.items() if shown.address(name)]
    return Group(
        f"{comparison.strategy}: {labels.headline(comparison.predicted.step_s, comparison.measured.step_s)}",
        [
            words,
            Timelines([comparison.predicted, comparison.measured], "", shown.address("timelines.svg")),
            *drawn,
            Group("Where the error is: phases, layers, tasks", _errors(comparison), folded=True),
            *([Links(files)] if files else []),
        ],
    )


def compared(validation: Validation, comparison: Comparison, picture: str = "") -> list[Block]:
    """What is said of one comparison, and why the measured step is not as long as predicted. `picture`: the address of the latter's."""
    result = comparison.result
    words = [*result_words(validation, result), *memory_words(result), phase_words(comparison)]
    return [Sentences([*words, *charts.measured_words(result)], listed=False), *waterfall_of(comparison, picture)]


def waterfall_of(comparison: Comparison, picture: str = "") -> list[Figure]:
    """Why the measured step is not as long as predicted, part by part; none if the document does not say."""
    if not comparison.result.waterfall:
        return []
    about = "From the predicted to the measured step, part by part"
    return [charts.waterfall(charts.measured_bars(comparison.result), "From predicted to measured", about, picture)]


def phases(comparison: Comparison) -> Figure:
    """Task time per phase, predicted and measured."""
    return Figure(lambda: charts.phases_figure(comparison), "Task time per phase")


def _errors(comparison: Comparison) -> list[Block]:
    """In which phases, layers and tasks predicted and measured differ, and the likely causes."""
    errors = task_errors(comparison)
    layers = Figure(lambda: errors_figure(grouped(errors, "layer"), "layer"), "Error by layer")
    return [
        phases(comparison),
        *([layers] if errors else []),
        Sentences([cause_words(errors)], listed=False),
        Table(offender_cells(errors), ("task", "phase", "likely cause")),
    ]


TITLE = "Predicted against measured step times"


def write(folder: Path, parts: Iterable[tuple[Validation, str, Sequence[tuple[str, str, Comparison]]]]) -> None:
    """Draw the pictures and the page into a folder that has the documents.

    `parts`: validations, each with the name of its picture, and with the folder and the title of every comparison. Raises
    ModuleNotFoundError, before anything is drawn, if a package that draws is missing.
    """
    from ui.present import page, pictures, timeline_picture  # here: a machine that only measures may lack plotly

    made = []
    for validation, picture, compared in parts:
        pictures.write_picture(folder / picture, speedups(validation).draw(), heading=short_job_words(validation))
        for name, title, comparison in compared:
            timeline_picture.timelines_picture(folder / name / "timelines.svg", comparison.predicted, comparison.measured, title)
            for waterfall in waterfall_of(comparison):
                about = f"{title}: from predicted to measured"
                pictures.write_picture(folder / name / "waterfall.svg", charts.waterfall_figure(waterfall.bars, about))
            held = timeline_picture.memory_figure(comparison.predicted, comparison.measured, title)
            if held is not None:
                pictures.write_picture(folder / name / "memory.svg", held)
        shown = [Shown(own, name, frozenset(path.name for path in (folder / name).iterdir())) for name, _, own in compared]
        made.append(section(validation, shown, picture))
    write_atomic(folder / "index.html", page.page(TITLE, made))


#: Pixels of a bar.
BAR_PX = 26


def errors_figure(groups: Sequence[GroupError], by: str) -> "go.Figure":
    """Measured less predicted ms of the groups with the largest errors."""
    import plotly.graph_objects as go

    shown = groups[:SHOWN]
    texts = [
        f"<b>{labels.plotly_escaped(group.name)}</b><br>predicted {units.duration(group.predicted_s)}, measured"
        f" {units.duration(group.measured_s)}"
        for group in shown
    ]
    bars = go.Bar(
        orientation="h",
        x=[group.difference_s * 1e3 for group in shown],
        y=[labels.plotly_escaped(group.name) for group in shown],
        marker_color=[labels.LONGER if group.difference_s > 0 else labels.SHORTER for group in shown],
        text=[signed_ms(group.difference_s) for group in shown],
        textposition="outside",
        cliponaxis=False,
        hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )
    figure = go.Figure(bars)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False, ticksuffix=" ")
    low, high = min([0.0, *bars.x]), max([0.0, *bars.x])
    room = 0.18 * (high - low) or 1.0  # for the numbers next to the bars
    span = [low - room * (low < 0), high + room]
    figure.update_xaxes(title_text="measured less predicted, ms", range=span, gridcolor=labels.GRID, zerolinecolor=labels.GREY)
    return labels.finished(figure, f"Error by {by}", drawn_px=max(60, BAR_PX * len(shown)))


def headline(validation: Validation) -> str:
    """The result in one sentence, with the step times behind it. An empty string if there is nothing to compare."""
    if validation.busy:
        return busy_line(validation.busy_share, str(validation.device.get("kind")))
    if validation.headline_gain is None or validation.fastest is None:
        return ""
    rival_s = _rival_s(validation)
    times = f"{units.duration(validation.fastest.steps_s[1])} per step, {units.duration(rival_s)} with {_rival(validation)}"
    swing = validation.swing if validation.unsteady else None
    return f"{short_headline(validation)}: {times}.{f' {unsteady_line(swing)}' if swing is not None else ''}"


def unsteady_line(swing: float) -> str:
    """A caution that the machine changed its speed during a measurement: `swing` is the ratio of the quartiles of a schedule's steps."""
    return (
        f"The machine changed its speed meanwhile: a quarter of a schedule's steps took at least {swing:.1f} times as long as another"
        " quarter, so errors say little. Validate again at a quieter time."
    )


def headlines(validations: Sequence[Validation]) -> list[str]:
    """The headlines of several validations; each begins with the model if there is more than one. That the machine was busy comes first."""
    busiest = max((each for each in validations if each.busy), key=lambda each: each.busy_share or 0.0, default=None)
    lines = [(model_name(validation.model), headline(validation)) for validation in validations if not validation.busy]
    named = [f"{model}: {line}" if len(validations) > 1 else line for model, line in lines if line]
    return [*([headline(busiest)] if busiest is not None else []), *named]


def short_headline(validation: Validation) -> str:
    """The result in a few words, for titles. An empty string if there is nothing to compare."""
    gain = validation.headline_gain
    if gain is None:
        return ""
    label = row_labels(validation.results)[validation.results.index(validation.fastest)]
    rival = _rival(validation)
    return {
        "faster": f"{label} is {gain.text} as fast as {rival}",
        "same": f"No schedule is faster than {rival}: {label} is the same, {gain.text}",
        "slower": f"No schedule is faster than {rival}: the fastest, {label}, reaches {gain.text}",
        "cannot tell": f"Too noisy to tell whether {label} is faster than {rival}, at {gain.text}",
        "no verdict": "Busy machine: not a measurement",
    }[gain.verdict]


def _rival(validation: Validation) -> str:
    """What the fastest strategy is compared with."""
    if validation.reference_step_s is None:
        return "the baseline"
    threads = plain_threads(validation)
    return f"plain PyTorch on {threads}" if threads else "plain PyTorch"


def _rival_s(validation: Validation) -> float | None:
    if validation.reference_step_s is not None:
        return validation.reference_step_s
    return next((result.measured_step_s for result in validation.ran if result.strategy == BASELINE), None)


def validation_cells(validation: Validation) -> list[dict[str, str]]:
    """One dictionary per row, column name to text: plain PyTorch first, if it was measured, then every strategy.

    "error" is predicted / measured − 1 of the times next to it. The last column says why a strategy was skipped.
    """
    rows = [_validation_row(validation, strategy_name(label), result) for label, result in labelled_rows(validation)]
    return [*_plain_row(validation), *rows]


def _plain_row(validation: Validation) -> list[dict[str, str]]:
    """The row of plain PyTorch in documents from before it was predicted, which lack it; no row if it was not measured."""
    if validation.reference_step_s is None or validation.pytorch is not None:
        return []
    known = {
        "strategy": plain_label(validation),
        "measured ms": units.ms(validation.reference_step_s),
        "against PyTorch": units.speedup(1.0),
        "over baseline, measured": units.speedup(validation.plain_speedup),
        "numbers": units.NONE,
        "status": "ok",
    }
    return [dict.fromkeys(COLUMNS, units.NONE) | known]


def _validation_row(validation: Validation, label: str, result: ValidationResult) -> dict[str, str]:
    gain, over_baseline = validation.gain_over_pytorch(result), validation.gain_over_baseline(result)
    peaks = result.predicted_peak_bytes, result.measured_peak_bytes
    cells = (
        label,
        units.ms(result.predicted_step_s),
        units.interval(result.predicted_interval_s),
        units.ms(result.measured_step_s),
        units.error(result.predicted_step_s, result.measured_step_s),
        units.speedup(1.0) if result.strategy == PYTORCH and result.ok else gain.text if gain is not None else units.NONE,
        gain.verdict if gain is not None else units.NONE,
        units.speedup(result.predicted_speedup, result.predicted_speedup_interval),
        over_baseline.text if over_baseline is not None else units.speedup(result.measured_speedup),
        units.NONE if peaks == (None, None) else " / ".join(map(units.memory, peaks)),
        numbers_cell(result),
        result.status,
    )
    return dict(zip(COLUMNS, cells, strict=True))


def validation_table(validations: Sequence[Validation]) -> Table:
    """Predicted against measured step times, for the terminal, with plain PyTorch as the first row of each job.

    If there are several jobs, each has a section that begins with its name. The caption says which strategies were skipped, and why.
    """
    heads = [head for head in folded(dict.fromkeys(COLUMNS, "")) if head not in FOR_PAGES]
    rows: list[dict[str, str]] = []
    styles: dict[int, str] = {}
    sections: set[int] = set()
    skipped: list[str] = []
    for validation in validations:
        job = f"{model_name(validation.model)} {validation.precision} {validation.mode}" if len(validations) > 1 else ""
        if job:
            sections.add(len(rows))
            styles[len(rows)] = "bold"
            rows.append(dict.fromkeys(heads, "") | {"strategy": job})
        for cells in validation_cells(validation):
            if cells["status"] != "ok":
                styles[len(rows)] = "dim"
                skipped.append(f"{job} {cells['strategy']} {cells['status']}".lstrip())
            row = folded(cells)
            rows.append({head: row[head] for head in heads})
    spare = ("over baseline, predicted", "over baseline, measured")
    return Table(rows, ("strategy",), spare, caption="\n".join(skipped), styles=styles, sections=sections)


def folded(cells: dict[str, str]) -> dict[str, str]:
    """A row of `validation_cells` in fewer columns, whose cells have several lines: an interval is below the value that it belongs to."""
    return {
        "strategy": stacked(cells["strategy"]),
        "predicted ms": stacked(cells["predicted ms"], cells["90 % interval"]),
        "measured ms": cells["measured ms"] if cells["status"] == "ok" else "skipped",
        "error": cells["error"],
        "against PyTorch": stacked(cells["verdict"], cells["against PyTorch"]),
        "over baseline, predicted": stacked(cells["over baseline, predicted"]),
        "over baseline, measured": stacked(cells["over baseline, measured"]),
        "memory pred. / meas.": cells["memory pred. / meas."].replace(" / ", " /\n"),
        "numbers": cells["numbers"],
        "status": cells["status"],
    }


#: Said of the measured memory of a CPU's devices (`executors.cpu.memory_watch`).
ONE_AT_A_TIME = (
    "The prediction is of lanes that run at the same time; the memory was counted while tasks ran one at a time, in the plan's order, so"
    " that plans with several lanes may hold more at once than was counted."
)


def job_words(validation: Validation) -> str:
    """The job and the device of a validation: model, batch, input size, optimizer, precision, mode, device, number of devices."""
    about = validation.device
    counts = [f"{about[name]} {name}" for name in ("devices", "partitions", "processes") if about.get(name, 1) != 1]
    return ", ".join([short_job_words(validation), f"on {about.get('name', 'unnamed device')}", *counts])


def short_job_words(validation: Validation) -> str:
    """The job of a validation without its device."""
    size = f", input size {validation.image_size}" if validation.image_size else ""
    optimizer = f"{validation.optimizer}, {validation.precision}, {validation.mode}"
    return f"{model_name(validation.model)}, batch {validation.batch_size}{size}, {optimizer}"


def validation_words(validation: Validation) -> list[str]:
    """The results of a validation below its headline, one sentence per item."""
    if not validation.ran:
        return ["No strategy ran.", *_skipped(validation)]
    count = len(validation.ran)
    sentences = [f"{count} {'strategy' if count == 1 else 'strategies'} ran."]
    errors = {label: _error(row) for label, row in labelled_rows(validation) if row.ok}
    worst = max(errors, key=lambda label: abs(errors[label]))
    middle, largest = units.percent(median(map(abs, errors.values())), signed=False), units.percent(errors[worst])
    sentences.append(f"Median absolute error {middle}, worst {largest} ({worst}).")
    sentences += _drift_words(validation)
    right, asked = validation.signs
    if asked:
        sentences.append(f"{right} of {asked} differences from the baseline that exceed the noise were predicted with the right sign.")
    if validation.aa_spread is not None:
        noise = units.percent(validation.aa_spread, signed=False)
        sentences.append(f"Run-to-run noise: two interleaved measurements of the baseline differ by {noise}.")
    return [*sentences, *_repeat_words(validation), *_skipped(validation)]


def _repeat_words(validation: Validation) -> list[str]:
    """How far two runs of plain PyTorch differ, where that judges: some GPU kernels add in any order, and rounding can grow."""
    own = max((error for row in validation.ran for error in (row.reference_grad_error, row.reference_param_error) if error), default=0.0)
    if not own:
        return []
    return [
        f"Plain PyTorch differs from itself by {units.difference(own)} in a second run, on a CPU from parameters that are one rounding"
        " away; numbers are judged by a multiple of that."
    ]


def _error(result: ValidationResult) -> float:
    predicted_s, measured_s = result.steps_s
    return predicted_s / measured_s - 1


def _drift_words(validation: Validation) -> list[str]:
    """How the machine's speed has changed since its costs were measured, if they were not measured in the same rounds."""
    if validation.calibration == INTERLEAVED or validation.anchor_drift is None or validation.worst is None:
        return []
    corrected = units.percent(validation.median_abs_error, signed=False), units.percent(validation.worst.scored_error)
    return [
        f"The costs are from an earlier calibration; a fixed operation now took {validation.anchor_drift:.3f} times as long. Corrected for"
        f" that, the median absolute error is {corrected[0]}, the worst {corrected[1]}."
    ]


def _skipped(validation: Validation) -> list[str]:
    return [f"{label} was {result.status}." for label, result in labelled_rows(validation) if not result.ok]


def result_words(validation: Validation, result: ValidationResult) -> list[str]:
    """The result of one strategy of a validation, in sentences."""
    predicted = units.speedup(result.predicted_speedup, result.predicted_speedup_interval)
    over_baseline, over_pytorch = validation.gain_over_baseline(result), validation.gain_over_pytorch(result)
    measured = over_baseline.text if over_baseline is not None else units.speedup(result.measured_speedup)
    sentences = [f"Speed-up over the baseline predicted {predicted}, measured {measured}."]
    if over_pytorch is not None:
        sentences.append(f"Against plain PyTorch {over_pytorch.judged}.")
    if result.max_grad_error is not None and result.max_param_error is not None:
        sentences.append(_numerics(result.max_grad_error, result.max_param_error))
    if words := differing(result.semantics):
        sentences.append(f"Differs from plain training: {words}.")
    if taken := result.semantics.get("taken"):
        sentences.append(f"Assumed: {taken}.")
    if words := division(result.semantics):
        sentences.append(f"Layers are divided by {words}.")
    if checkpoint := result.semantics.get("checkpoint"):
        sentences.append(f"Checkpointing: {checkpoint}.")
    if result.shares is not None:
        sentences.append(f"Predicted task time: {source_words(result.shares)}.")
    return sentences


def memory_words(result: ValidationResult) -> list[str]:
    """The predicted and measured peak allocated memory of every device; no sentence if either is unknown.

    On a CPU a second sentence says that the two are of different runs: the executor counts memory while tasks run one at a time.
    """
    predicted, measured = result.predicted_peak_bytes_by_device, result.measured_peak_bytes_by_device
    if not predicted or not measured:
        return []
    peaks = [
        f"{device} {units.memory(predicted.get(device))} / {units.memory(count)}"
        + (f" ({units.percent(predicted[device] / count - 1)})" if count and device in predicted else "")
        for device, count in measured.items()
    ]
    sentences = [f"{PEAK.capitalize()}, predicted / measured: {', '.join(peaks)}."]
    if any(device.startswith("cpu") for device in measured):
        sentences.append(ONE_AT_A_TIME)
    return sentences


def _numerics(gradients: float, parameters: float) -> str:
    if gradients == parameters == 0:
        return "Gradients and parameters are identical to PyTorch's, bit for bit."
    by_kind = f"gradients {units.difference(gradients)}, parameters {units.difference(parameters)}"
    return f"Largest relative difference from PyTorch: {by_kind}."


def phase_words(comparison: Comparison) -> str:
    """The phase in which predicted and measured task time differ most."""
    seconds = comparison.phases()
    if not seconds:
        return "No task ran within the drawn training step."
    phase, most = max(seconds.items(), key=lambda item: abs(item[1].predicted_s - item[1].measured_s))
    predicted, measured = units.duration(most.predicted_s), units.duration(most.measured_s)
    return f"They differ most in {phase}: predicted {predicted} of task time, measured {measured}."


#: Rows of a table at most.
SHOWN = 12
#: Where errors of a cause are, in words.
_WHERE = MappingProxyType({
    Cause.DISTURBED: "in executions that were disturbed",
    Cause.BESIDE_MORE: "in tasks that ran concurrently with others for longer than predicted",
    Cause.BESIDE_LESS: "in tasks that ran concurrently with others for less time than predicted",
    Cause.SHORT: "in tasks too short to predict",
    Cause.COST: "in the costs of tasks",
})  # fmt: skip


def group_cells(groups: Sequence[GroupError], by: str) -> list[dict[str, str]]:
    """One row per group, the largest error first."""
    return [
        {
            by: group.name,
            "tasks": str(group.tasks),
            "predicted ms": units.ms(group.predicted_s),
            "measured ms": units.ms(group.measured_s),
            "error": units.error(group.predicted_s, group.measured_s),
            "longer by ms": signed_ms(group.difference_s),
        }
        for group in groups[:SHOWN]
    ]


def offender_cells(errors: Sequence[TaskError]) -> list[dict[str, str]]:
    """One row for each of the tasks with the largest errors, with its likely cause."""
    return [
        {
            "task": error.task,
            "phase": error.phase,
            "predicted ms": units.ms(error.predicted_s),
            "measured ms": units.ms(error.measured_s),
            "longer by ms": signed_ms(error.difference_s),
            "likely cause": str(error.cause),
        }
        for error in errors[:SHOWN]
    ]


def cause_words(errors: Sequence[TaskError]) -> str:
    """How much of the tasks' error each cause has, in one sentence; empty without errors."""
    seconds = {cause: sum(abs(e.difference_s) for e in errors if e.cause is cause) for cause in Cause if cause is not Cause.PREDICTED}
    total_s = sum(seconds.values())
    if not total_s:
        return ""
    ranked = sorted(((share_s / total_s, cause) for cause, share_s in seconds.items() if share_s), key=lambda item: -item[0])
    parts = ", ".join(f"{units.percent(share, signed=False)} {_WHERE[cause]}" for share, cause in ranked)
    return f"Of the tasks' errors, added up without their signs: {parts}."


def signed_ms(seconds: float) -> str:
    """A difference of times, in ms without the unit: +1.2."""
    return f"{seconds * 1e3:+.3g}" if seconds else "0"


def numerics_cells(validation: Validation) -> list[dict[str, str]]:
    """One row per strategy that ran: how far its results are from plain PyTorch's, and PyTorch's from its own, run twice."""
    return [
        {
            "strategy": label,
            "gradients differ by": units.difference(result.max_grad_error),
            "parameters differ by": units.difference(result.max_param_error),
            "PyTorch run twice: gradients": units.difference(result.reference_grad_error),
            "parameters": units.difference(result.reference_param_error),
            "numbers": numbers_cell(result),
            "trains differently": differing(result.semantics) or "no",
        }
        for label, result in labelled_rows(validation)
        if result.ok and result.strategy != "pytorch"
    ]
