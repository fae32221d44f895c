"""A GPU report as text and as Markdown, the README of its folder: what to fix first, results, and every answer."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import JsonValue

from traces import units
from traces.documents.comparison import Validation
from traces.documents.gpu_report import GOOD_ERROR, GOOD_SPREADS, OUTPUTS, REPORT, VALIDATIONS, GpuReport, ModeSummary, PartRecord
from traces.documents.shipped import FILES
from ui.present.blocks import Block, Sentences, Table, stacked
from ui.present.labels import labelled_rows, numbers_cell, plain_label

COLUMNS = (
    "model", "batch", "mode", "precision", "optimizer", "strategy", "predicted ms (interval)", "measured ms", "error", "against PyTorch",
    "verdict", "over baseline, predicted / measured", "run-to-run noise", "numbers",
)  # fmt: skip
#: Characters of a figure that the page shows; all of it is in the document.
_SHOWN = 400
_BOUNDS = f"the larger of {GOOD_ERROR * 100:.0f} % and {GOOD_SPREADS:.0f} times the run-to-run noise"


def readme(report: GpuReport, validations: Mapping[str, Validation]) -> str:
    """The README of a report's folder. `validations`: by the name of their part, as `GpuReport.read_validations` returns them."""
    rows = [row for name, validation in validations.items() for row in _rows(name, validation)]
    sections = [
        f"# {_plain(str(report.device.get('name') or 'A GPU'))}: what it does, predicted and measured",
        "## What to fix first\n\n" + "\n".join(map(_plain, mend_words(report))),
        "" if report.complete else "The call that wrote this had not ended: it still runs, or it was killed.",
        _about(report),
        "\n".join(f"- {line}" for line in summary_words(report)),
        _results(rows),
        _list("What was odd", report.flags),
        _parts("What failed", report.parts, "failed"),
        _parts("What did not fit into the time", report.parts, "left"),
        _parts("What this GPU cannot do", report.parts, "unsuited"),
        "## Answers\n\n" + "\n\n".join(map(_answer, report.quick)) if report.quick else "",
        _folder(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def summary(report: GpuReport) -> list[Block]:
    """What to fix first, and the results: what a terminal shows at the end."""
    return [Sentences(["What to fix first:", *(f"  {line}" for line in mend_words(report))], mark=""), Sentences(summary_words(report))]


def mend_words(report: GpuReport) -> list[str]:
    """What to fix, numbered, in order of worth."""
    return [f"{number}. {text}" for number, text in enumerate(report.fix_first, 1)] or ["Nothing: every answer is as Schedcast assumes."]


def summary_words(report: GpuReport) -> list[str]:
    """The results of a report, one sentence per item."""
    count = Counter(part.status for part in report.parts)
    verdicts = Counter(part.verdict for part in report.quick)
    sentences = [_summary_words(summary) for summary in report.summary] or ["No strategy ran."]
    if report.quick:
        sentences.append(
            f"Of {len(report.quick)} quick probes, {verdicts['ok']} found what Schedcast assumes; {verdicts['differs']} did not."
        )
    if report.validations:
        agreement = "all equal plain PyTorch's within the tolerance" if report.same_numbers else "some differ from plain PyTorch's"
        sentences.append(f"Gradients and parameters: {agreement}.")
    unsuited = f"; this GPU cannot run {count['unsuited']}" if count["unsuited"] else ""
    return [
        *sentences,
        f"Of {len(report.parts)} parts, {count['done']} were measured in this run and {count['skipped']} before it,"
        f" {count['failed']} failed and {count['left']} are left{unsuited}.",
    ]


def _summary_words(summary: ModeSummary) -> str:
    signs = f"; {summary.signs_right} of {summary.signs_asked} speed-ups beyond the noise have the right sign"
    return (
        f"{summary.mode}: {summary.results} results, median absolute error {units.percent(summary.median_abs_error, signed=False)}, worst"
        f" {units.percent(summary.worst_error)} ({summary.worst}), {units.percent(summary.good_share, signed=False)} within"
        f" {_BOUNDS}{signs if summary.signs_asked else ''}."
    )


def part_line(part: PartRecord) -> str:
    """One line on a probe: seconds, verdict, its name or title, and what the answer means or why there is none."""
    took = f"{part.seconds:6.1f} s" if part.seconds is not None else " " * 8
    what = f"{part.name}{' (earlier)' if part.status == 'skipped' else ''}" if part.file is None else part.title
    return f"{took}  {part.verdict:8}  {what}" + (f": {part.why}" if part.why else "")


def _about(report: GpuReport) -> str:
    shown = {name: version for name, version in report.versions.items() if name != "max_connections" and version != "not installed"}
    versions = ", ".join(f"{name} {version}" for name, version in shown.items())
    sms = f" with {report.device['sms']} SMs" if report.device.get("sms") else ""
    lines = [f"Measured until {report.date}, within {report.seconds:.0f} s{sms and f', on a GPU{sms}'}: {_plain(versions)}.", ""]
    lines.append(
        "*error* is predicted / measured − 1 of the times beside it; the errors below are corrected for the drift of a fixed operation"
        " since calibration. Intervals hold 90 %. *against PyTorch* and *over baseline* say how many times as fast a step is as plain"
        " PyTorch's and as the baseline's. *run-to-run noise* is the difference between two interleaved measurements of the baseline."
        " *numbers* are identical if gradients and parameters equal plain PyTorch's bit for bit; otherwise, their largest relative"
        " difference is given."
    )
    return "\n".join(lines)


def _rows(name: str, validation: Validation) -> Iterable[tuple[str, ...]]:
    """The rows of one part: plain PyTorch first, if it was measured, then every strategy."""
    precision = f"{validation.precision}, nhwc" if "-nhwc" in name else validation.precision
    model = validation.model if ":" not in validation.model else name.partition("-b")[0]
    job = (model, str(validation.batch_size), validation.mode, precision, validation.optimizer)
    if validation.reference_step_s is not None and validation.pytorch is None:
        over_baseline, none = f"{units.NONE} / {units.speedup(validation.plain_speedup)}", units.NONE
        plain = (plain_label(validation), none, units.ms(validation.reference_step_s), none, units.speedup(1.0), none)
        yield (*job, *plain, over_baseline, none, none)
    for label, row in labelled_rows(validation):
        if not row.ok:
            yield (*job, label, row.status, *[units.NONE] * 7)
            continue
        gain = validation.gain_over_pytorch(row)
        interval = f" ({units.interval(row.predicted_interval_s)})" if row.predicted_interval_s else ""
        yield (
            *job,
            label,
            units.ms(row.predicted_step_s) + interval,
            units.ms(row.measured_step_s),
            units.error(row.predicted_step_s, row.measured_step_s),
            gain.text if gain is not None else units.NONE,
            gain.verdict if gain is not None else units.NONE,
            f"{units.speedup(row.predicted_speedup)} / {units.speedup(row.measured_speedup)}",
            units.percent(validation.aa_spread, signed=False),
            numbers_cell(row),
        )


def console_table(name: str, validation: Validation) -> Table:
    """The rows of the page's table about one part, for a terminal."""
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in _rows(name, validation)]
    return Table(
        [
            {
                "job": f"{row['model']} batch {row['batch']}, {row['precision']}, {row['optimizer']}",
                "mode": row["mode"],
                "schedule": row["strategy"],
                "predicted ms": stacked(row["predicted ms (interval)"]),
                "measured ms": row["measured ms"],
                "error": row["error"],
                "numbers": row["numbers"],
            }
            for row in rows
        ],
        ("job", "schedule"),
    )


def _results(rows: Sequence[tuple[str, ...]]) -> str:
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(tuple(map(_plain, row)) for row in rows)]
    return "## Results\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else ""


