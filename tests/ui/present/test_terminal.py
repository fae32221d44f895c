"""Tables that fit a terminal of 80 columns: what is left out, what is folded, and what is never broken."""

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.support.page_samples import prediction, result, skipped, validation
from tests.support.sample_trainings import evaluated
from tests.support.search_samples import search_result, verification
from ui.present import predictions, searches, validations
from ui.present.blocks import Table, stacked
from ui.present.predictions import predictions_table
from ui.present.terminal import heads_of, show
from ui.present.trainings import training_table

INTERVALS = {"against_pytorch": 1.1, "against_pytorch_interval": (1.01, 1.23), "speedup_interval": (0.91, 1.31)}
LONG = prediction(**INTERVALS, strategy="turbodl", options={"alpha": 3, "fuse": "backward", "streams": "off"}, exposed_transfer_s=0.0123)


def lines(grid: Table, width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as captured:
        show(console, grid)
    return captured.get().splitlines()


def shown(width: int) -> dict[str, list[str]]:
    """The lines of every table that commands print."""
    gains = {"against_pytorch": 0.8, "against_pytorch_interval": (0.71, 0.92), "measured_speedup_interval": (1.1, 1.2)}
    rows = [result("baseline", 1.05, 1.19), result("backward-fusion", 0.5, 0.51, **gains), result(options={"alpha": 2}), skipped()]
    ran = verification(("turbodl", 10, 10, 10.0), ("baseline", 20, 20, 20.0))
    grids = {
        "validations": validations.validation_table([validation(*rows), validation(*rows)]),
        "one prediction": predictions.prediction_table([LONG, prediction(**INTERVALS, strategy="backward-fusion")]),
        "predictions": predictions_table([(32, "2xgpu-pcie", LONG), (32, "h100", LONG), (4096, "h100", LONG)]),
        "search": searches.table(search_result(verification=ran), 9),
        "training": training_table(evaluated("backward-fusion", "autograd", seeds=3)),
    }
    return {name: lines(grid, width) for name, grid in grids.items()}


@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_longer_than_the_terminal_and_no_number_is_broken(width):
    wide = {name: {word for line in drawn for word in line.split() if any(map(str.isdigit, word))} for name, drawn in shown(300).items()}
    for name, drawn in shown(width).items():
        assert max(map(cell_len, drawn)) <= width
        numbers = {word for line in drawn for word in line.split() if any(map(str.isdigit, word))}
        assert numbers <= wide[name], name


def test_the_least_important_columns_are_left_out_first_and_named():
    grid = Table([{"a": "1" * 30, "b": "2" * 30, "c": "3" * 30}], spare=("b", "c"))
    assert [heads_of(grid, width) for width in (100, 80, 50)] == [["a", "b", "c"], ["a", "c"], ["a"]]
    assert lines(grid, 80)[-1] == "A wider terminal also shows: b."
    assert "wider" not in lines(grid, 100)[-1]


def test_a_table_that_never_fits_goes_on_below_itself():
    grid = Table([{"layer": "conv1", "a": "1" * 50, "b": "2" * 50, "c": "3"}], left=("layer",), title="Costs", caption="of one layer")
    assert [line.split() for line in lines(grid, 80) if line.strip() and "─" not in line] == [
        ["Costs"], ["layer", "a"], ["conv1", "1" * 50], ["layer", "b", "c"], ["conv1", "2" * 50, "3"], ["of", "one", "layer"],
    ]  # fmt: skip


def test_the_options_of_a_name_with_a_note_have_lines_of_their_own():
    grid = Table([{"plan": "turbodl:priorities=off,fuse=backward (and 3 equal ones)", "ms": "1"}], ("plan",))
    drawn = [line.split(" 1")[0].strip() for line in lines(grid, 80)[3:-1]]
    assert drawn == ["turbodl:", "priorities=off,", "fuse=backward", "(and 3 equal ones)"]


def test_a_note_on_a_name_stands_below_it_and_is_not_broken_at_its_comma():
    table = validations.validation_table([validation(result("baseline", 1.05, 1.19))])
    names = [line.strip() for line in "\n".join(row["strategy"] for row in table.rows).splitlines()]
    assert names[-2:] == ["baseline", "one stream, our executor"]


def test_what_is_in_parentheses_stands_below():
    assert stacked("faster", "1.16x (1.08 to 1.22)") == "faster\n1.16x\n1.08 to 1.22"
    assert stacked("-", "-") == "-"


def test_brackets_are_no_markup():
    assert any("[red]n=2" in line for line in lines(Table([{"plan": "[red]n=2"}], ("plan",), title="[b]"), 80))
