"""Which plans of a search have their costs measured, and which of them run."""

from calibrate.verification import shortlist, worth_measuring
from simulator.engine.costs.model import CostModel
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.predict.forecast import forecast, plan_strategy
from simulator.strategies.registry import family
from tests.support.places import ROOT
from tests.support.search_samples import ranked, search_result

JOB, MACHINE = Job(f"{ROOT}/tests/support/mlp.py:make", 8), this_cpu()
COSTS = CostModel(MACHINE)


def forecasts(*texts):
    return {text: forecast(plan_strategy(text, {}, JOB, MACHINE, COSTS), MACHINE, COSTS) for text in texts}


def test_the_first_plan_of_each_family_that_may_win_comes_first_and_equal_plans_are_one():
    assert worth_measuring(search_result().fitting, 1) == ["turbodl:fuse=backward", "backward-fusion", "turbodl"]


def test_a_family_that_may_win_is_measured_however_many_plans_are_faster():
    many = [ranked(f"turbodl:alpha={n}", 0.01 + n * 1e-5, 1.0, (0.9, 1.1)) for n in range(20)]
    fitting = (
        ranked("turbodl", 0.01, 1.0),
        *many,
        ranked("backward-fusion", 0.011, 1.0, (0.9, 1.3)),
        ranked("bppsa", 0.03, 1.0, (2.0, 4.0)),
    )
    chosen = worth_measuring(fitting, 2)
    assert chosen[:2] == ["turbodl", "backward-fusion"]
    assert len(chosen) == 6
    assert "bppsa" not in chosen


def test_the_runs_are_spent_on_several_families():
    known = forecasts("baseline", "turbodl", "turbodl:alpha=1", "turbodl:fallback=sync", "forward-fusion", "backward-fusion")
    chosen = shortlist(known, 3, "baseline")
    assert {family(text) for text in chosen} == {"baseline", "turbodl", "fusion"}
    assert chosen == sorted(chosen, key=lambda text: known[text].timeline.step_s)


def test_plans_alike_come_last_and_the_first_of_the_search_runs():
    known = forecasts("baseline", "turbodl", "turbodl:alpha=1", "turbodl:fallback=sync")
    assert len(shortlist(known, 4, "baseline")) == 4
    assert "turbodl:alpha=1" in shortlist(known, 2, "turbodl:alpha=1")
    assert len(shortlist(known, 1, "turbodl:alpha=1")) == 1
    assert shortlist({}, 3, "baseline") == []
