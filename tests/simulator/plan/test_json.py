"""A plan goes to JSON and back without loss, and no document makes loading crash."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.bodies.copy import Copy
from simulator.bodies.host import Host
from simulator.bodies.opcall import OpCall
from simulator.bodies.oplist import OpList, Step
from simulator.bodies.update import Update
from simulator.plan.json import dump, load
from simulator.plan.plan import Plan
from simulator.plan.task import DTYPE_BYTES, KINDS, PHASES, Operand, Segment, Storage, Task, Value, ViewStep
from tests.support.small_plans import copied, forward_fused
from traces.errors import StepcastError, UnusableFileError


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
    with pytest.raises(StepcastError, match=r"options are not JSON data .*; use lists"):
        dump(plan)


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
COUNTS = st.integers(0, 5)
NUMBERS = st.floats(0, 1e15)
VIEWS = st.builds(
    ViewStep, st.sampled_from(["aten.slice.Tensor", "aten.t.default"]), st.sampled_from(["[]", "[0, 1, 2]"]), st.none() | COUNTS
)


@st.composite
def operands(draw, names=None):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    strides = draw(st.lists(st.integers(0, 9), min_size=len(shape), max_size=len(shape)))
    views = tuple(draw(st.lists(VIEWS, max_size=2)))
    return Operand("v" if names is None else draw(names), tuple(shape), tuple(strides), draw(st.sampled_from(sorted(DTYPE_BYTES))), views)


OPS = st.builds(OpCall, NAMES, st.just('[{"$": 0}, NaN]'), st.just("{}"), st.tuples(COUNTS), NUMBERS)
STEPS = st.builds(Step, OPS, st.tuples(operands()), st.tuples(operands()))
BODIES = st.one_of(
    OPS,
    st.builds(OpList, st.lists(STEPS, min_size=1, max_size=3).map(tuple), NAMES),
    st.builds(
        Update, st.sampled_from(["sgd", "adam"]), st.sampled_from(["for", "fused"]), st.tuples(NAMES), st.tuples(st.tuples(NAMES, NUMBERS))
    ),
    st.builds(Copy, NAMES, NAMES),
    st.builds(Host, NUMBERS, NAMES),
)
TASKS = st.builds(
    Task, NAMES, BODIES, NAMES, COUNTS, st.integers(-3, 3), st.tuples(operands()), st.tuples(operands()), st.just(()),
    st.lists(NAMES, max_size=2).map(tuple), st.sampled_from(PHASES), NAMES, COUNTS, COUNTS,
)  # fmt: skip
V = st.builds(
    Value,
    st.just("v"),
    st.just((4, 4, 4)),
    st.just((16, 4, 1)),
    st.just("float32"),
    NAMES,
    st.sampled_from(KINDS),
    st.just("s"),
    st.none() | operands(NAMES),
)
PLANS = st.builds(
    lambda strategy, segments, value, storage, gradient, options: Plan(
        strategy, segments, {"v": value}, {"s": storage}, ("v",), {"p": gradient}, options, options
    ),
    NAMES,
    st.lists(st.builds(Segment, st.lists(TASKS, max_size=3).map(tuple), st.none() | COUNTS), min_size=1, max_size=2).map(tuple),
    V,
    st.builds(Storage, st.just("s"), COUNTS, NAMES),
    operands(),
    st.dictionaries(NAMES, st.none() | st.booleans() | COUNTS | NUMBERS | NAMES | st.lists(NAMES, max_size=2), max_size=2),
)


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=300, deadline=None)
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
        (lambda d: d | {"schema": "stepcast.plan/2"}, "found 'stepcast.plan/2'"),
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
