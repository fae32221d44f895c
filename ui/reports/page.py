"""The page of a report folder: plain HTML with its style inside, no script and no network."""

from collections.abc import Collection
from dataclasses import dataclass
from html import escape

from traces.comparison import Comparison, Validation
from ui.text import sentences, tables
from ui.text.labels import headline

STYLE = """
:root { color-scheme: light dark; --ink: #1f2430; --soft: #5a6070; --line: #d9dde4; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaf0; --soft: #a4abb8; --line: #383e4a; --page: #14171d; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1200px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.3rem; margin-top: 2.5rem; } h3 { font-size: 1.1rem; margin-top: 2rem; }
p { margin: .4rem 0; } .soft { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: bottom; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; } td { white-space: nowrap; }
td:last-child { white-space: normal; min-width: 7rem; }
img { width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
a { color: #3a86c8; } .links a { margin-right: 1.2rem; }
"""


@dataclass(frozen=True)
class Compared:
    """One comparison with its folder, and whether its plan and a picture of memory lie there."""

    comparison: Comparison
    folder: str
    planned: bool
    memory: bool


@dataclass(frozen=True)
class Part:
    """One validation with its file names and its comparisons."""

    validation: Validation
    file: str
    picture: str
    comparisons: list[Compared]


def page(parts: list[Part]) -> str:
    """The whole page."""
    return html_page("Predicted against measured step times", "".join(_part(part) for part in parts) or "<p>No validation.</p>")


def html_page(title: str, body: str) -> str:
    """A page of its own: its style inside, no script and no network."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Stepcast report</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body><h1>{escape(title)}</h1>{body}</body></html>\n'


def _part(part: Part) -> str:
    validation = part.validation
    lines = [f"<h2>{escape(sentences.job_words(validation))}</h2>"]
    lines.append(f"<p>{escape(' '.join(sentences.validation_words(validation)))}</p>")
    lines.append(f'<p><img src="{escape(part.picture)}" alt="Predicted and measured step time of every strategy"></p>')
    lines.append(html_table(tables.validation_cells(validation)))
    lines.append(f'<p class="soft">Error = predicted / measured - 1. Speed-ups are against the baseline of the same run. '
                 f'All figures: <a href="{escape(part.file)}">{escape(part.file)}</a>.</p>')  # fmt: skip
    return "\n".join(lines + [_comparison(each) for each in part.comparisons])


def html_table(rows: list[dict[str, str]], words_in: Collection[str] | None = None) -> str:
    """Rows of cells by column name; nothing without rows. `words_in`: the columns to align at the left; None: the first and the last."""
    if not rows:
        return ""

    def cell(kind: str, head: str, text: str) -> str:
        look = "" if words_in is None else f' style="text-align: {"left" if head in words_in else "right"}"'
        return f"<{kind}{look}>{escape(text)}</{kind}>"

    heads = "".join(cell("th", head, head) for head in rows[0])
    body = "".join("<tr>" + "".join(cell("td", head, text) for head, text in row.items()) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _comparison(each: Compared) -> str:
    comparison, folder = each.comparison, each.folder
    files = [("timelines.svg", "picture (SVG)"), ("perfetto.json.gz", "trace for ui.perfetto.dev")]
    files += [("predicted.json.gz", "predicted timeline"), ("measured.json.gz", "measured timeline")]
    files += [("plan.json.gz", "plan")] if each.planned else []
    links = "".join(f'<a href="{escape(folder)}/{name}">{text}</a>' for name, text in files)
    said = " ".join(
        [*sentences.result_words(comparison.result), *sentences.memory_words(comparison.result), sentences.phase_words(comparison)]
    )
    heading = f"{comparison.strategy}: {headline(comparison.predicted.step_s, comparison.measured.step_s)}"
    picture = f'<img src="{escape(folder)}/timelines.png" alt="{escape(heading)}, both timelines">'
    memory = f'<p><img src="{escape(folder)}/memory.png" alt="{escape(heading)}, memory of every device"></p>' if each.memory else ""
    return f'<h3>{escape(heading)}</h3><p>{escape(said)}</p><p>{picture}</p>{memory}<p class="links">{links}</p>'
