"""A user's file of measured pairs, for `schedcast judge PAIRS.csv`: two steps, or two throughputs, with one change between them.

One pair a row. Columns: `change`, `before`, `after`; `unit` (ms, s, or anything per second, such as samples/s; default ms); then the
options of `schedcast predict` by their names, for the job before the change (model, batch, machine, devices, precision, layout, optimizer,
strategy, ...). `change` is one of these with its other value, as in precision=amp or optimizer=adamw:fused. In a row with a `trace`,
recorded before the change, `change` is a what-if rule. `rule` (default: by the change) is the rule whose record the pair counts for,
`source` where the pair is from.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from simulator.predict.judgments import Judgment, by_rule, record, widened
from simulator.predict.pairs import Pair, Side, judged
from simulator.predict.rule_records import accuracy_of
from simulator.replay.whatif.registry import rule_name
from simulator.replay.whatif.replayed import ask, replayed
from traces.documents.comparison import PYTORCH, PYTORCH_GRAPH
from traces.documents.rule_records import RuleRecords
from traces.errors import SchedcastError
from traces.files import Table, read_table
from traces.units import read_number
from ui.request import LINKED, JobRequest, Option, optimizer_and_form

#: The largest measured figure, and the number of skipped rows that are named.
_LARGEST, _MOST_NAMED = 1e12, 20
NEEDED = ("change", "before", "after")
#: Columns that are no options of `schedcast predict`.
OWN = (*NEEDED, "unit", "rule", "source", "trace", "strategy", "note")
log = logging.getLogger("schedcast")
_OPTIONS: Mapping[str, Option] = {option.name: option for option in LINKED if option.name not in ("strategies", "settings")}


def is_table(columns: Sequence[str]) -> bool:
    """Whether a table with these columns is one of pairs."""
    return NEEDED[0] in columns


def judgments(path: Path, opened: Table | None = None) -> list[Judgment]:
    """What is predicted for the pairs of a file. Rows that cannot be judged are skipped, and a warning names each.

    `opened`: its table, if the header has been read. Raises SchedcastError for a file that is no table of pairs, and the refusal of the
    first row if none can be judged.
    """
    made, refused = [], []
    for line, row in _rows(path, opened or read_table(path, "file of pairs")):
        try:
            pair = _pair(row, path) if isinstance(row, dict) else _unreadable(row)
            made.append(judged(pair) if isinstance(pair, Pair) else pair)
        except SchedcastError as error:
            refused.append(SchedcastError(f"{path}, line {line}: {error}", error.code))
    if refused and not made:
        raise refused[0]
    for refusal in refused[:_MOST_NAMED]:
        log.warning("%s; the row is skipped", refusal)
    if len(refused) > _MOST_NAMED:
        log.warning("%s: %d more rows are skipped", path, len(refused) - _MOST_NAMED)
    return [widened(each, accuracy_of(each.rule)) if each.alike else each for each in made]


def records(made: list[Judgment]) -> RuleRecords:
    """The records of judgments."""
    return RuleRecords(records=tuple(record(rule, own) for (rule, _), own in by_rule(made).items()))


def _rows(path: Path, table: Table) -> Iterator[tuple[int, dict[str, str] | str]]:
    columns = set(table.columns)
    missing, unknown = [name for name in NEEDED if name not in columns], sorted(columns - {*OWN, *_OPTIONS})
    if missing or unknown:
        what = f"has no column {missing[0]!r}" if missing else f"has a column {unknown[0]!r}"
        raise SchedcastError(f"{path} {what}; expected {', '.join(NEEDED)}, and any of: {', '.join([*OWN[len(NEEDED) :], *_OPTIONS])}")
    return table.rows


def _unreadable(why: str) -> NoReturn:
    raise SchedcastError(why)


def _pair(row: Mapping[str, str], path: Path) -> Pair | Judgment:
    change, trace, source = row["change"], row.get("trace", ""), row.get("source", "") or path.name
    rate = "/" in row.get("unit", "")
    before, after = (_figure(row, name) for name in ("before", "after"))
    gain = after / before if rate else before / after
    if trace:
        return _judged_on_trace(path.parent / trace, change, gain, f"{trace}: {change}", source, row.get("rule", ""))
    option, equals, value = change.partition("=")
    if not equals or option not in ("strategy", *_OPTIONS):
        raise SchedcastError(f"change is {change!r}; expected OPTION=VALUE, as in precision=amp, or a trace and a what-if rule")
    first, second = _side(row), _side({**row, option: value})
    samples = 1.0 if rate else second.job.batch / first.job.batch
    return Pair(row.get("rule") or _rule(option, value), f"{row.get('model', '')}: {change}", source, first, second, samples * gain)


def _judged_on_trace(trace: Path, text: str, gain: float, label: str, source: str, rule: str) -> Judgment:
    """Apply a rule to the trace before the change. `gain`: the measured speed-up. `rule`: whose record it is, "" for the text's.

    Raises SchedcastError if the trace cannot be read, or if the rule has no answer.
    """
    recorded = replayed([trace])
    (answer,) = ask(recorded, [text]).what_if.answers
    if answer.speedup is None:
        raise SchedcastError(answer.reason or f"{text} has no answer")
    before_s, bounds = recorded.result.gpu_period_simulated_s, answer.step_interval_s
    interval = (before_s / bounds[1], before_s / bounds[0]) if bounds else None
    return Judgment(rule or rule_name(text), label, source, gain, answer.speedup, interval, way="trace")


def _rule(option: str, value: str) -> str:
    """Whose record a pair counts for."""
    if option == "strategy":
        return {PYTORCH_GRAPH: "cuda-graph"}.get(value, rule_name(value))
    return value if option == "precision" else option


def _figure(row: Mapping[str, str], name: str) -> float:
    value = read_number(row[name])
    if value is None or not 0 < value < _LARGEST:
        raise SchedcastError(f"{name} is {row[name]!r}; expected a number above 0")
    return value


def _side(row: Mapping[str, str]) -> Side:
    given = {name: _OPTIONS[name].read(text) for name, text in row.items() if name in _OPTIONS and text}
    for name, value in given.items():
        if value is None:
            raise SchedcastError(f"{name} is {row[name][:40]!r}; expected a number")
    if "model" not in given or "machine" not in given:
        raise SchedcastError("it names no model or no machine; expected both, or a trace")
    optimizer = optimizer_and_form(given.pop("optimizer")) if "optimizer" in given else {}
    request = JobRequest(**{**given, **optimizer})
    return Side(request.job(), request.machine, row.get("strategy") or PYTORCH, request.devices)
