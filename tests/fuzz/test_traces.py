"""Damaged recordings, and rules about a sound one: replayed, or refused."""

import gzip
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from simulator.replay.whatif import registry as whatif
from simulator.replay.whatif.replayed import ask, one_step, replayed
from tests.support.fuzzing import damaged, damaged_bytes, damaged_text, fuzzed, sound
from tests.support.rule_texts import RULES
from tests.support.small_traces import write_trace
from traces.formats.perfetto import trace_document
from ui.present import replays
from ui.present.terminal import show


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return json.loads(write_trace(tmp_path_factory.mktemp("traces") / "trace.json", steps=3).read_text())


def replay(path, rules=()):
    """Everything that `schedcast replay` does."""
    recording = replayed([path])
    result = recording.result
    one_step(recording.replay, recording.simulated, result.median_step, "replayed")
    json.dumps(trace_document({"recorded": recording.replay.recorded, "replayed": recording.simulated}), allow_nan=False).encode()
    json.dumps(result.document(), allow_nan=False)
    console = Console(file=io.StringIO())
    show(console, *replays.blocks(result))
    if rules:
        show(console, *replays.blocks(result.model_copy(update={"what_if": ask(recording, rules).what_if})))


def test_a_damaged_trace_is_replayed_or_refused(trace, tmp_path):
    path = tmp_path / "trace.json"

    @fuzzed(100)
    @given(damaged(trace))
    def check(document):
        path.write_text(json.dumps(document))
        with sound("trace", document):
            replay(path)

    check()


def test_a_damaged_trace_file_is_replayed_or_refused(trace, tmp_path):
    path, text = tmp_path / "trace.json", json.dumps(trace)
    contents = st.one_of(
        damaged_text(text).map(lambda changed: changed.encode("utf-8", "surrogatepass")),
        damaged_bytes(text.encode()),
        damaged_bytes(gzip.compress(text.encode(), mtime=0)),
    )

    @fuzzed(50)
    @given(contents)
    def check(content):
        path.write_bytes(content)
        with sound("trace, as a file", content):
            replay(path)

    check()


@fuzzed(300)
@given(RULES)
def test_a_rule_is_read_or_refused(rule):
    with sound("rule", rule):
        whatif.parse(rule)


def test_rules_are_applied_or_refused(trace, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    recording = replayed([path])

    @fuzzed(40)
    @given(st.lists(RULES, min_size=1, max_size=2))
    def check(rules):
        with sound("rules on a trace", rules):
            answer = ask(recording, rules)
            json.dumps(answer.what_if.model_dump(mode="json"), allow_nan=False)
            replays.what_if_words(answer.what_if)

    check()
