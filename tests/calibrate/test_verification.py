"""Which plans of a search have their costs measured, which of them run, and how the ranking is judged by what these took."""

import pytest

from calibrate.verification import shortlist, worth_measuring
from simulator.engine.costs.model import CostModel
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.predict.forecast import forecast, plan_of
from simulator.predict.target import Target
from simulator.strategies.registry import family
from tests.support.places import ROOT
from tests.support.search_samples import ranked, search_result, verification

JOB, MACHINE = Job(f"{ROOT}/tests/support/mlp.py:make", 8), this_cpu()
COSTS = CostModel(MACHINE)


def forecasts(*texts):
    return {text: forecast(plan_of(JOB, text, Target(MACHINE, COSTS)), Target(MACHINE, COSTS)) for text in texts}


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


def test_a_ranking_that_holds():
    judged = verification(("a", 1, 1.1, 1.2), ("b", 2, 2.1, 2.3), ("c", 3, 3.3, 3.1))
    assert (judged.tau, judged.recalibrated_tau) == (1.0, 1.0)
    assert (judged.chosen, judged.fastest, judged.regret) == ("a", "a", 0.0)


def test_measured_costs_put_another_plan_first():
    judged = verification(("a", 1, 2.0, 2.0), ("b", 2, 1.0, 1.1), ("c", 3, 3.0, 1.0))
    assert judged.chosen == "b"
    assert judged.fastest == "c"
    assert judged.regret == pytest.approx(0.1)
    assert judged.tau == -1.0
    assert judged.recalibrated_tau == pytest.approx(-1 / 3)


def test_plans_that_did_not_run_count_for_nothing():
    judged = verification(("a", 1, 1, None), ("b", 2, 2.1, 2.0))
    assert (judged.tau, judged.chosen, judged.regret) == (None, "b", 0.0)
    assert verification(("a", 1, 1, None)).fastest is None


def test_ties_are_what_the_rounds_cannot_tell_apart():
    rounds = {"a": [1.0, 1.1, 1.0, 1.2, 1.0, 1.1], "b": [1.0, 1.1, 1.1, 1.1, 1.0, 1.2], "c": [1.5, 1.6, 1.5, 1.8, 1.5, 1.6]}
    judged = verification(("a", 1, 1, 1.05), ("b", 1, 1, 1.1), ("c", 1, 1, 1.55), rounds=rounds)
    a, b, c = judged.plans
    assert (a.behind, a.behind_interval, a.tied) == (1.0, None, False)
    assert (b.tied, c.tied) == (True, False)
    assert c.behind_interval[0] > 1


def test_the_noise_of_the_choice_shows_where_halves_of_the_rounds_disagree():
    """In the first half `a` is faster, in the second `b`: each choice costs 10 % in the other half."""
    agree = verification(("a", 1, 1, 1.0), ("b", 2, 2, 2.0), rounds={"a": [1.0] * 4, "b": [2.0] * 4})
    differ = verification(("a", 1, 1, 1.0), ("b", 1, 1, 1.0), rounds={"a": [1.0, 1.1, 1.0, 1.1], "b": [1.1, 1.0, 1.1, 1.0]})
    assert agree.held_out_regret == 0
    assert differ.held_out_regret == pytest.approx(0.1)


def test_what_the_search_put_first_is_named():
    judged = verification(("a", 1, 2.0, 1.3), ("b", 2, 1.0, 1.2), ("c", 3, 3.0, 1.0))
    assert (judged.predicted, judged.chosen, judged.fastest) == ("a", "b", "c")
    assert judged.plans[0].behind == pytest.approx(1.3)
