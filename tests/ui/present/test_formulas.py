"""Every quantity has its formula, and a column means what its table says."""

import pytest

from tests.support.page_samples import prediction, result, validation
from tests.support.sample_trainings import training
from tests.support.search_samples import search_result
from ui.present import searches, tables, trainings
from ui.present.formulas import FORMULAS, PREDICTED, column_formulas, formulas_markdown, formulas_of

#: Columns of the tables below that are names, notes, or counts.
NO_QUANTITIES = {
    "", "strategy", "plan", "status", "fits", "trained by", "iterations", "seconds", "first loss", "loss, mean of the last 5 %",
}  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        tables.validation_cells(validation(result()))[0],
        tables.prediction_rows([prediction()])[0],
        searches.cells(search_result())[0],
        trainings.cells(training(5, "turbodl", "autograd"))[0],
    ],
    ids=["validation", "prediction", "search", "training"],
)
def test_every_column_that_is_a_quantity_has_its_formula(row):
    assert set(row) - set(column_formulas(row)) <= NO_QUANTITIES
    assert set(column_formulas(row).values()) <= set(FORMULAS)


def test_a_measured_speedup_has_another_formula_than_a_predicted_one():
    (measured, *_), (predicted,) = tables.validation_cells(validation(result())), tables.prediction_rows([prediction()])
    assert column_formulas(measured)["against PyTorch"] == "Against PyTorch, measured"
    assert column_formulas(predicted)["against PyTorch"] == "Against PyTorch"


def test_the_times_of_a_task_are_not_those_of_a_step():
    heads = ["task", "predicted ms", "measured ms", "longer by ms", "likely cause"]
    assert "Step time" not in formulas_of(heads)
    assert list(formulas_of(heads)) == ["Task time", "Longer by", "Likely cause"]


def test_the_quantities_of_a_prediction_are_explained_as_markdown():
    assert all(f"**{name}.**" in formulas_markdown(PREDICTED) for name in PREDICTED)


def test_a_column_that_no_table_has_is_no_quantity():
    assert formulas_of(["notes"]) == {}
