"""The steps of a recording: which one stands for the others, which ones are slow, and what they wait for. Times are microseconds."""

import gzip
import json

import pytest

from simulator.replay.diff.traces import compare_traces
from simulator.replay.whatif.replayed import ask, ranked, replayed, slow_steps, typical_step
from tests.support.loader_traces import LOADER, write_loader_trace
from traces.formats.perfetto import export
from ui.present import replays as words

#: The first step does not count. Of the others, three take 320 and two much more.
LOADING = (900.0, 300.0, 300.0, 1300.0, 300.0, 4300.0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return replayed([write_loader_trace(tmp_path_factory.mktemp("traces") / "trace.json", LOADING)])


def test_the_median_step_stands_for_the_others_and_slow_ones_are_listed(recorded):
    result = recorded.result
    lengths = [round(step.measured_s * 1e6) for step in result.steps]
    assert lengths == [920, 320, 320, 1320, 320, 4320]
    assert lengths[result.median_step] == 320
    assert round(result.gpu_period_measured_s * 1e6) == 1320, "the mean of five steps"
    assert result.slow_steps == (5, 3)
    assert words.slow_words(result) == ["2 of 5 steps are slow: 1.32 to 4.32 ms, the median 0.320 ms."]
    assert words.headline(result) == "The GPU waits for Python 68.8 % of the median step."


def test_the_parts_of_every_step_add_up_and_their_mean_is_the_diagnosis(recorded):
    result = recorded.result
    for step in result.steps:
        assert sum(part.seconds for part in step.parts) == pytest.approx(step.measured_s)
    for index, part in enumerate(result.diagnosis):
        assert part.seconds == pytest.approx(sum(step.parts[index].seconds for step in result.steps[1:]) / 5)
    assert [cells["ms"] for cells in words.diagnosis_cells(result, 5)][-1] == "4.32"


def test_slow_steps_say_what_they_wait_for(recorded):
    first, second = words.slow_cells(recorded.result)
    assert (first["slow step"], first["longer by ms"], second["longer by ms"]) == ("ProfilerStep#5", "4.00", "1.00")
    assert first["most of it"] == f"idle, waits for the host (Python, launches) +4 ms; {LOADER} +4 ms"
    (sentence,) = words.wait_words(recorded.result, 3)
    assert sentence.startswith(f"Meanwhile the host is in {LOADER} (1.21 ms)")


def test_the_changed_step_stands_beside_the_recorded_one(recorded):
    answer = ask(recorded, ["host free"])
    cells = words.diagnosis_cells(recorded.result.model_copy(update={"what_if": answer.what_if}), 5)
    assert (cells[-1]["ms"], cells[-1]["ms after the changes"]) == ("4.32", words.units.ms(answer.what_if.steps[5].seconds))
    assert answer.what_if.steps[5].seconds < 0.2e-3


def test_one_step_is_not_ranked(tmp_path):
    result = ranked(replayed([write_loader_trace(tmp_path / "one.json", LOADING[:1])]))
    assert (result.ladder, result.bounds) == ((), ())
    assert "Only one step is recorded" in words.ladder_words(result)[0]
    assert ranked(replayed([write_loader_trace(tmp_path / "two.json", LOADING[:2])])).ladder


def test_the_step_that_stands_for_the_others_is_one_of_them():
    assert typical_step([5.0]) == 0
    assert typical_step([9.0, 1.0, 3.0]) == 1
    assert slow_steps([5.0]) == ()
    assert slow_steps([9.0, 4.0, 4.0, 5.0, 4.9]) == (3,)


def test_gaps_are_called_after_what_covers_them_wherever_they_are_shown(recorded, tmp_path):
    gaps = [task.name for task in recorded.replay.plan.tasks if LOADER in task.name]
    assert gaps == [f"{LOADER} #{number}" for number in range(1, len(LOADING) + 1)]
    document = json.loads(gzip.decompress(export(tmp_path / "run.json.gz", {"recorded": recorded.replay.recorded}).read_bytes()))
    assert sum(LOADER in event["name"] for event in document["traceEvents"] if event["ph"] == "X") == len(LOADING)
    slower = write_loader_trace(tmp_path / "slower.json", [length + 500 for length in LOADING])
    diff = compare_traces(write_loader_trace(tmp_path / "trace.json", LOADING), slower).diff
    assert (diff.terms[0].part, diff.terms[0].contributions[0].label) == ("Python between launches", LOADER)
    assert diff.terms[0].contributions[0].seconds == pytest.approx(500e-6, rel=0.01)
