"""How a search's ranking is judged by what its best plans were measured to take."""

import pytest

from tests.support.search_samples import verification


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