def _plain(text: str) -> str:
    """Text escaped for Markdown, but readable without it: underscores and colons within words have no meaning and stay as they are."""
    return "".join(f"\\{letter}" if letter in "\\`*<>|[]" else letter for letter in text)


def _list(title: str, lines: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {_plain(line)}" for line in lines) if lines else ""


def _parts(title: str, parts: Iterable[PartRecord], status: str) -> str:
    chosen = [part for part in parts if part.status == status]
    return _list(title, [f"{part.title}: {part.why}" + (f" (in {part.where})" if part.where else "") for part in chosen])


def _answer(part: PartRecord) -> str:
    lines = [f"### {part.name}: {part.verdict}", "", f"{_plain(part.title)} {_plain(part.why)}"]
    lines += ["", *(f"- {_plain(name)}: `{_figure(value)}`" for name, value in part.figures.items())] if part.figures else []
    return "\n".join(lines)


def _figure(value: JsonValue) -> str:
    text = json.dumps(value).replace("`", "'")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _folder(report: GpuReport) -> str:
    names = f"`{REPORT}` (`{report.schema_name}`), `{OUTPUTS}/` (the output of every probe), `{VALIDATIONS}/` and the profiles"
    return (
        f"## The files\n\n{names} `{FILES[False]}` and `{FILES[True]}`. Run the same command with this folder for what is left, or"
        " `schedcast gpu-report --quick --only NAME` to run one quick probe again."
    )
