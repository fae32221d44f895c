"""When a training reaches a target accuracy, and how often one does so earlier than another."""

import pytest
from pydantic import ValidationError

from traces.documents.training import Curve, Evaluation, reached, wins


def curve(name: str, *percents: int, seed: int = 0, step_s: float = 1.0, predicted_s: float | None = None) -> Curve:
    """A curve of `step_s` per step that is evaluated before the first iteration and after every tenth."""
    evaluations = tuple(Evaluation(iteration=10 * i, train_accuracy=1, test_accuracy=p / 100) for i, p in enumerate(percents))
    count = 10 * (len(percents) - 1)
    seconds = tuple(step_s * (i + 1) for i in range(count))
    return Curve(name=name, losses=(1.0,) * count, seconds=seconds, seed=seed, evaluations=evaluations, predicted_step_s=predicted_s)


def test_one_evaluation_that_falls_again_does_not_count():
    at = reached(curve("a", 10, 92, 80, 90, 95, step_s=0.5, predicted_s=0.1), 0.9)
    assert (at.iterations, at.measured_s, at.predicted_s) == (30, 15.0, pytest.approx(3.0))


def test_the_last_evaluation_needs_no_second_one():
    assert reached(curve("a", 10, 50, 90), 0.9).iterations == 20
    assert reached(curve("a", 10, 50, 89), 0.9).iterations is None


def test_a_training_may_begin_at_its_target():
    at = reached(curve("a", 95, 96), 0.9)
    assert (at.iterations, at.measured_s) == (0, 0.0)


def test_wins_are_counted_seed_by_seed():
    """Stale training needs more iterations in two seeds and as many in one, but its steps take half the predicted time."""
    stale = [curve("stale", *percents, seed=seed, predicted_s=1.0) for seed, percents in enumerate([(1, 2, 91), (1, 91, 91), (1, 2, 91)])]
    plain = [curve("plain", *percents, seed=seed, predicted_s=2.0) for seed, percents in enumerate([(1, 91, 91), (1, 91, 91), (1, 2, 3)])]
    (won,) = wins([*stale, *plain], 0.9)
    assert (won.name, won.rival, won.seeds) == ("stale", "plain", 3)
    assert (won.iterations, won.measured_s, won.predicted_s) == (1, 1, 2)


def test_seeds_that_never_reach_the_target_do_not_count():
    (won,) = wins([curve("a", 1, 2), curve("b", 1, 2)], 0.9)
    assert (won.seeds, won.iterations) == (0, 0)


def test_without_predictions_of_both_there_are_no_predicted_wins():
    (won,) = wins([curve("a", 1, 95, predicted_s=1.0), curve("b", 1, 95)], 0.9)
    assert (won.iterations, won.predicted_s) == (0, None)


@pytest.mark.parametrize("iterations", [(10, 10), (20, 10), (0, 11)])
def test_evaluations_are_in_order_and_of_completed_iterations(iterations):
    evaluations = [Evaluation(iteration=i, train_accuracy=0, test_accuracy=0) for i in iterations]
    with pytest.raises(ValidationError, match="expected increasing ones, up to 10"):
        Curve(name="a", losses=(1.0,) * 10, seconds=tuple(range(10)), evaluations=tuple(evaluations))
