"""Validations and predictions as tables, with the same cells for the terminal, the report page and the app; and the terminal's console."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from simulator.strategies import registry as strategies
from simulator.strategies.options import option_values
from traces import units
from traces.documents.comparison import PARALLEL_LOOPS, PYTORCH, Prediction, Validation, ValidationResult
from traces.documents.verdict import Gain
from ui.present.labels import PEAK, labelled_rows, model_name, options_text, plain_label, source_words, strategy_name

#: Columns of the narrowest terminal that is written for; in a narrower one, lines are broken by the terminal.
LEAST_WIDTH = 80
#: Characters of a line in the head of a column, of one in a column of words that is folded, and the blanks between two columns.
HEAD_WIDTH, WORDS_WIDTH, GAP = 10, 16, 2


def console() -> Console:
    """The console of standard output, as wide as the terminal, or LEAST_WIDTH."""
    return Console(width=max(LEAST_WIDTH, Console().width))


def print_lines(console: Console, lines: Iterable[str], style: str = "", mark: str = "- ") -> None:
    """Print lines as they are, each after a mark."""
    for line in lines:
        console.print(f"{mark}{line}", style=style, highlight=False, markup=False)


@dataclass(frozen=True)
class Grid:
    """Rows of texts by column, as a table that fits the terminal. Cells may have several lines.

    `left`: the columns of words, which may be folded; the others are numbers, aligned at the right. `spare`: columns that are left out, the
    first one first, while the table is too wide; its caption then names them. If it still is, the other columns of numbers follow in a
    table below it. `styles` are those of rows, by number; before the rows in `sections` there is a blank line.
    """

    rows: Sequence[Mapping[str, str]]
    left: Collection[str] = ()
    spare: Sequence[str] = ()
    title: str = ""
    caption: str = ""
    styles: Mapping[int, str] = field(default_factory=dict)
    sections: Collection[int] = ()

    def heads(self, width: int) -> list[str]:
        """The columns that a terminal of `width` columns has room for."""
        heads = list(self.rows[0]) if self.rows else []
        for spare in self.spare:
            if self._fits(heads, width):
                break
            heads = [head for head in heads if head != spare]
        return heads

    def _fits(self, heads: Sequence[str], width: int) -> bool:
        return sum(map(self._width, heads)) + GAP * (len(heads) + 1) <= width

    def _width(self, head: str) -> int:
        lines = (line for text in (_folded(head), *(row[head] for row in self.rows)) for line in text.splitlines())
        natural = max(map(cell_len, lines), default=0)
        return min(natural, WORDS_WIDTH) if head in self.left else natural

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        """The table, or the tables that follow each other, and below them the caption."""
        heads = self.heads(options.max_width)
        first, *more = self._parts(heads, options.max_width)
        yield self._table(first, self.title)
        yield from (self._table(part) for part in more)
        missing = [head for head in (self.rows[0] if self.rows else ()) if head not in heads]
        left_out = f"A wider terminal also shows: {'; '.join(missing)}." if missing else ""
        if caption := "\n".join(filter(None, (self.caption, left_out))):
            yield Text(caption, style="italic")

    def _table(self, heads: Sequence[str], title: str = "") -> Table:
        heading = Text(title, style="bold") if title else None
        table = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, header_style="bold", padding=(0, GAP - 1, 0, 0), pad_edge=False)
        for head in heads:
            left = head in self.left
            table.add_column(_folded(head), justify="left" if left else "right", overflow="fold", no_wrap=not left)
        for number, row in enumerate(self.rows):
            if number in self.sections:
                table.add_section()
            texts = (_on_lines(row[head]) if head in self.left else row[head] for head in heads)
            table.add_row(*map(Text, texts), style=self.styles.get(number))
        return table

    def _parts(self, heads: Sequence[str], width: int) -> list[list[str]]:
        """The columns of tables that fit, each with the columns of words; one alone if nothing has to be divided."""
        words = [head for head in heads if head in self.left]
        parts: list[list[str]] = [[]]
        for head in (head for head in heads if head not in self.left):
            if parts[-1] and not self._fits([*words, *parts[-1], head], width):
                parts.append([])
            parts[-1].append(head)
        return [[head for head in heads if head in words or head in part] for part in parts]


def markdown(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The lines of a table in Markdown, whose heads are those of the first row; none without rows."""
    heads = list(rows[0]) if rows else []
    for line in (heads, ["---"] * len(heads), *([row.get(head, "") for head in heads] for row in rows)) if rows else ():
        yield "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in line) + " |"


def stacked(*texts: str) -> str:
    """The texts of one cell below each other, and what is in parentheses below what it explains; empty ones and "-" are left out."""
    lines = [line.removesuffix(")") for text in texts if text not in ("", "-") for line in text.split(" (")]
    return "\n".join(lines) or "-"


