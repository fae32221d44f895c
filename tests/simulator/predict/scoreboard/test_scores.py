"""A scoreboard counts errors and covered steps by source, GPU, family and precision, and keeps what was predicted."""

import pytest

from simulator.model.job import Job
from simulator.predict.scoreboard import predicted as predictions
from simulator.predict.scoreboard.predicted import outcomes
from simulator.predict.scoreboard.rows import Row
from simulator.predict.scoreboard.scores import peer_scores, scoreboard
from simulator.predict.search.workers import workers
from tests.support.refusals import refuses
from traces.documents.scoreboard import Score, Scoreboard, ScoredStep
from traces.errors import Code


def step(predicted_s: float, interval_s=(0.9, 1.1), **more) -> ScoredStep:
    """A step that took a second."""
    given = {"file": "a.csv", "row": 0, "source": "a", "gpu": "V100", "machine": "v100", "model": "vgg11", "family": "convolutions"}
    given |= {"batch": 8, "precision": "fp32", "layout": "nchw"} | more
    return ScoredStep(**given, measured_s=1.0, predicted_s=predicted_s, interval_s=interval_s)


def test_a_score_has_the_median_the_worst_and_the_coverage():
    score = Score.of([step(0.9), step(1.2), step(1.5, (1.2, 1.8))])
    assert score == Score(rows=3, median_error=0.2, worst_error=0.5, bias=0.2, covered=0.667, within_30=0.667)


def test_steps_are_counted_by_name_and_once_in_the_total(tmp_path):
    steps = [step(0.9), step(1.1, machine="l4"), step(1.3, source="b", precision="amp"), step(0.5, waits_for_host=True)]
    document = scoreboard(steps, ["no preset for X", "no preset for Y", "no preset for X"])
    assert (document.total.rows, document.others.rows, document.waiting_for_host.rows) == (4, 3, 1)
    assert {name: score.rows for name, score in document.by_gpu.items()} == {"l4": 1, "v100": 3}
    assert {name: score.rows for name, score in document.by_source.items()} == {"a": 3, "b": 1}
    assert [(group.source, group.gpu, group.score.rows) for group in document.groups] == [
        ("a", "l4", 1),
        ("a", "v100", 2),
        ("b", "v100", 1),
    ]
    assert [(item.why, item.rows) for item in document.unpredicted] == [("no preset for X", 2), ("no preset for Y", 1)]
    assert Scoreboard.load(document.save(tmp_path / "scores.json")) == document
    empty = scoreboard([], [])
    assert (empty.total, empty.by_gpu) == (None, {})


def test_a_gpus_factor_is_judged_on_models_that_it_was_not_estimated_with():
    """All steps of a GPU are predicted a quarter too short, but those of one model, which says nothing about the others."""
    steps = [step(0.8, model=model) for model in ("a", "b", "c", "d")] + [step(1.6, model="e", waits_for_host=True)]
    (own,) = scoreboard(steps, []).corrections
    assert (own.gpu, own.precision, own.rows, own.factor, own.interval) == ("v100", "fp32", 4, 1.25, (1.25, 1.25))
    assert (own.error_without, own.error_with) == (0.2, 0.0)
    (other,) = scoreboard([*steps[:4], step(1.0, model="f")], []).corrections
    assert other.factor == 1.25
    assert other.interval[0] < 1.1 < 1.25 < other.interval[1]
    assert scoreboard(steps[1:], []).corrections == ()


def test_peers_are_scored_by_their_own_errors(tmp_path):
    table = tmp_path / "peers.csv"
    table.write_text("peer,gpu,case,time_error_pct,note\nA,H100,x,-2,n\nA,H100,y,4,n\nB,A100,x,10,\n")
    first, second = peer_scores(tmp_path)
    assert (first.peer, first.rows, first.median_error, first.worst_error, first.bias) == ("A", 2, 0.03, 0.04, 0.01)
    assert (second.peer, second.worst_error) == ("B", 0.1)
    table.write_text("peer,gpu,case,time_error_pct\nA,H100,x,two\n")
    with refuses(Code.FILE, "'two' is no error in percent"):
        peer_scores(tmp_path)


@pytest.fixture
def rows():
    """Two rows: one can be predicted, the other's model does not exist."""

    def row(model: str) -> Row:
        return Row(0, "test", "V100", "v100", model, Job(model, 4, optimizer="sgd"), False, "eager", 0.01, False, "steps.csv")

    return row("lenet5"), row("timm:no_such_model")


def test_what_was_predicted_is_not_predicted_again(rows, monkeypatch, tmp_path):
    monkeypatch.setenv("SCHEDCAST_CACHE", str(tmp_path))
    with workers(1) as run:
        first, why = outcomes(rows, [None, None], run)
        assert "no_such_model" in why
        assert (first.model, first.family, first.measured_s) == ("lenet5", "convolutions", 0.01)
        monkeypatch.setattr(predictions, "predicted", lambda *_: pytest.fail("predicted again"))
        assert next(outcomes(rows[:1], [None], run)) == first
        (kept,) = (tmp_path / "scoreboard").glob("*.json")
        kept.write_text("{}{")
        with pytest.raises(pytest.fail.Exception, match="predicted again"):
            next(outcomes(rows[:1], [None], run))


def test_a_step_that_copies_its_batch_and_waits_takes_longer_by_the_copy(rows, monkeypatch, tmp_path):
    monkeypatch.setenv("SCHEDCAST_CACHE", str(tmp_path))
    plain, synchronized = (predictions.kept_forecast(rows[0]._replace(synchronized=waits)) for waits in (False, True))
    target = predictions.target_of(rows[0])
    plan, machine = predictions.plan_of(rows[0], target), target.machine
    copied_s = predictions.copy_s(plan, machine)
    assert copied_s > 0
    assert synchronized.step.step_s == pytest.approx(plain.step.step_s + copied_s)
    assert synchronized.step.interval_s == pytest.approx([bound_s + copied_s for bound_s in plain.step.interval_s])
