"""Requests of the app: bounded, so that none of them keeps it busy for minutes."""

from dataclasses import replace

import pytest

from traces.errors import SchedcastError
from ui.request import JobRequest
from ui.service import jobs


@pytest.mark.parametrize(
    ("batch", "size", "expected"),
    [
        (16, 100_000, "the image size is 100000; this server predicts 1 to 32,768; schedcast predict takes larger ones"),
        (16, -1, "the image size is -1; this server predicts 1 to 32,768"),
        (10**9, 32, "the batch is 1000000000; this server predicts 1 to 1,000,000"),
        (0, None, "the batch is 0; this server predicts 1 to 1,000,000"),
    ],
)
def test_a_request_beyond_the_bounds_is_refused(batch, size, expected):
    with pytest.raises(SchedcastError, match=expected):
        jobs.predict_many(JobRequest("rnn_bitstream", batch, size, "sgd", precision="fp32", machine="h100", strategies=("bppsa",)))


@pytest.mark.parametrize(("strategy", "option"), [("gpipe", "schedule"), ("deepa", "config")])
def test_the_app_reads_no_files_that_an_option_names(strategy, option):
    named = JobRequest("lenet5", 8, machine="p100x4", strategies=(strategy,), settings=(f"{option}=/etc/hostname",))
    for request in (named, replace(named, strategies=(f"{strategy}: {option} =/etc/hostname",), settings=())):
        with pytest.raises(
            SchedcastError, match=f"{option}= names a file, which neither the app nor an agent may read; use schedcast predict --"
        ):
            jobs.predict_many(request)


def test_the_app_runs_no_model_that_was_not_named_at_start(tmp_path):
    (tmp_path / "own.py").write_text("raise SystemExit")
    with pytest.raises(SchedcastError, match="unknown model"):
        jobs.predict_many(JobRequest(f"{tmp_path / 'own.py'}:make", 8, machine="h100", strategies=("baseline",)))


def test_the_app_answers_with_the_rows_of_the_command_line():
    """The table of one strategy has what it is compared with, and its document is about the strategy alone."""
    request = JobRequest("lenet5", 8, machine="h100", strategies=("turbodl",))
    assert list(jobs.predict_many(request)) == ["pytorch", "pytorch-graph", "baseline", "turbodl"]
    assert [each.strategy for each in jobs.document(request).predictions] == ["turbodl"]
    assert list(jobs.predict_many(replace(request, strategies=()))) == ["pytorch"]
    refused = jobs.document(replace(request, strategies=("gpipe",)))
    assert [each.strategy for each in refused.predictions] == ["pytorch", "pytorch-graph"]
    assert [each.strategy for each in refused.refused] == ["gpipe"]
