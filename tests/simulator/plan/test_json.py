"""A plan goes to JSON and back without loss, and no document makes loading crash."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.plan.json import dump, load
from simulator.plan.plan import Plan
from simulator.plan.task import Segment
from tests.support.any_plans import PLANS
from tests.support.small_plans import copied, forward_fused
from traces.errors import SchedcastError, UnusableFileError


def round_trip(plan: Plan) -> Plan:
    return load(json.loads(json.dumps(dump(plan))))


def test_a_plan_comes_back_as_it_was():
    for plan in (forward_fused(), copied()):
        assert round_trip(plan) == plan


def test_fields_at_their_defaults_are_left_out():
    task = dump(forward_fused())["segments"][0]["tasks"][1]
    assert sorted(task) == ["body", "device", "layer", "name", "reads", "writes"]
    assert task["body"] == {"target": "aten.mm.default", "args": '[{"$":0},{"$":1}]', "flops": 524288.0, "kind": "op"}


def test_options_that_json_would_change_are_refused():
    plan = Plan("s", (Segment(()),), {}, {}, options={"config": (1, 2)})
    with pytest.raises(SchedcastError, match=r"options are not JSON data .*; use lists"):
        dump(plan)


@settings(max_examples=150)
@given(PLANS)
def test_any_plan_comes_back_as_it_was(plan):
    assert round_trip(plan) == plan


def paths(node, path=()):
    """The path of every item inside a JSON document."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in inner:
        yield (*path, key)
        yield from paths(child, (*path, key))


DOCUMENT = dump(forward_fused())
JUNK = st.sampled_from([None, True, -1, 10**400, 1e308, float("nan"), "", "nobody", [], {}, [[]], "[" * 10_000, '["a"]'])


@settings(max_examples=300)
@given(path=st.sampled_from(sorted(paths(DOCUMENT), key=str)), junk=JUNK, remove=st.booleans())
def test_a_damaged_document_is_read_or_refused_in_one_line(path, junk, remove):
    document = copy.deepcopy(DOCUMENT)
    node = document
    for key in path[:-1]:
        node = node[key]
    if remove:
        del node[path[-1]]
    else:
        node[path[-1]] = junk
    message = ""
    try:
        load(document)
    except UnusableFileError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: [], "this is not a plan"),
        (lambda d: d | {"schema": "schedcast.plan/2"}, "found 'schedcast.plan/2'"),
        (lambda d: d | {"segments": []}, "it has no segments"),
        (lambda d: d | {"segments": None}, "segments are damaged at its top level"),
        (lambda d: d | {"values": d["values"] * 2}, "two values have the same name"),
        (lambda d: d | {"storages": d["storages"][1:]}, "value x lies on an unknown storage 'x'"),
        (lambda d: d | {"losses": ["nobody"]}, "the loss 'nobody' is not among its values"),
    ],
)
def test_the_message_says_what_is_wrong(change, expected):
    with pytest.raises(UnusableFileError, match=expected):
        load(change(copy.deepcopy(DOCUMENT)))


@pytest.mark.parametrize("duration", [-1.0, float("nan"), float("inf"), "soon"])
def test_an_impossible_duration_is_refused(duration):
    document = copy.deepcopy(DOCUMENT)
    document["segments"][0]["tasks"][0]["body"] = {"kind": "host", "duration_s": duration}
    with pytest.raises(UnusableFileError, match="segments are damaged at 0 > tasks > 0 > body"):
        load(document)


def test_an_unknown_body_is_refused_by_its_kind():
    document = copy.deepcopy(DOCUMENT)
    document["segments"][0]["tasks"][0]["body"] = {"kind": "exec", "code": "1"}
    with pytest.raises(UnusableFileError, match="tasks > 0 > body: Input tag 'exec' found using 'kind' does not match"):
        load(document)


def test_a_lag_that_would_unroll_millions_of_periods_is_refused():
    document = copy.deepcopy(DOCUMENT)
    document["segments"][0]["tasks"][0]["lag"] = 2**31
    with pytest.raises(UnusableFileError, match="a segment of 6 tasks has too large a lag"):
        load(document)


@pytest.mark.parametrize("size", [-1, 2**64 - 1])
def test_a_storage_of_an_impossible_size_is_refused(size):
    document = copy.deepcopy(DOCUMENT)
    document["storages"][0]["bytes"] = size
    with pytest.raises(UnusableFileError, match=f"storage x has {size} bytes"):
        load(document)
