"""A GPU report as Markdown: the README of its folder, and a table of all shipped reports for the project's README."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from traces import units
from traces.documents.comparison import Validation
from traces.documents.gpu_report import (
    FACTS,
    GOOD_ERROR,
    GOOD_SPREADS,
    REPORT,
    VALIDATIONS,
    GpuReport,
    ModeSummary,
    PartRecord,
    find_reports,
)
from traces.documents.shipped import FILES, default_folder
from ui.present.text.labels import labelled_rows, plain_label
from ui.present.text.tables import numbers_cell

COLUMNS = (
    "model", "batch", "mode", "precision", "optimizer", "strategy", "predicted ms (interval)", "measured ms", "error", "against PyTorch",
    "verdict", "over baseline, predicted / measured", "run-to-run noise", "numbers",
)  # fmt: skip
SHIPPED_COLUMNS = ("GPU", "date", "PyTorch", "mode", "results", "median abs. error", "worst", "within bounds", "speed-up signs right")
_BOUNDS = f"the larger of {GOOD_ERROR * 100:.0f} % and {GOOD_SPREADS:.0f} times the run-to-run noise"


def readme(report: GpuReport, validations: Mapping[str, Validation]) -> str:
    """The README of a report's folder. `validations`: by the name of their part, as `GpuReport.read_validations` returns them."""
    rows = [row for name, validation in validations.items() for row in _rows(name, validation)]
    sections = [
        f"# {_plain(str(report.device.get('name') or 'A GPU'))}: predicted and measured",
        _about(report),
        "\n".join(f"- {line}" for line in summary_words(report)),
        _results(rows),
        _list("What was odd", report.flags),
        _parts("What failed", report.parts, "failed"),
        _parts("What did not fit into the time", report.parts, "left"),
        _parts("What this GPU cannot do", report.parts, "unsuited"),
        _folder(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def summary_words(report: GpuReport) -> list[str]:
    """The results of a report, one sentence per item."""
    count = Counter(part.status for part in report.parts)
    sentences = [_summary_words(summary) for summary in report.summary] or ["No strategy ran."]
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
    """One line on a part: seconds, status, title, and why it was not measured."""
    took = f"{part.seconds:6.1f} s" if part.seconds is not None else " " * 8
    return f"{took}  {part.status:8}  {part.title}" + (f": {part.why}" if part.why else "")


def shipped_summary(folder: Path | None = None) -> str:
    """The shipped reports as one Markdown table for the project's README; "" if none is shipped."""
    reports = find_reports(default_folder() if folder is None else folder)
    lines = [
        (
            _plain(str(report.device.get("name", name.name))), report.date[:10], report.versions.get("torch", units.NONE),
            summary.mode, str(summary.results), units.percent(summary.median_abs_error, signed=False), units.percent(summary.worst_error),
            units.percent(summary.good_share, signed=False), f"{summary.signs_right} of {summary.signs_asked}",
        )
        for name, report in reports
        for summary in report.summary
    ]  # fmt: skip
    if not lines:
        return ""
    return f"{_table(SHIPPED_COLUMNS, lines)}\n\n*within bounds*: an error of at most {_BOUNDS}.\n"


def _about(report: GpuReport) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items() if name != "max_connections")
    sms = f" with {report.device['sms']} SMs" if report.device.get("sms") else ""
    lines = [f"Measured by `schedcast gpu-report` until {report.date}{sms and f' on a GPU{sms}'}: {_plain(versions)}.", ""]
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
    job = (_plain(model), str(validation.batch_size), validation.mode, precision, _plain(validation.optimizer))
    if validation.reference_step_s is not None and validation.pytorch is None:
        over_baseline, none = f"{units.NONE} / {units.speedup(validation.plain_speedup)}", units.NONE
        plain = (plain_label(validation), none, units.ms(validation.reference_step_s), none, units.speedup(1.0), none)
        yield (*job, *plain, over_baseline, none, none)
    for label, row in labelled_rows(validation):
        if not row.ok:
            yield (*job, _plain(label), _plain(row.status), *[units.NONE] * 7)
            continue
        gain = validation.gain_over_pytorch(row)
        interval = f" ({units.interval(row.predicted_interval_s)})" if row.predicted_interval_s else ""
        yield (
            *job,
            _plain(label),
            units.ms(row.predicted_step_s) + interval,
            units.ms(row.measured_step_s),
            units.error(row.predicted_step_s, row.measured_step_s),
            gain.text if gain is not None else units.NONE,
            gain.verdict if gain is not None else units.NONE,
            f"{units.speedup(row.predicted_speedup)} / {units.speedup(row.measured_speedup)}",
            units.percent(validation.aa_spread, signed=False),
            numbers_cell(row),
        )


def _results(rows: Sequence[tuple[str, ...]]) -> str:
    return f"## Results\n\n{_table(COLUMNS, rows)}" if rows else ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Text escaped for Markdown, but readable without it: underscores and colons within words have no meaning and stay as they are."""
    return "".join(f"\\{letter}" if letter in "\\`*<>|[]" else letter for letter in text)


def _list(title: str, lines: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {_plain(line)}" for line in lines) if lines else ""


def _parts(title: str, parts: Iterable[PartRecord], status: str) -> str:
    chosen = [part for part in parts if part.status == status]
    return _list(title, [f"{part.title}: {part.why}" + (f" (in {part.where})" if part.where else "") for part in chosen])


def _folder(report: GpuReport) -> str:
    names = f"`{REPORT}` (`{report.schema_name}`), `{FACTS}`, `{VALIDATIONS}/` and the profiles `{FILES[False]}` and `{FILES[True]}`"
    return f"## The files\n\n{names}. Run the same command with this folder to measure what is missing."