def _on_lines(words: str) -> str:
    """A long name of a strategy, with its options on lines of their own; other words as they are."""
    name, bracket, rest = words.partition(" (")
    if " " in name or cell_len(name) <= WORDS_WIDTH:
        return words
    return name.replace(":", ":\n").replace(",", ",\n") + (f"\n({rest}" if bracket else "")


def _folded(head: str) -> str:
    return fill(head, HEAD_WIDTH, break_long_words=False, break_on_hyphens=False)


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
#: The column of predictions that a terminal shows only if it is not 0 everywhere.
COMMUNICATION = "communication not hidden ms"
#: The same, if it is known, which it is on GPUs.
MFU = "MFU"
#: Columns of predictions that a narrow terminal has no room for, the least important one first.
SPARE = ("idle", COMMUNICATION, "over baseline", MFU, PEAK)


def validation_cells(validation: Validation) -> list[dict[str, str]]:
    """One dictionary per row, column name to text: plain PyTorch first, if it was measured, then every strategy.

    "error" is predicted / measured − 1 of the times beside it. The last column says why a strategy was skipped.
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


def numbers_cell(result: ValidationResult) -> str:
    """Whether gradients and parameters equal plain PyTorch's: "identical", or their largest relative difference."""
    if not result.ok or result.strategy in PARALLEL_LOOPS or (result.strategy == PYTORCH and not result.max_grad_error):
        return units.NONE
    if result.max_grad_error is None or result.max_param_error is None:
        return "not finite"
    return units.difference(max(result.max_grad_error, result.max_param_error))


def validation_table(validations: Sequence[Validation]) -> Grid:
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
    return Grid(rows, ("strategy",), spare, caption="\n".join(skipped), styles=styles, sections=sections)


def folded(cells: dict[str, str]) -> dict[str, str]:
    """A row of `validation_cells` in fewer columns, whose cells have several lines: an interval lies below what it belongs to."""
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


#: Behind a verdict that does not compare with plain PyTorch, because that was not predicted.
OVER_BASELINE = " (over the baseline)"


def verdict_cell(gain: Gain | None, compared_with: str) -> str:
    """The verdict of a gain, and what it compares with if that is not plain PyTorch."""
    return units.NONE if gain is None else f"{gain.verdict}{'' if compared_with == PYTORCH else OVER_BASELINE}"


def prediction_cells(prediction: Prediction, here: bool) -> dict[str, str]:
    """Column name to text, for one prediction. `here`: whether measured costs are this machine's."""
    busiest = max((device.busy_share for device in prediction.devices), default=None)
    return {
        "strategy": prediction_label(prediction),
        "step ms": units.ms(prediction.step_s),
        "90 % interval": units.interval(prediction.interval_s),
        "against PyTorch": units.speedup(prediction.against_pytorch, prediction.against_pytorch_interval),
        "verdict": verdict_cell(prediction.gain, prediction.compared_with),
        "over baseline": units.speedup(prediction.speedup, prediction.speedup_interval),
        "busiest device": units.percent(busiest, signed=False),
        PEAK: units.memory(max((device.peak_bytes for device in prediction.devices), default=None)),
        COMMUNICATION: units.ms(prediction.exposed_transfer_s),
        "idle": units.percent(prediction.bubble_share, signed=False),
        MFU: units.percent(prediction.mfu, signed=False),
        "costs": source_words(prediction.shares, here),
        "fits": "at its limit" if prediction.is_at_limit else "yes" if prediction.fits else "no",
    }


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


def prediction_table(predictions: Sequence[Prediction], here: bool = True) -> Grid:
    """Several predictions, for the terminal. One that does not fit in memory is red."""
    rows = [folded_prediction(row) for row in prediction_rows(predictions, here)]
    empty = {COMMUNICATION: not any(each.exposed_transfer_s for each in predictions), MFU: not any(each.mfu for each in predictions)}
    rows = [{head: text for head, text in row.items() if not empty.get(head)} for row in rows]
    return Grid(rows, ("strategy",), SPARE, styles={n: "red" for n, prediction in enumerate(predictions) if not prediction.fits})


def folded_prediction(cells: dict[str, str]) -> dict[str, str]:
    """A row of `prediction_cells` for a terminal: the verdict and intervals lie below what they belong to."""
    over = cells["verdict"].endswith(OVER_BASELINE)
    return {
        "strategy": cells["strategy"],
        "step ms": stacked(cells["step ms"], cells["90 % interval"]),
        "against PyTorch": stacked(units.NONE if over else cells["verdict"], cells["against PyTorch"]),
        "over baseline": stacked(cells["verdict"].removesuffix(OVER_BASELINE) if over else units.NONE, cells["over baseline"]),
    } | {head: cells[head] for head in (PEAK, COMMUNICATION, "idle", MFU, "fits")}


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
