"""The line that sums a prediction up, and its words."""

from tests.support import fake_jobs
from ui.present.predictions import gain_words, verdict_line
from ui.request import JobRequest


def test_a_prediction_in_one_line():
    (answer,) = fake_jobs.predict_many(JobRequest("resnet50", 32, strategies=("turbodl",))).values()
    known = {"against_pytorch": 1.16, "against_pytorch_interval": (1.08, 1.22), "faster_than_pytorch_probability": 0.9}
    prediction = answer.prediction.model_copy(update=known)
    assert verdict_line(prediction) == "turbodl: 28.0 ms, 1.16x (1.08 to 1.22), faster, fits in memory (1 GiB of 16 GiB)"
    assert verdict_line(answer.prediction) == "turbodl: 28.0 ms, 1.47x, cannot tell, fits in memory (1 GiB of 16 GiB)"
    (large,) = fake_jobs.predict_many(JobRequest("resnet50", fake_jobs.TOO_LARGE, strategies=("turbodl",))).values()
    assert verdict_line(large.prediction) == "turbodl: needs 20 GiB, 16 GiB there"
    assert gain_words((1.08, 1.22), 0.9) == "90 %: 1.08 to 1.22; faster with a probability of 90.0 %"
    assert gain_words(None, None) == ""
