"""docs/scoreboard.md is what the document that comes with the package says, and that is what presets predict today."""

import pytest

from simulator.predict.scoreboard.predicted import outcomes
from simulator.predict.scoreboard.rows import read_folder
from simulator.predict.search.workers import workers
from tests.support.shared_data import shared_folder
from tools.scoreboard import PAGE
from traces.documents.scoreboard import Score, Scoreboard
from traces.documents.shipped import scoreboard_file
from ui.present.scoreboards import page, summary, tables, unpredicted_cells


def test_the_page_is_generated():
    assert PAGE.read_text() == page(Scoreboard.load(scoreboard_file())), "python -m tools.scoreboard"


def test_totals_come_first_and_groups_have_the_same_rows():
    document = Scoreboard.load(scoreboard_file())
    shown = tables(document)
    assert [row["steps"] for row in shown["steps"]] == ["all", "that wait for the host", "all others"]
    for what in ("source", "GPU", "family", "precision"):
        assert sum(int(row["rows"].replace(",", "")) for row in shown[what]) == document.total.rows
    assert sum(group.score.rows for group in document.groups) == document.total.rows
    assert summary(document).startswith(f"{document.total.rows} measured steps: half of the predictions err by")
    assert sum(int(row["rows"].replace(",", "")) for row in unpredicted_cells(document)) == sum(item.rows for item in document.unpredicted)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", ["2xgtx1060", "titan-x-pascal", "rtx3070"])
def test_the_scores_are_up_to_date(machine):
    """One GPU's rows of the shared tables, predicted anew, have the score that is shown."""
    folder = shared_folder("")
    if folder is None:
        pytest.skip("no public measurements beside the repository; set SCHEDCAST_SHARED")
    rows = [row for row in read_folder(folder)[0] if row.machine == machine]
    with workers(1) as run:
        steps = list(outcomes(rows, [None] * len(rows), run))
    assert Score.of(steps) == Scoreboard.load(scoreboard_file()).by_gpu[machine]
