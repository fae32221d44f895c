"""The difference of two runs in a sentence, a table and bars, and the folder of its page.

index.html                  the page; needs no network and no other file
diff.json                   the document of `schedcast diff --json`
a.json.gz, b.json.gz        one step of each run, if there are timelines
waterfall.svg               from one step to the other, term by term
perfetto.json.gz            both runs on one time axis, if there are timelines
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from traces import units
from traces.documents.comparison import Change
from traces.documents.replay_result import Diff, DiffTerm
from traces.documents.timeline import Timeline
from traces.files import check_writable
from traces.formats.perfetto import export
from ui.present.blocks import Bar, Block, Headline, Section, Sentences, Table, Timelines
from ui.present.charts import SMALLER, bars, waterfall

DOCUMENT, PERFETTO, PICTURE = "diff.json", "perfetto.json.gz", "waterfall.svg"
#: The files of one step of each run.
STEPS = ("a.json.gz", "b.json.gz")
PAGE_TITLE = "Why two runs differ"
#: A term below this share of the step is shown with other small ones, and the terms and contributions that a sentence names.
LEAST_SHARE, NAMED_TERMS, NAMED_SHARE = 0.001, 4, 0.25
#: The column of terms, and the two columns of times.
TERM = "what makes the difference"


def write(folder: Path | str, diff: Diff, timelines: Mapping[str, Timeline], steps: Sequence[Timeline] = ()) -> Path:
    """Write the folder, its page last, and return the page's path. `steps`: one step of each of the timelines, which the page draws.

    Raises SchedcastError if the folder cannot be written.
    """
    from ui.present.page import write_page  # here, because it loads plotly

    folder = Path(folder)
    check_writable(folder, folder=True)
    diff.save(folder / DOCUMENT)  # first, because the folder is recognized by it
    for name, step in zip_longest(STEPS, steps):
        (folder / name).unlink(missing_ok=True) if step is None else step.save(folder / name)
    files = []
    if timelines:
        export(folder / PERFETTO, timelines)
        files.append((PERFETTO, "both runs, for ui.perfetto.dev"))
    return write_page(folder, PAGE_TITLE, section(diff, steps, files, PICTURE))


def read(folder: Path) -> Section:
    """The section of a folder that was written earlier. Raises UnusableFileError if it is damaged."""
    return section(Diff.load(folder / DOCUMENT), [Timeline.load(folder / name) for name in STEPS if (folder / name).exists()])


def section(diff: Diff, steps: Sequence[Timeline] = (), files: Sequence[tuple[str, str]] = (), picture: str = "") -> Section:
    """The section about a difference; the arguments are those of `blocks`. `files`: those of its folder."""
    return Section(f"{PAGE_TITLE}: {diff.a} and {diff.b}", blocks(diff, steps, picture), diff, DOCUMENT, files)


def blocks(diff: Diff, steps: Sequence[Timeline] = (), picture: str = "") -> list[Block]:
    """By how much B is slower and why, from one step to the other term by term, and one step of each run above the other.

    `picture`: the address of the bars for want of scripts.
    """
    both = labels(diff)
    return [
        Headline(headline(diff)),
        Sentences(words(diff), listed=False),
        waterfall(diff_bars(diff), "From {} to {}".format(*both), "From one step to the other, term by term", picture),
        *([Timelines(steps, "One step of {} above one of {}".format(*both))] if steps else []),
        Table(cells(diff), (TERM,)),
    ]


def labels(diff: Diff) -> tuple[str, str]:
    """The names of the two runs."""
    return ("predicted", "measured") if diff.compared == "validation" else ("A", "B")


def diff_bars(diff: Diff) -> list[Bar]:
    """The bars from A's step to B's."""
    a, b = labels(diff)
    changes = [Change(part=term.part, seconds=term.seconds) for term in diff.terms]
    return bars(a, diff.a_step_s, changes, b, diff.b_step_s, LEAST_SHARE)


def headline(diff: Diff) -> str:
    """By how much B is slower, and because of what: B is 11.0 ms slower than A (95.6 to 106.6 ms): launches +7.0, kernels +3.0, ..."""
    because = reason_words(diff)
    return f"{change_words(diff)}: {because}." if because else f"{change_words(diff)}."


def change_words(diff: Diff) -> str:
    """By how much B is slower: B is 11.0 ms slower than A (95.6 to 106.6 ms)."""
    a, b = labels(diff)
    first, *_, last = diff_bars(diff)
    change = _change(diff, first)
    if not float(change):
        return f"{b} takes as long as {a}: {last.ms} ms"
    how = "slower" if diff.difference_s > 0 else "faster"
    return f"{b} is {change} ms {how} than {a} ({first.ms} to {last.ms} ms)"


def reason_words(diff: Diff) -> str:
    """Why B is slower: launches +7.0, kernels +3.0, ... Empty if both take as long."""
    first, *parts, _ = diff_bars(diff)
    if not float(_change(diff, first)):
        return ""
    terms = {term.part: term for term in diff.terms}
    shown = [bar for bar in parts if bar.ms != "0" and bar.label != SMALLER][:NAMED_TERMS]
    words = [f"{bar.label} {bar.ms}{_largest(terms[bar.label], _decimals(first))}" for bar in shown]
    return ", ".join(words) or "in small parts"


def _change(diff: Diff, first: Bar) -> str:
    return f"{abs(diff.difference_s) * 1e3:.{_decimals(first)}f}"


def _decimals(bar: Bar) -> int:
    return len(bar.ms.partition(".")[2])


def _largest(term: DiffTerm, decimals: int) -> str:
    """The largest contribution to a term in parentheses, if it is a good part of it."""
    for row in term.contributions[:1]:
        text = f"{row.seconds * 1e3:+.{decimals}f}"
        if row.seconds * term.seconds > 0 and abs(row.seconds) >= NAMED_SHARE * abs(term.seconds) and float(text):
            return f" ({row.label} {text})"
    return ""


def cells(diff: Diff) -> list[dict[str, str]]:
    """One row per term and per contribution, column name to text, and the sum. The terms add up as they are printed."""
    a, b = labels(diff)
    terms = {term.part: term for term in diff.terms}
    first, *parts, last = diff_bars(diff)
    rows = []
    for bar in parts:
        rows.append(_row(bar.label, bar.ms, a, b))
        for row in terms[bar.label].contributions if bar.label in terms else ():
            change = f"{row.seconds * 1e3:+.{_decimals(first)}f}"
            if float(change):
                rows.append(_row(f"  {row.label}", change, a, b, units.ms(row.a_s), units.ms(row.b_s)))
    total = f"{diff.difference_s * 1e3:+.{_decimals(first)}f}"
    return [*rows, _row("one step", total if float(total) else "0", a, b, first.ms, last.ms)]


def _row(what: str, change: str, a: str, b: str, a_ms: str = "", b_ms: str = "") -> dict[str, str]:
    return {TERM: what, "ms": change, f"ms in {a}" if len(a) == 1 else f"ms {a}": a_ms, f"ms in {b}" if len(b) == 1 else f"ms {b}": b_ms}


def words(diff: Diff) -> list[str]:
    """What was compared, one sentence per item."""
    a, b = labels(diff)
    steps = "one step" if diff.steps == 1 else f"the first {diff.steps} steps, of which the first does not count"
    sentences = [f"{a}: {diff.a}. {b}: {diff.b}."]
    if diff.compared == "traces":
        sentences.append(f"Compared: {steps}.")
    if diff.aligned_share is not None:
        sentences.append(f"{units.percent(diff.aligned_share, signed=False)} of the device time is work that both have.")
    return sentences + [f"{note[:1].upper()}{note[1:]}." for note in diff.notes]
