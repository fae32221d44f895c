"""What was measured on a busy machine says so first, on every surface, and calls nothing faster or slower."""

from pathlib import Path

import pytest

from calibrate.validation import Outcome
from tests.support.html_pages import written_words
from tests.support.page_samples import result, validation
from tests.support.sample_trainings import training
from tests.support.search_samples import search_result, verification
from traces.documents.comparison import Validation
from traces.documents.verdict import verdict
from ui.commands import measuring
from ui.present import searches, trainings, validations
from ui.present.page import page

BUSY = "busy machine: not a measurement. Other processes took 46 % of the cores"
JUDGEMENTS = ("faster", "slower", "same", "cannot tell")


@pytest.fixture
def busy() -> Validation:
    rows = [result("baseline", measured=0.09), result(against_pytorch=0.19, against_pytorch_interval=(0.18, 0.2))]
    return validation(*rows, busy_share=0.46)


def judged(text: str) -> list[str]:
    return [word for word in JUDGEMENTS if word in text]


def test_the_terminal_begins_with_it(busy, capsys):
    measuring._print([Outcome(busy, {}, {}, True, 0)], ["a note"])
    out = capsys.readouterr().out
    assert out.startswith(BUSY)
    assert "no verdict" in out
    assert not judged(out)


def test_the_document_has_the_share(busy, tmp_path):
    assert busy.document()["busy_share"] == 0.46
    assert Validation.load(busy.save(tmp_path / "v.json")).busy


def test_a_page_begins_with_it(busy):
    words = written_words(page("Report", [validations.section(busy, [])]))
    assert words.index(BUSY) < words.index("strategies ran")


def test_a_search_is_not_verified_by_it():
    rounds = {"turbodl": [10.0] * 6, "baseline": [20.0] * 6}
    plans = ("turbodl", 10, 10, 10.0), ("baseline", 20, 20, 20.0)
    quiet = search_result(verification=verification(*plans, rounds=rounds), best="turbodl")
    busy = quiet.model_copy(update={"verification": quiet.verification.model_copy(update={"busy_share": 0.46})})
    assert searches.headline(busy).startswith(BUSY)
    assert searches.verification_words(busy.verification) == ["The machine was too busy to verify anything."]
    assert "measured fastest" in searches.headline(quiet)


def test_a_training_has_no_verdict_on_it(tmp_path):
    quiet, busy = (training(40, "turbodl", "autograd", busy_share=share) for share in (0.05, 0.46))
    assert [each.partition(", ")[2].partition(")")[0] for each in (trainings.cells(document)[1]["against PyTorch"] for document in
            (quiet, busy))] == ["faster", "no verdict"]  # fmt: skip
    words = written_words(Path(trainings.write(tmp_path / "t", busy)).read_text())
    assert BUSY in words


def test_the_limit_is_a_tenth():
    assert [verdict((2.0, 3.0), busy_share=share) for share in (0.1, 0.1001)] == ["faster", "no verdict"]
