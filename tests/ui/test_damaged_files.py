"""Every command that reads a file refuses a damaged one, and a place that is no file, with status 2 and one line."""

import gzip
import json

import pytest

from tests.support.refusals import refused

JOB = ("--model", "lenet5", "--batch", 4, "--strategy", "baseline")
READERS = {
    "predict": ("predict", *JOB, "--profile"),
    "run": ("run", *JOB, "--steps", 2, "--profile"),
    "validate": ("validate", *JOB, "--no-calibrate", "--profile"),
    "replay": ("replay",),
    "diff": ("diff",),
}


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("place", ["/dev/zero", "/", "x" * 5000, "no/such/file", "\udcff"])
def test_a_place_that_is_no_file(schedcast, command, place):
    refused(schedcast.call(*READERS[command], place))


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x1f\x8b", b"\xff\xfe{", b"[" * 100_000, b"9" * 5000, b'{"traceEvents": [NaN]}', b'"\\ud800"', b'{"schema": 1e999}',
        gzip.compress(b"[" + b" " * (1 << 20)),
        json.dumps({"schema": "schedcast.profile/1", "identity": {"kind": "cpu"}, "costs": 7}).encode(),
    ],
)  # fmt: skip
def test_a_damaged_file(schedcast, tmp_path, command, content):
    (tmp_path / "damaged.json").write_bytes(content)
    refused(schedcast.call(*READERS[command], tmp_path / "damaged.json"), "damaged.json")


@pytest.mark.parametrize("option", ["--trace", None])
def test_the_app_is_not_started_for_a_place_that_is_no_file(schedcast, option):
    refused(schedcast.call("ui", *filter(None, [option]), "x" * 5000), "no ")
