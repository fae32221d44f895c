"""How a search's ranking is judged by what its best plans were measured to take."""

import pytest

from calibrate.verification import shortlist
from tests.support.search_samples import search_result, verification


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


def test_of_equal_plans_one_is_run():
    assert [plan.plan for plan in shortlist(search_result().fitting, 3)] == ["turbodl:fuse=backward", "turbodl", "backward-fusion"]
