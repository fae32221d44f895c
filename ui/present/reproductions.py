"""A reproduction as tables and sentences, with the same cells for the terminal and the page."""

from collections.abc import Iterator, Sequence

from rich.padding import Padding
from rich.text import Text

from traces import units
from traces.documents.comparison import Validation
from traces.documents.reproduction import OK, Check, Figure, Paper, Table
from ui.present import sentences, tables
from ui.present.labels import source_words
from ui.present.tables import Grid

#: Shorter times are rounding errors of sums and print as 0.
_NOTHING_S = 1e-7
#: Units that are named in a column's head, because its cells are bare numbers.
_IN_HEAD = ("s", "ms")
#: Speed-ups from _FEW on print without decimals; counts from _MANY on print with four digits.
_FEW, _MANY = 1e3, 1e6
#: Shares closer to 1 than this print with three decimals of a percent.
_NEARLY = 0.01
#: A table with a time at least as long as this is in seconds instead of ms.
_LONG_S = 10.0
#: By `Check.holds`.
VERDICTS = {True: "holds", False: "does not hold", None: "cannot be judged"}
#: The column with the status of rows that have no result.
NOTE = "note"


def cells(table: Table) -> list[dict[str, str]]:
    """One dictionary per row, column name to text.

    A quantity that the paper publishes in any row has columns for published, predicted and their ratio; others have one column. If any row
    has no result, the last column says why.
    """
    labels = list(dict.fromkeys(name for row in table.rows for name in row.labels))
    unit_of = {figure.name: figure.unit for row in table.rows for figure in row.figures}
    printed = {figure.name for row in table.rows for figure in row.figures if figure.published is not None}
    ranged = {figure.name for row in table.rows for figure in row.figures if figure.interval is not None}
    noted = any(row.status != OK for row in table.rows)
    times = _time_unit(table)
    rows = []
    for row in table.rows:
        by_name = {figure.name: figure for figure in row.figures}
        line = {name: row.labels.get(name, "") for name in labels}
        for name, unit in unit_of.items():
            figure = by_name.get(name, Figure(name=name, unit=unit))
            line |= _figure_cells(figure, times if unit == "s" else unit, name in printed, name in ranged)
        rows.append(line | ({NOTE: "" if row.status == OK else row.status} if noted else {}))
    return rows


def _time_unit(table: Table) -> str:
    """The unit of the table's times: ms or s."""
    times = [figure for row in table.rows for figure in row.figures if figure.unit == "s"]
    longest = max((abs(value) for f in times for value in (f.predicted, f.published) if value is not None), default=0.0)
    return "s" if longest >= _LONG_S and all(figure.interval is None for figure in times) else "ms"


def _figure_cells(figure: Figure, unit: str, printed: bool, ranged: bool) -> dict[str, str]:
    head = f"{figure.name} {unit}" if unit in _IN_HEAD else figure.name
    if not printed:
        texts = {head: _value(figure.predicted, unit)}
    else:
        texts = {f"{head} published": _value(figure.published, unit), f"{head} predicted": _value(figure.predicted, unit)}
        if figure.unit != "count":
            texts[f"{figure.name} pred. / publ."] = units.NONE if figure.ratio is None else f"{figure.ratio:.2f}"
    return texts | ({f"{figure.name} 90 % interval": units.interval(figure.interval)} if ranged else {})


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return units.NONE
    if unit == "s":
        return units.digits(value)
    if unit == "ms":
        return units.ms(value) if abs(value) >= _NOTHING_S else "0"
    if unit == "x":
        return f"{value:.0f}x" if value >= _FEW else f"{value:.3f}x"
    if unit == "share":
        return f"{100 * value:.3f} %" if 0 < 1 - value < _NEARLY else units.percent(value, signed=False)
    return units.memory(round(value)) if unit == "bytes" else f"{value:.4g}" if value >= _MANY else f"{value:g}"


def check_words(check: Check) -> tuple[str, str]:
    """The claim with its verdict, then the figures, with the cause if the claim does not hold."""
    return f"{VERDICTS[check.holds]}: {check.claim}", f"{check.said}. Cause: {check.reason}." if check.reason else f"{check.said}."


def about_words(paper: Paper) -> list[str]:
    """The setting of the predictions, their machine, and the source of their costs."""
    lines = [paper.setting]
    if paper.shares is not None:
        costs = source_words(paper.shares, here=False)
        lines.append(f"Predicted for {paper.machine}; {paper.fitted or 'nothing'} is fitted to the paper. Predicted task time: {costs}.")
    return lines


