"""An answer is a list of blocks, which every renderer shows in its own form."""

from typing import get_args

import plotly.graph_objects as go
import pytest
from rich.console import Console

from ui.present.blocks import Bar, Block, Figure, Group, Headline, Links, Note, Section, Sentences, Table
from ui.present.page import _RENDERED, html, write_page
from ui.present.terminal import show

BARS = [Bar("A", "4.0", 0.0, 0.004, True), Bar("launches", "+2.0", 0.004, 0.006), Bar("B", "6.0", 0.0, 0.006, True)]
ANSWER = [
    Headline("B is slower."),
    Sentences(["Compared: <one> step."], listed=False),
    Figure(go.Figure, "From A to B", "why.svg", BARS),
    Table(
        [{"term": "launches", "ms": "+2.0", "of all": "100 %"}], ("term",), title="Terms", narrow=Table([{"term": "launches"}], ("term",))
    ),
    Sentences(["holds: it is faster", "does not hold: it is twice as fast"], styles={1: "yellow"}, below=["2x", "1.5x"]),
    Group("Where", [Sentences(["In <conv1>."])], folded=True),
    Note("Small print."),
    Links([("plan.json.gz", "plan")]),
]


@pytest.fixture
def printed():
    def lines(*blocks, **how):
        console = Console(width=60)
        with console.capture() as captured:
            show(console, *blocks, **how)
        return captured.get()

    return lines


def test_a_terminal_has_marks_bars_and_the_narrow_table(printed):
    text = printed(*ANSWER)
    assert text.startswith("B is slower.\n- Compared: <one> step.\n")
    assert "+2.0 ms" in text
    assert "▓" in text
    assert "of all" not in text
    assert "- holds: it is faster\n  2x" in text
    assert "- In <conv1>." in text
    assert "- In <conv1>." not in printed(*ANSWER, details=False)


def test_a_page_has_every_column_and_escapes_what_users_wrote():
    text = html(Section("Why", ANSWER, name="why.json"))
    assert text.startswith('<p class="headline">B is slower.</p>\n<p>Compared: &lt;one&gt; step.</p>')
    assert "<h3>Terms</h3>" in text
    assert '<td class="text">launches</td><td>+2.0</td><td>100 %</td>' in text
    assert "<details><summary>Where</summary>\n<ul>\n<li>In &lt;conv1&gt;.</li>" in text
    assert '<a href="plan.json.gz">plan</a>' in text
    assert '<noscript><img src="why.svg" alt="From A to B"></noscript>' in text


def test_a_page_in_a_folder_draws_its_figures_into_their_pictures(tmp_path):
    both = [Figure(go.Figure, "first", "loss.svg"), Figure(go.Figure, "second", continues=True)]
    write_page(tmp_path, "Why", Section("Why", both), heading="Both")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "loss.svg"]


def test_a_page_renders_every_kind():
    assert set(_RENDERED) == set(get_args(Block))
