"""The document of what `predict` answers: one shape, of one answer and of several, that reads older documents."""

from tests.support.page_samples import prediction
from traces.documents.predictions import Place, Predictions
from traces.errors import Code, Refusal
from traces.files import write_json
from ui.commands.reporting import sections_of

PLACE = Place(model="resnet50", batch=8, machine="h100")
TURBODL = (PLACE, "turbodl", prediction(), "")
REFUSED = (PLACE, "gpipe", Refusal(Code.MEMORY, "too large"), "")


def test_the_fields_of_a_single_answer_also_stand_at_the_top_level(tmp_path):
    document = Predictions.of([TURBODL]).document()
    assert list(document)[:4] == ["schema", "model", "batch", "machine"]
    (own,) = document["predictions"]
    assert own == {name: value for name, value in document.items() if name not in ("schema", "predictions", "refused")}
    assert (document["schema"], document["refused"]) == ("schedcast.predictions/2", [])
    assert Predictions.load(Predictions.of([TURBODL]).save(tmp_path / "p.json")).predictions[0].step_s == prediction().step_s


def test_several_answers_have_the_same_lists_and_nothing_beside_them():
    for answers in ([TURBODL, TURBODL], [TURBODL, REFUSED], [REFUSED]):
        assert set(Predictions.of(answers).document()) == {"schema", "predictions", "refused"}
    assert Predictions.of([REFUSED]).document()["refused"] == [
        {"model": "resnet50", "batch": 8, "machine": "h100", "strategy": "gpipe", "why": "too large"}
    ]


def test_documents_of_the_first_version_are_read(tmp_path):
    former = Predictions.of([TURBODL, REFUSED]).document() | {"schema": "schedcast.predictions/1"}
    for each in former["predictions"]:
        del each["plan"]
    assert Predictions.load(write_json(tmp_path / "several.json", former)) == Predictions.of([TURBODL, REFUSED])
    alone = prediction().document()
    assert alone["schema"] == "schedcast.prediction/1"
    titles = [sections_of(write_json(tmp_path / "p.json", each))[0].title for each in (former, alone)]
    assert titles == ["Predicted: resnet50, batch 8, on h100", "Predicted: turbodl"]
