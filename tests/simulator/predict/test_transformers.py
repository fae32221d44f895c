"""docs/transformers.md says what is predicted today."""

import pytest

from simulator.predict.scoreboard.predicted import outcomes
from simulator.predict.scoreboard.rows import read_folder
from simulator.predict.search.workers import workers
from tests.support.shared_data import shared_folder
from tools.transformers import PAGE, division, gpus, line, sampled, unknown_attention


@pytest.mark.thorough
def test_the_page_on_transformers_is_up_to_date():
    """The steps of the smallest models on eight GPUs of each kind that divide the batch alone, predicted anew."""
    folder = shared_folder("llm")
    if folder is None:
        pytest.skip("no public measurements beside the repository; set SCHEDCAST_SHARED")
    rows = [row for row in sampled(read_folder(folder)[0]) if gpus(row)[0] == 8 and row.workload in ("MPT-125m", "nanotron 3B")]
    rows = [row for row in rows if not unknown_attention(row) and not division(row)]
    with workers(1) as run:
        lines = [line(row, step) for row, step in zip(rows, outcomes(rows, [None] * len(rows), run), strict=True)]
    assert len(lines) >= 5
    page = PAGE.read_text()
    assert [each for each in lines if each not in page] == [], "python -m tools.transformers --write"
