"""Training on a data set by plans: the losses equal those of plain PyTorch's loop on the same batches."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from calibrate.cpu.testbed import CpuTestbed
from calibrate.numerics import reference
from calibrate.training import Repeated, Training, check_evaluable
from executors.kernels.update import torch_optimizer
from simulator.model.job import Job
from simulator.model.workloads.data import Batches
from tests.support import mlp
from tests.support.jobs import MLP, planned
from tests.support.refusals import refuses
from traces.documents.training import AUTOGRAD, Curve, TrainingRun, first_difference, largest_difference
from traces.errors import Code, UnusableFileError

STRATEGIES = ["baseline", "forward-fusion", "backward-fusion", "turbodl"]
STEPS = 24  # more than one turn
JOBS = [
    Job("rnn_bitstream", 4, 6, precision="fp64", optimizer="adam"),
    Job("lenet5", 2, precision="fp64"),
    Job("lenet5", 4, precision="fp64", accumulate=2),
]


def usual_loop(job: Job, steps: int) -> list[float]:
    """The losses of the loop that a user would write."""
    built, data = job.build(), job.data()
    optimizer = torch_optimizer(job.optimizer, job.form, built.module.parameters(), job.hyper)
    losses = []
    for iteration in range(steps):
        (inputs,), target = data[iteration]
        optimizer.zero_grad()
        parts = list(zip(inputs.chunk(job.accumulate), target.chunk(job.accumulate), strict=True))
        micro_losses = [F.cross_entropy(built.module(x), y) for x, y in parts]
        for loss in micro_losses:
            (loss / job.accumulate).backward()
        optimizer.step()
        losses.append(sum(loss.item() for loss in micro_losses) / job.accumulate)
    return losses


def trained(job: Job, *names: str, steps: int = STEPS, evaluate_every: int = 0) -> Training:
    """`job` trained by plans, and by autograd if it is among the names."""
    testbed = CpuTestbed()
    machine = testbed.machine(None)
    testbed.open(machine)
    plans = {}
    for name in (name for name in names if name != AUTOGRAD):
        plans[name] = planned(name, job, machine)
    training = Training.begin(job, testbed, plans, AUTOGRAD in names, evaluate_every=evaluate_every)
    assert list(training.turns(steps))[-1] == steps
    return training


@pytest.mark.sampled(3)
@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.model} {job.accumulate}")
def test_losses_are_those_of_the_usual_loop(job):
    expected = usual_loop(job, STEPS)
    assert len(set(expected)) == STEPS  # no batch is repeated
    for curve in trained(job, *STRATEGIES, AUTOGRAD).curves():
        assert curve.losses == pytest.approx(expected, abs=1e-12), curve.name
        assert len(curve.seconds) == STEPS
        assert curve.seconds[0] > 0


def test_turns_change_no_loss(monkeypatch):
    monkeypatch.setattr("calibrate.training.FIRST", 5)
    monkeypatch.setattr("calibrate.training.MOST", 7)
    assert trained(JOBS[0], "forward-fusion").curves()[0].losses == pytest.approx(usual_loop(JOBS[0], STEPS), abs=1e-12)


def test_all_learners_train_from_the_same_parameters():
    curves = trained(Job("lenet5", 4), *STRATEGIES, AUTOGRAD, steps=4).curves()
    assert [curve.name for curve in curves] == [*STRATEGIES, AUTOGRAD]
    assert len({curve.losses[0] for curve in curves}) == 1
    assert "plain PyTorch, " in curves[-1].about


def test_dropout_masks_are_the_same():
    first, other = trained(Job(f"{mlp.__file__}:dropout", 6, precision="fp64"), "baseline", AUTOGRAD, steps=6).curves()
    assert len(set(first.losses)) == 6
    assert other.losses == pytest.approx(first.losses, abs=1e-12)


def test_without_a_data_set_one_batch_is_repeated():
    training = trained(Job(MLP, 6, optimizer="sgd", lr=0.1), "backward-fusion", AUTOGRAD)
    assert training.batches is None
    for curve in training.curves():
        assert all(after < before for before, after in zip(curve.losses, curve.losses[1:], strict=False))


def test_a_finished_training_has_a_timeline_only_on_request():
    assert trained(JOBS[0], "baseline", steps=4).finish(timeline=False).timeline is None
    done = trained(JOBS[0], "forward-fusion", steps=30).finish(timeline=True)
    assert len(done.losses) == 30
    assert {span.iteration for span in done.timeline.spans} >= {28, 29}
    assert not {span.iteration for span in done.timeline.spans} & set(range(15))  # only spans of the last turn


@pytest.mark.parametrize(("count", "turns"), [(6, [6]), (19, [19]), (30, [16, 30]), (300, [16, 272, 300])])
def test_there_is_no_very_short_last_turn(count, turns, monkeypatch):
    monkeypatch.setattr("calibrate.training.TURN_S", 1e9)
    training = trained(JOBS[0], "baseline", steps=2)
    training.first.ends_s.clear()
    done, lengths = [], []
    monkeypatch.setattr(training.first, "run", lambda steps, feeds: (lengths.append(steps), training.first.ends_s.append(1.0)))
    done = list(training.turns(count))
    assert (done, sum(lengths)) == (turns, count)


def test_large_batches_make_short_turns(monkeypatch):
    training = trained(JOBS[0], "baseline", steps=2)
    size = sum(t.nbytes for t in training.built.named_inputs().values())
    monkeypatch.setattr("calibrate.training.TURN_BYTES", 3 * size)
    assert list(training.turns(12)) == [3, 6, 12]


def curve(name: str, *losses: float | None) -> Curve:
    return Curve(name=name, losses=losses, seconds=tuple(range(len(losses))))


def test_how_far_curves_are_apart():
    first = curve("a", 2.0, 1.0, 0.5, None)
    assert largest_difference(first, [curve("b", 2.0, 1.1, 0.5, None)]) == pytest.approx(0.05)
    assert largest_difference(first, [first, curve("b", 2.0, 1.0, 0.5, 0.1)]) == 0.0  # only iterations at which all are finite
    assert largest_difference(first, []) is None
    assert largest_difference(curve("a", None), [curve("b", None)]) is None
    assert first_difference(first, curve("b", 2.0, 1.1, 0.5, None), 0.01) == 2
    assert first_difference(first, curve("b", 2.0, 1.1, 0.5, None), 0.1) is None
    assert first_difference(first, curve("b", 2.0, 1.0, 0.5, 0.1), 0.1) == 4


DOCUMENT = {
    "schema": "schedcast.run/1", "job": {"model": "lenet5"}, "strategy": "baseline", "options": {}, "mode": "eager", "steps": 2,
    "step_s": 0.5, "step_runs_s": [0.5], "losses": [2.0, None], "peak_bytes": {}, "semantics": {}, "predicted_step_s": None,
}  # fmt: skip


def test_a_document_without_curves_loads(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(DOCUMENT))
    run = TrainingRun.load(path)
    assert (run.curves, run.data) == ((), "one batch, repeated")
    assert TrainingRun.load(run.save(path)) == run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"curves": [{"name": "a", "losses": [1.0], "seconds": []}]}, "1 losses, 0 seconds"),
        ({"curves": [{"name": "a", "losses": [1.0, 1.0], "seconds": [2.0, 1.0]}]}, "seconds run backward"),
        ({"curves": 3}, "is damaged at curves"),
        ({"losses": None}, "is damaged at losses"),
        ({"schema": "schedcast.run/2"}, "upgrade schedcast"),
    ],
)
def test_a_damaged_document_is_refused(tmp_path, change, message):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(DOCUMENT | change))
    with pytest.raises(UnusableFileError, match=message):
        TrainingRun.load(path)


def test_a_reference_can_be_fed_another_batch():
    job = Job(MLP, 6)
    plain = reference(job, job.build(), same_masks=False)
    first = plain.step()
    plain.feed((torch.zeros(6, 4),), torch.zeros(6, dtype=torch.int64))
    assert plain.step() != first


def evaluated(job: Job, *names: str, steps: int = 12, every: int = 5) -> tuple[Curve, ...]:
    """The curves of a training whose accuracy is measured."""
    return trained(job, *names, steps=steps, evaluate_every=every).curves()


def share_right(module: torch.nn.Module, data: Batches, numbers: range) -> float:
    """The share of these samples that a module classifies correctly, in evaluation mode."""
    (inputs,), target = data.make(np.array(numbers))
    with torch.no_grad():
        return float((module.eval()(inputs).argmax(1) == target).double().mean())


@pytest.mark.thorough
def test_accuracy_is_that_of_held_out_samples_in_evaluation_mode():
    job = Job("lenet5", 8, 16, optimizer="nesterov", lr_schedule="0:0.05,3:0.01")
    ours, plain = evaluated(job, "forward-fusion", AUTOGRAD, steps=6, every=4)
    built, data = job.build(), job.data()
    trainer = reference(job, built, same_masks=False)
    for iteration in range(4):
        trainer.feed(*data[iteration])
        trainer.step()
    seen, held_out = range(data.held_out), range(data.samples, data.samples + data.held_out)
    shares = share_right(built.module, data, seen), share_right(built.module, data, held_out)
    assert [each.iteration for each in plain.evaluations] == [each.iteration for each in ours.evaluations] == [0, 4, 6]
    assert (plain.evaluations[1].train_accuracy, plain.evaluations[1].test_accuracy) == pytest.approx(shares, abs=0.01)
    assert ours.evaluations[0] == plain.evaluations[0]  # later, the plan's newest weights lack the update that its next forward makes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strategy", ["baseline", "stale-pipeline:on=simulated,stages=3"])
def test_measuring_accuracy_changes_no_loss(strategy):
    job = Job("lenet5", 4, 16)
    (with_accuracy,), (without,) = evaluated(job, strategy), evaluated(job, strategy, every=0)
    assert with_accuracy.losses == without.losses
    assert len(with_accuracy.losses) == 12  # also those of the iterations that a pipeline has not completed before it drains
    assert [each.iteration for each in with_accuracy.evaluations] == [0, 5, 10, 12]
    assert without.evaluations == ()


def test_every_seed_has_parameters_and_batches_of_its_own():
    job, testbed, reported = Job("lenet5", 4, 16), CpuTestbed(), []
    machine = testbed.machine(None)
    testbed.open(machine)
    repeated = Repeated(job, testbed, {"baseline": planned("baseline", job, machine)}, True, ["baseline"], seeds=2)
    repeated.begin()
    repeated.train(8, progress=lambda done, total, text: reported.append((done, total, text)))
    curves = repeated.curves()
    assert [(curve.name, curve.seed) for curve in curves] == [("baseline", 0), (AUTOGRAD, 0), ("baseline", 1), (AUTOGRAD, 1)]
    assert curves[0].losses != curves[2].losses
    assert curves[2].losses == pytest.approx(curves[3].losses, abs=1e-5)
    assert curves[2].losses == trained(job.with_seed(1), "baseline", steps=8).curves()[0].losses
    assert (repeated.differences, len(repeated.done.losses)) == ([], 8)
    assert [at for at, *_ in reported] == sorted(at for at, *_ in reported)
    assert {(total, text) for _, total, text in reported} == {(32, f"{n}, seed {s}") for n in ("baseline", AUTOGRAD) for s in (0, 1)}


def test_only_models_with_a_data_set_have_an_accuracy():
    with refuses(Code.REQUEST, r"--target 0\.9 needs classes to tell apart, and resnet18 has no data set"):
        check_evaluable(Job("resnet18", 2), "--target 0.9")
    check_evaluable(Job("rnn_bitstream", 4, 6), "--target 0.9")
