"""A plan goes to JSON and back without loss, and no document makes loading crash."""

import copy
import json
from functools import partial

import pytest
from hypothesis import given, settings

from simulator.plan.json import dump, load
from simulator.plan.plan import Plan
from tests.support.any_plans import PLANS
from tests.support.refusals import refuses
from tests.support.small_plans import copied, forward_fused
from traces.errors import Code


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
    plan = Plan("s", (), {}, {}, options={"config": (1, 2)})
    with refuses(Code.REQUEST, r"options are not JSON data .*; use lists"):
        dump(plan)


@pytest.mark.thorough
@settings(max_examples=150)
@given(PLANS)
def test_any_plan_comes_back_as_it_was(plan):
    assert round_trip(plan) == plan


DOCUMENT = dump(forward_fused())


def with_task(document, **changes):
    """The document with other fields of its first task."""
    document["segments"][0]["tasks"][0] |= changes
    return document


def with_storage(document, **changes):
    """The document with other fields of its first storage."""
    return document | {"storages": [document["storages"][0] | changes, *document["storages"][1:]]}


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
        (lambda d: with_task(d, lag=2**31), "a segment of 6 tasks has too large a lag"),  # it would unroll millions of periods
        (lambda d: with_task(d, body={"kind": "exec", "code": "1"}), "tasks > 0 > body: Input tag 'exec' found using 'kind' does not"),
        *(
            (partial(with_task, body={"kind": "host", "duration_s": seconds}), "segments are damaged at 0 > tasks > 0 > body")
            for seconds in (-1.0, float("nan"), float("inf"), "soon")
        ),
        *((partial(with_storage, bytes=size), f"storage x has {size} bytes") for size in (-1, 2**64 - 1)),
    ],
)
def test_a_damaged_plan_is_refused_with_what_is_wrong(change, expected):
    with refuses(Code.FILE, expected):
        load(change(copy.deepcopy(DOCUMENT)))
