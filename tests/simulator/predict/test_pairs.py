"""Pairs of steps with one change: how a gain is judged, what is predicted for a pair, and which measured pairs are accounted for."""

import csv
import math
from collections import Counter
from dataclasses import replace

import pytest

from simulator.machine.presets import HOSTS
from simulator.model.job import Job
from simulator.plan.task import BACKWARD, FORWARD, UPDATE
from simulator.predict.judgments import LEAST, Judgment, accuracy, by_rule, record, scored
from simulator.predict.pairs import Pair, Side, judged, of_phases, predicted_side
from simulator.predict.rule_records import DATA, record_of, rule_records, text
from tests.support.jobs import MLP
from tests.support.shared_data import shared_folder
from tools import pairs as benchmark
from tools.pair_tables import PAIRS, REFUSED, of_traces, pairs_table, refusal
from traces.documents.rule_records import RuleRecord

SIDE = Side(Job(MLP, 8), "h100")


def judgment(measured: float, predicted: float, interval=None, **more) -> Judgment:
    return Judgment("amp", "a job", "somebody", measured, predicted, interval, **more)


@pytest.mark.parametrize(
    ("measured", "predicted", "right"),
    [
        (1.3, 1.05, True),
        (0.8, 0.5, True),
        (1.0, 1.019, True),
        (1.3, 0.9, False),
        (1.0, 1.05, False),
        (1.03, 1.0, False),
        (1.019, 1.03, True),
    ],
)
def test_a_sign_is_right_on_the_measured_side_or_within_the_noise(measured, predicted, right):
    assert judgment(measured, predicted).sign_right == right


def test_a_record_counts_signs_errors_and_intervals():
    made = [judgment(1.2, 1.3, (1.0, 1.5)), judgment(0.8, 1.1, (1.0, 1.2)), judgment(1.5, 1.45, fitted=True)]
    assert record("amp", made, "why") == RuleRecord(
        rule="amp", pairs=3, sign_right=2, median_error=0.1, worst_error=0.3, rms_error=0.191, alike=False, intervals=2, covered=1,
        fitted=1, sources=("somebody",), misses="why",
    )  # fmt: skip


def test_records_of_traces_and_of_presets_stay_apart():
    groups = by_rule([judgment(1.2, 1.3), judgment(1.2, 1.3, way="trace"), judgment(1.1, 1.0)])
    assert {key: len(own) for key, own in groups.items()} == {("amp", "preset"): 2, ("amp", "trace"): 1}


def test_intervals_are_as_wide_as_the_pairs_of_other_sources_were_off():
    """A gain that two of four sources find 10 % higher is one of 1.2 and of 1.32: log 1.1 wide, by the root mean square over the others."""
    gains = {"a": 1.32, "b": 1.32, "c": 1.2, "d": 1.2}
    of = [replace(judgment(1.2, gain, (gain, gain), alike=True), source=source) for source, gain in gains.items()]
    reach = math.exp(1.645 * math.log(1.1) * math.sqrt(2 / 3))
    assert scored(of)[3].interval == pytest.approx((1.2 / reach, 1.2 * reach))
    assert scored(of)[0].interval == pytest.approx((1.32 * 1.1 ** (-1.645 * math.sqrt(1 / 3)), 1.32 * 1.1 ** (1.645 * math.sqrt(1 / 3))))
    several = [replace(judgment(1.0, 1.01), source="others", rule="batch") for _ in range(LEAST)]
    assert accuracy([*of, *several], "batch") == pytest.approx(math.log(1.01))
    assert accuracy([], "amp") == 0.0


def test_a_gain_is_that_of_a_sample():
    """Twice the samples in a step that takes as long, since it waits for the host, are twice the speed."""
    larger = replace(SIDE, job=replace(SIDE.job, batch=16))
    made = judged(Pair("batch", "8 > 16", "somebody", SIDE, larger, 2.0))
    assert made.predicted == pytest.approx(2.0, rel=0.01)
    assert made.alike


def test_phases_that_were_not_timed_take_no_time():
    whole = predicted_side(SIDE)
    forward, both, update = (predicted_side(replace(SIDE, phases=kept)) for kept in ((FORWARD,), (FORWARD, BACKWARD), (UPDATE,)))
    assert {task.phase for task in of_phases(whole.plan, (UPDATE,)).tasks} == {UPDATE}
    assert forward.timeline.step_s < both.timeline.step_s < whole.timeline.step_s
    assert both.timeline.step_s + update.timeline.step_s == pytest.approx(whole.timeline.step_s, rel=0.02)


def test_a_checkpointed_side_has_a_graph_of_its_own():
    predict = benchmark.Predicted()
    sides = (Side(Job("lenet5", 8, checkpoint=how), "h100") for how in ("none", "full"))
    plain, checkpointed = (len(predict(side).plan.tasks) for side in sides)
    assert plain < checkpointed


def test_another_host_issues_the_same_tasks():
    """Caffe's C++ launches a kernel sooner than PyTorch."""
    ours, caffe = (predicted_side(replace(SIDE, strategy="baseline", host=host)) for host in HOSTS)
    assert [task.name for task in ours.plan.tasks] == [task.name for task in caffe.plan.tasks]
    assert caffe.timeline.step_s < ours.timeline.step_s


def test_a_graph_of_older_releases_launches_fewer_kernels_of_adam():
    """PyTorch counted Adam's steps on the host before release 1.12, also in a graph, and now counts them on the GPU: 12 launches more."""
    graph = replace(SIDE, job=replace(SIDE.job, optimizer="adam", form="for"), strategy="pytorch-graph")
    now, then = (sum(task.body.launches for task in predicted_side(side).plan.tasks) for side in (graph, replace(graph, host_counts=True)))
    parameters = 4
    assert now - then == 12 * parameters


def test_the_committed_records_are_as_they_are_written():
    assert DATA.read_text() == text(rule_records())
    assert all(each.sign_right <= each.pairs and each.covered <= each.intervals <= each.pairs for each in rule_records().records)
    assert record_of("no such rule") is None


def test_every_reason_for_leaving_a_row_out_is_used_and_every_row_is_accounted_for():
    folder = shared_folder("")
    if folder is None:
        pytest.skip("no public measurements beside the repository")
    with (folder / PAIRS).open(newline="") as file:
        rows = list(csv.DictReader(file))
    pairs, left_out = pairs_table(folder / PAIRS)
    assert len(pairs) + len(left_out) + len(of_traces(folder / PAIRS)) == len(rows) == 134
    assert {why for _, why in left_out} == {why for *_, why in REFUSED}
    committed = Counter({(each.rule, each.reason): each.pairs for each in rule_records().left_out})
    assert committed == Counter(left_out)
    with pytest.raises(StopIteration):
        refusal({"rule": "a rule that nobody knows", "job": "", "change": ""})


@pytest.mark.thorough
def test_the_committed_records_come_out_again():
    """Costs, machines and the engine are those with which the records were made: python -m tools.pairs --write.

    Of the rules whose networks are small. Intervals follow from the pairs of all rules.
    """
    folder = shared_folder("")
    if folder is None:
        pytest.skip("needs the public measurements beside the repository")
    rules = {"tf32", "optimizer", "cuda-graph", "batch", "scale out", "turbodl", "forward-fusion", "backward-fusion"}
    _, made = benchmark.records(folder, rules)
    committed = {each.rule: each.model_copy(update={"intervals": 0, "covered": 0}) for each in rule_records().records if each.rule in rules}
    assert {each.rule: each for each in made.records} == committed