def terminal(paper: Paper) -> Iterator[Grid | Text | Padding]:
    """The parts of a paper to print on a terminal: heading, tables, claims, measurements, notes."""
    yield Text(f"\n{paper.name}: {paper.title}", style="bold")
    yield Text(paper.reference, style="dim")
    for line in about_words(paper):
        yield Text(line)
    for table in paper.tables:
        yield Text("")
        yield _grid(table)
        for line in (table.about, *_notes(table)):
            yield Text(line, style="dim")
    if paper.checks:
        yield Text("\nWhat the paper claims", style="bold")
    for check in paper.checks:
        claim, figures = check_words(check)
        yield Text(f"- {claim}", style="" if check.holds else "yellow")
        yield Padding(Text(figures, style="dim"), (0, 0, 0, 2))
    for document in paper.measured:
        validation = Validation.model_validate(document)
        yield Text(f"\nMeasured: {sentences.job_words(validation)}", style="bold")
        yield tables.validation_table([validation])
    yield Text("")
    for note in paper.notes:
        yield Text(f"- {note}")


#: What precedes the papers in `markdown`.
_BEGIN = """# Papers: published beside predicted

```console
schedcast reproduce                          # lists the papers
schedcast reproduce fusion --out fusion      # tables here; page, pictures and JSON in the folder; a few minutes the first time
schedcast reproduce fusion --measure         # also runs what this machine can run of it
```

Reproductions predict the card that the paper used, from the model alone: no calibration and no GPU. A claim is judged by the predictions.
Where it does not hold, the cause is an experiment of the simulator or of this machine, whose figures stand beside it. The trainings of
`reproduce pipeline --measure` take half an hour; after an interruption, the next run makes those that are left. This page is generated:
`make papers` predicts all papers again and writes it.
"""


def markdown(papers: Sequence[Paper]) -> str:
    """The page about all papers: how many claims hold, and for each paper its claims, tables, measurements and notes."""
    overview = [
        {
            "paper": f"[{paper.name}](#{paper.name})",
            "claims": str(len(paper.checks)),
            "hold": str(sum(check.holds is True for check in paper.checks)),
            "do not hold": str(sum(check.holds is False for check in paper.checks)),
            "cannot be judged": str(sum(check.holds is None for check in paper.checks)),
        }
        for paper in papers
    ]
    return "\n".join([_BEGIN, *tables.markdown(overview), *(line for paper in papers for line in _paper_lines(paper))]) + "\n"


def _paper_lines(paper: Paper) -> Iterator[str]:
    yield from ("", f"## {paper.name}", "", f"*{paper.title}* ({paper.reference}).", *about_words(paper))
    yield from ("", f"`schedcast reproduce {paper.name}`", "")
    yield from tables.markdown([
        {"claim": check.claim, "verdict": VERDICTS[check.holds], "figures": check.said, "cause": check.reason or units.NONE}
        for check in paper.checks
    ])  # fmt: skip
    for table in paper.tables:
        yield from ("", f"**{table.title}**", "", *tables.markdown(cells(table)), "", table.about)
    for document in paper.measured:
        validation = Validation.model_validate(document)
        yield from ("", f"**Measured: {sentences.job_words(validation)}**", "", *tables.markdown(tables.validation_cells(validation)))
    if paper.notes:
        yield ""
    yield from (f"- {note}" for note in paper.notes)


def _grid(table: Table) -> Grid:
    """The table for a terminal. A row without a result is dim; its note is printed below the table."""
    rows, left = cells(table), text_columns(cells(table))
    shown = [{head: text for head, text in row.items() if head != NOTE} for row in rows]
    return Grid(shown, left, title=table.title, styles={n: "dim" for n, row in enumerate(rows) if row.get(NOTE)})


def _notes(table: Table) -> list[str]:
    """One line per status other than ok: the rows that have it, then the status."""
    rows_by_status: dict[str, list[str]] = {}
    for row in table.rows:
        if row.status != OK:
            rows_by_status.setdefault(row.status, []).append(" ".join(row.labels.values()))
    return [f"{'; '.join(names)}: {status}" for status, names in rows_by_status.items()]


def text_columns(rows: list[dict[str, str]]) -> set[str]:
    """The columns whose cells are words instead of numbers."""
    return {head for head in (rows[0] if rows else ()) if head == NOTE or not _numeric([row[head] for row in rows])}


def _numeric(texts: list[str]) -> bool:
    return all(text == units.NONE or text[:1].isdigit() or text[:1] in "+-" for text in texts if text)
