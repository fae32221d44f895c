"""What papers measure beside jobs, on small layers. No test is decided by a time."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from calibrate import bppsa_tables, fusion_tables, pipeline_tables
from calibrate.cpu.testbed import CpuTestbed
from simulator.model.job import Job
from simulator.model.workloads.data import digits
from simulator.papers import bppsa_sparse, pipeline
from simulator.papers.pipeline_trainings import Trained, Training
from simulator.plan.bodies.csr.mask import Mask
from simulator.plan.bodies.csr.rules import ConvolutionRule, MaxPoolRule
from tests.support.jobs import MLP
from traces.documents.profile import Profile


def test_each_layer_is_timed_by_rule_and_by_column(monkeypatch):
    rules = {
        "convolution": ConvolutionRule(1, 6, 6, 2, (3, 3), padding=(1, 1)),
        "ReLU": replace(bppsa_sparse.FIRST["ReLU"], elements=64),
        "max-pooling": MaxPoolRule(2, 6, 6, (3, 3), (2, 2), (2, 2)),
    }
    monkeypatch.setattr(bppsa_tables, "FIRST", rules)
    rows = bppsa_tables.generation_table().rows
    assert [row.labels["columns"] for row in rows] == ["72", "64", "18"]
    for row in rows:
        assert row.predicted("by rule") > 0
        assert row.predicted("faster") == pytest.approx(row.predicted("by column") / row.predicted("by rule"))
    assert [row.figures[2].published for row in rows] == [8.3e3, 1.2e6, 1.5e5]


@pytest.mark.thorough
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


def test_trainings_with_stale_weights_fill_a_table(monkeypatch, tmp_path):
    trainings = (
        Training(name="plain"),
        Training((1, 2), name="drained at once", pipelined=0.0),
        Training((1, 2, 3, 4), rate=1e9),
    )
    scope(monkeypatch, tmp_path, trainings)
    reports = []
    table, curves = pipeline_tables.tables(lambda done, total, text: reports.append((done, total)))
    assert reports == [(0, 3), (1, 3), (2, 3)]
    assert not curves.rows, "two GPUs run neither"
    plain, drained, broken = ({figure.name: figure.predicted for figure in row.figures} for row in table.rows)
    assert plain["accuracy"] > 0.3  # learns
    assert plain["iterations"] <= 40
    assert drained | {"stale weights": 0.0} == plain, "a pipeline that takes in nothing trains plainly"
    assert broken["accuracy"] < 0.3, "a loss that is not finite ends a training"
    assert broken["iterations"] is None
    assert broken["drop"] == pytest.approx(plain["accuracy"] - broken["accuracy"])
    assert [row.labels["pairs after"] for row in table.rows] == ["none", "(1, 2)", "(1, 2, 3, 4)"]


def scope(monkeypatch, folder, trainings):
    monkeypatch.setenv("SCHEDCAST_DATA", str(folder))
    monkeypatch.setattr(pipeline, "SCOPE", pipeline.SCOPE.model_copy(update={"trained": (replace(TASK, trainings=trainings),)}))


def test_an_interrupted_measurement_goes_on_with_the_trainings_that_are_left(monkeypatch, tmp_path):
    scope(monkeypatch, tmp_path, (Training(name="plain"), Training((1,)), Training((4,))))
    made, train = [], pipeline_tables.trained

    def interrupted(task, training, seed):
        made.append(training.placement)
        if training.placement == (1,) and made.count((1,)) == 1:
            raise KeyboardInterrupt
        return train(task, training, seed)

    monkeypatch.setattr(pipeline_tables, "trained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline_tables.tables(lambda *_: None)
    (kept,) = (tmp_path / "trainings").iterdir()
    table, curves = pipeline_tables.tables(lambda *_: None)
    assert made == [(), (1,), (1,), (4,)], "plain training was kept"
    assert not kept.exists(), "all are there, so that the next measurement makes them again"
    plain = [row for row in curves.rows if row.labels["training"] == "plain"]
    assert plain[-1].predicted("accuracy") == table.rows[0].predicted("accuracy")
    assert [row.labels["after"] for row in plain] == [str(4 * number) for number in range(1, 11)]
    assert plain[-1].predicted("loss") < plain[0].predicted("loss")


def test_a_damaged_training_is_made_again(monkeypatch, tmp_path):
    kept = pipeline_tables.Kept(tmp_path, lambda text: None)
    monkeypatch.setattr(pipeline_tables, "trained", lambda *_: [(4, 0.5, 1.25), (5, 0.125, float("nan"))])
    kept.trained(TASK, Training(), 0)
    (path,) = tmp_path.iterdir()
    assert kept.trained(TASK, Training(), 0)[0] == (4, 0.5, 1.25)
    path.write_text("[[1")
    assert kept.trained(TASK, Training(), 0)[1][:2] == (5, 0.125)


@pytest.mark.thorough
def test_both_curves_of_a_scan_and_of_back_propagation_are_measured():
    testbed = CpuTestbed()
    profile = Profile(identity=testbed.identity)
    testbed.measure_machine(profile)
    job = Job("rnn_bitstream", 4, 8, "adam", lr_schedule="0:0.01")
    curves = bppsa_tables.Curves("RNN", job, "bppsa:scan=blelloch", 20)
    rows = bppsa_tables.losses_table(testbed, profile, lambda *_: None, (curves,)).rows
    assert [row.labels["after"] for row in rows] == [str(2 * number) for number in range(1, 11)]
    assert all(row.predicted("BPPSA") == pytest.approx(row.predicted("back-propagation"), rel=1e-4) for row in rows)
    assert rows[-1].predicted("back-propagation") != rows[0].predicted("back-propagation")
    assert rows[0].predicted("most apart") <= rows[-1].predicted("most apart") < 1e-4


def test_the_largest_weights_of_all_layers_together_are_kept():
    weights = [torch.tensor([[0.1, -4.0], [3.0, 0.2]]), torch.tensor([[5.0, 0.3]])]
    masks = bppsa_tables.largest(weights, 0.5)
    assert [mask.tolist() for mask in masks] == [[[0, 1], [1, 0]], [[1, 0]]]


def test_a_network_is_pruned_while_it_trains():
    course = bppsa_tables.Course(before=20, while_pruned=20, after=20, every=5, batch=16, rate=3e-3, kept=0.25)
    assert [course.share(step) for step in (0, 20, 40, 60)] == [1.0, 1.0, 0.25, 0.25]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    pruned = bppsa_tables.train(model, digits(1, 16, 8, 0), course, lambda *_: None)
    assert min(pruned.before, pruned.after) > 0.3
    assert sum(int(mask.sum()) for mask in pruned.masks) == (64 * 32 + 32 * 10) // 4
    for weight, mask in zip((model[1].weight, model[3].weight), pruned.masks, strict=True):
        assert torch.equal(weight != 0, mask != 0)


def test_a_chain_has_the_positions_that_a_layer_keeps():
    rule = ConvolutionRule(1, 4, 4, 2, (3, 3), padding=(1, 1), mask=Mask(0.5))
    mask = torch.zeros(2, 1, 3, 3)
    mask[1, 0, 1, 1] = 1.0
    relu = bppsa_sparse.Operator("1", bppsa_sparse.FIRST["ReLU"], 1.0)
    chain = bppsa_tables.with_masks([relu, bppsa_sparse.Operator("0", rule, 1.0)], {"0": mask})
    assert chain[0] is relu
    assert chain[1].rule.nnz == 16, "one weight, which every output of a channel reads"


@pytest.mark.thorough
def test_a_stale_training_learns_otherwise_than_a_plain_one():
    plain = pipeline_tables.trained(TASK, Training(), 0)
    assert plain != pipeline_tables.trained(TASK, Training((1, 2)), 0)
    assert plain != pipeline_tables.trained(TASK, Training(activation="tanh"), 0)
    assert plain != pipeline_tables.trained(TASK, Training(inputs="framed"), 0)
    assert plain != pipeline_tables.trained(replace(TASK, data="cluttered"), Training(), 0)
