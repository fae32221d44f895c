"""`schedcast search` as users call it."""

import pytest

from tests.support.places import ROOT
from tests.support.refusals import refused

JOB = ("search", "--model", "lenet5", "--batch", 8, "--machine", "p100x4", "--devices", 2)
FEW = ("--strategy", "baseline", "--strategy", "gpipe:microbatches=2", "--strategy", "turbodl")


def test_it_ranks_plans_and_writes_the_document(schedcast, tmp_path):
    out = tmp_path / "search.json"
    done = schedcast.call(*JOB, *FEW, "--json", "--out", out)
    assert done.status == 0
    document = done.document
    assert document["schema"] == "schedcast.search/1"
    assert document["best"] == document["plans"][0]["plan"]
    assert {plan["strategy"] for plan in document["plans"]} <= {"baseline", "gpipe", "turbodl"}
    assert out.exists()
    one = schedcast.call("predict", *JOB[1:], "--strategy", document["best"], "--json").document
    assert one["step_s"] == document["plans"][0]["step_s"]
    assert one["interval_s"] == document["plans"][0]["interval_s"]
    assert one["speedup"] == document["plans"][0]["speedup"]
    shown = schedcast.call(*JOB, *FEW)
    assert shown.status == 0
    assert f"{document['best']} is predicted fastest of {document['candidates']} candidates" in shown.out
    assert "(its lower bound)" in " ".join(shown.out.split())


def test_a_memory_limit_that_nothing_fits_has_status_1(schedcast):
    done = schedcast.call(*JOB, "--strategy", "baseline", "--memory-limit", 0.0001, "--json")
    assert done.status == 1
    assert done.document["best"] is None
    assert done.document["plans"][0]["fits"] is False


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--verify", 0), "--verify is 0; expected at least 1"),
        (("--verify", 2), "--verify runs plans on this machine, and --machine p100x4 is another"),
        (("--processes", 0), "--processes is 0; expected at least 1"),
        (("--processes", 2, "--cluster", "tcp://127.0.0.1:1"), "both say who evaluates"),
        (("--cluster", "tcp://127.0.0.1:1"), "--cluster tcp://127.0.0.1:1"),
        (("--strategy", "pytorch"), "no executor runs"),
        (("--strategy", "gpip"), "did you mean 'gpipe'"),
        (("--set", "nothing=1"), "unknown option for --set 'nothing'"),
        (("--out", "/"), "cannot write /: it is a folder"),
    ],
)
def test_a_mistake_is_one_line(schedcast, options, why):
    refused(schedcast.call(*JOB, *options), why)


def test_more_plans_to_verify_than_there_are(schedcast):
    options = ("search", "--model", "lenet5", "--batch", 8, "--strategy", "baseline", "--verify", 5)
    refused(schedcast.call(*options), "--verify 5: there are 1 candidates")


def test_the_best_plans_run_and_the_ranking_is_judged(schedcast):
    options = ("--strategy", "baseline", "--strategy", "forward-fusion", "--verify", 2, "--quick", "--json")
    done = schedcast.call("search", "--model", f"{ROOT}/tests/support/mlp.py:make", "--batch", 8, *options)
    assert done.status == 0, done.err
    verified = done.document["verification"]
    assert [plan["status"] for plan in verified["plans"]] == ["ok", "ok"]
    assert verified["chosen"] in {plan["plan"] for plan in verified["plans"]}
    assert verified["regret"] >= 0
    assert all(plan["max_grad_error"] < 1e-4 for plan in verified["plans"])
