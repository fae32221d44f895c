"""What papers measure beside jobs, on small layers. No test is decided by a time."""

from dataclasses import replace

import pytest

from calibrate import fusion_tables, pipeline_tables, reproduction
from calibrate.cpu.testbed import CpuTestbed
from simulator.model.job import Job
from simulator.papers import bppsa_sparse, pipeline
from simulator.papers.pipeline_trainings import Trained, Training
from simulator.plan.bodies.csr.rules import ConvolutionRule, MaxPoolRule
from tests.support.jobs import MLP
from traces.documents.profile import Profile


def test_each_layer_is_timed_by_rule_and_by_column(monkeypatch):
    rules = {
        "convolution": ConvolutionRule(1, 6, 6, 2, (3, 3), padding=(1, 1)),
        "ReLU": replace(bppsa_sparse.FIRST["ReLU"], elements=64),
        "max-pooling": MaxPoolRule(2, 6, 6, (3, 3), (2, 2), (2, 2)),
    }
    monkeypatch.setattr(reproduction, "FIRST", rules)
    rows = reproduction.generation_table().rows
    assert [row.labels["columns"] for row in rows] == ["72", "64", "18"]
    for row in rows:
        assert row.predicted("by rule") > 0
        assert row.predicted("faster") == pytest.approx(row.predicted("by column") / row.predicted("by rule"))
    assert [row.figures[2].published for row in rows] == [8.3e3, 1.2e6, 1.5e5]


def test_loops_with_hooks_are_predicted_and_timed(monkeypatch):
    monkeypatch.setattr(fusion_tables, "ROUNDS", 1)
    monkeypatch.setattr(fusion_tables, "ON_CPU", ((2, None),))
    monkeypatch.setattr(fusion_tables, "paper_job", lambda model, batch, size: Job(MLP, batch, size, "adam", "for"))
    testbed = CpuTestbed()
    profile = Profile(identity=testbed.identity)
    testbed.measure_machine(profile)
    table = fusion_tables.hooks_table(testbed, profile, lambda *_: None)
    assert [row.labels["loop"] for row in table.rows] == ["baseline", "forward-fusion", "backward-fusion"]
    base = table.rows[0]
    for row in table.rows:
        for suffix in ("", ", measured"):
            gain = base.predicted(f"step{suffix}") / row.predicted(f"step{suffix}")
            assert row.predicted(f"speed-up{suffix}") == pytest.approx(gain)
    assert all(key.endswith("-threads") for key in profile.costs if not key.startswith("update.")), "PyTorch's own loop uses all cores"


def test_updates_are_timed_with_their_gradients_in_the_cache_and_without(monkeypatch):
    monkeypatch.setattr(fusion_tables, "ELEMENTS", (64, 128))
    monkeypatch.setattr(fusion_tables, "EVICTING_BYTES", 1 << 20)
    rows = fusion_tables.locality_table().rows
    assert [tuple(row.labels.values()) for row in rows] == [(o, str(n)) for o in ("momentum", "adam") for n in (64, 128)]
    for row in rows:
        assert row.predicted("gain") == pytest.approx(row.predicted("evicted") / row.predicted("in the cache"))


TASK = Trained("lenet", "LeNet-5", "lenet5", "digits", 20, 16, 40, 0.02, 1.0, 0.3, (), seeds=1)


def test_trainings_with_stale_weights_fill_a_table(monkeypatch):
    trainings = (
        Training(name="plain"),
        Training((1, 2), name="drained at once", pipelined=0.0),
        Training((1, 2, 3, 4), rate=1e9),
    )
    monkeypatch.setattr(pipeline, "SCOPE", pipeline.SCOPE.model_copy(update={"trained": (replace(TASK, trainings=trainings),)}))
    reports = []
    (table,) = pipeline_tables.tables(lambda done, total, text: reports.append((done, total)))
    assert reports == [(0, 3), (1, 3), (2, 3)]
    plain, drained, broken = ({figure.name: figure.predicted for figure in row.figures} for row in table.rows)
    assert plain["accuracy"] > 0.3  # learns
    assert plain["iterations"] <= 40
    assert drained | {"stale weights": 0.0} == plain, "a pipeline that takes in nothing trains plainly"
    assert broken["accuracy"] < 0.3, "a loss that is not finite ends a training"
    assert broken["iterations"] is None
    assert broken["drop"] == pytest.approx(plain["accuracy"] - broken["accuracy"])
    assert [row.labels["pairs after"] for row in table.rows] == ["none", "(1, 2)", "(1, 2, 3, 4)"]


def test_a_stale_training_learns_otherwise_than_a_plain_one():
    plain = pipeline_tables.trained(TASK, Training(), 0)
    assert plain != pipeline_tables.trained(TASK, Training((1, 2)), 0)
    assert plain != pipeline_tables.trained(TASK, Training(activation="tanh"), 0)
    assert plain != pipeline_tables.trained(TASK, Training(inputs="framed"), 0)
    assert plain != pipeline_tables.trained(replace(TASK, data="cluttered"), Training(), 0)
