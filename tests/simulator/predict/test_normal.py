"""Whether a measured step is as long as predicted, and the published steps nearest to a job."""

import pytest

from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.predict.discrepancy import published
from simulator.predict.forecast import answer
from simulator.predict.normal import nearest, normal
from simulator.predict.target import Target
from tests.support.jobs import MLP
from ui.present.predictions import near_cells, normal_words


def of(machine, measured_s=None, model=MLP):
    return normal(Job(model, 4), answer(Job(model, 4), "pytorch", Target.of(CostModel(machine))), measured_s)


@pytest.fixture(scope="module")
def on_h100():
    return of(load_machine("h100"))


def test_the_published_steps_of_a_model_come_before_those_on_its_card():
    """Then those of the same schedule, and those of the nearest batch per device."""
    steps = nearest(Job("mobilenet_v2", 16), "a100", 1)
    assert [(step.model, step.strategy) for step in steps[:1]] == [("mobilenet_v2", "baseline")]
    assert [step.devices for step in nearest(Job("resnet50", 5120), "titan-xp", 8)] == [2, 4, 8]
    assert {step.machine for step in nearest(Job("vgg16", 8), "titan-xp", 1)} == {"titan-xp"}
    assert nearest(Job("vgg16", 8), "k80", 1) == []


def test_they_are_shown_as_they_were_published():
    machine = load_machine("2xdgx-a100", devices=1)
    job = Job("lenet5", 8)
    document = normal(job, answer(job, "pytorch", Target.of(CostModel(machine))))
    known = {(step.published, step.predicted) for step in published().steps}
    assert {(step.published_s, step.predicted_s) for step in document.near} <= known
    assert [row["published step"] for row in near_cells(document)] == [f"resnet50, {count} x a100" for count in (2, 4, 8)]


@pytest.mark.parametrize(
    ("factor", "verdict", "words"),
    [(1.0, "normal", "is normal: the prediction is"), (1.01, "slower", "the loop waits for data"), (0.99, "faster", "torch.compile")],
)
def test_a_measured_step_is_judged_by_the_interval(on_h100, factor, verdict, words):
    low, high = on_h100.interval_s
    edge = {"slower": high, "faster": low, "normal": on_h100.step_s}[verdict]
    document = on_h100.model_copy(update={"measured_s": edge * factor})
    assert document.verdict == verdict
    assert words in " ".join(normal_words(document))


def test_groups_are_those_of_the_card_and_the_family(on_h100):
    assert {(group.gpu, group.family) for group in on_h100.groups} == {("h100", "transformers"), ("h100-pcie", "transformers")}
    assert "published steps of transformers on h100, h100-pcie" in normal_words(on_h100)[0]
    assert on_h100.verdict is None


def test_on_a_cpu_nothing_is_published():
    document = of(this_cpu(), 1e9)
    assert (document.near, document.groups, document.verdict) == ((), (), "slower")
