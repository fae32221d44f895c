"""The configurations of a search that are worth knowing."""

import pytest

from tests.support.search_samples import of_a_language_model, ranked, search_result
from ui.present import searches
from ui.present.searches import BETWEEN, FASTEST, SMALLEST


def test_the_fastest_the_smallest_and_what_lies_between_them():
    known = searches.worth_knowing(of_a_language_model())
    assert [(each.why, each.plan.checkpoint, each.plan.accumulate) for each in known] == [
        (FASTEST, "none", 8), (BETWEEN, "selective", 8), (SMALLEST, "full", 8),
    ]  # fmt: skip
    assert searches.worth_knowing(search_result(fits=False)) == []
    (only,) = searches.worth_knowing(search_result(plans=(ranked("baseline", 0.01, 3.0),), best="baseline", rival=None))
    assert only.why == FASTEST


def test_its_speed_its_memory_and_what_a_training_costs():
    result = of_a_language_model()
    fastest = searches.worth_knowing(result)[0]
    assert searches.rate_words(result, fastest) == "100,000 tokens/s"
    assert fastest.memory_words == "activations 40 GiB, optimizer state 12 GiB"
    hours = searches.training_hours(result, fastest, 3.6e9)
    assert hours == pytest.approx(10)
    assert searches.money_words(hours, result.devices, 2.5) == "$1,600"
    images = search_result()
    assert searches.rate_words(images, searches.worth_knowing(images)[0]) == "3,200 samples/s"


def test_every_row_says_its_microbatches_and_checkpointing():
    rows = searches.cells(of_a_language_model())
    assert [(row["plan"], row["microbatches"], row["checkpointing"]) for row in rows[:2]] == [
        ("fsdp", "8", "none"),
        ("fsdp", "4", "selective"),
    ]
    assert (rows[0]["tokens/s"], rows[0]["MFU"]) == ("100,000", "46.0 %")
    assert "microbatches" not in searches.cells(search_result())[0]
