"""What a validation measured is kept by job and plan, unless other work took the machine."""

import pytest

from tests.support.page_samples import result, validation
from traces.documents.measured_step import step_name, steps_of
from traces.documents.profile import Identity, Profile


def test_the_steps_of_a_validation_are_found_by_job_strategy_and_options(tmp_path):
    ran = result(strategy="turbodl", options={"beta": 2, "alpha": 1}, against_pytorch=0.8, against_pytorch_interval=(0.7, 0.9))
    skipped = result(strategy="bppsa", status="skipped: why")
    steps = steps_of(validation(ran, skipped), "job", "2026-01-31")
    assert list(steps) == [step_name("job", "turbodl", {"alpha": 1, "beta": 2})]
    (step,) = steps.values()
    assert (step.step_s, step.gain.verdict, step.date) == (ran.measured_step_s, "slower", "2026-01-31")
    path = Profile(identity=Identity(kind="cpu"), steps=steps).save(tmp_path / "profile.json")
    assert Profile.load(path).steps == steps


@pytest.mark.parametrize(("share", "kept"), [(None, 1), (0.05, 1), (0.5, 0)])
def test_a_busy_machine_measured_nothing(share, kept):
    document = validation(result(strategy="turbodl")).model_copy(update={"busy_share": share})
    assert len(steps_of(document, "job", "2026-01-31")) == kept
