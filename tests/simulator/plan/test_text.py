"""A plan goes to text and back without loss, the text lines up in columns, and no text can make reading crash."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.bodies.opcall import OpCall
from simulator.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Segment, Task, ViewStep
from simulator.plan.text import outline, parse, render
from simulator.plan.text_lines import operand_text, word
from tests.support import layered, mlp, random_plans, sequence_models
from tests.support.any_plans import PLANS
from tests.support.applicable import default_plans
from tests.support.small_plans import copied, forward_fused
from tests.support.tiny import cpu
from traces.errors import StepcastError, UnusableFileError

TEXT = render(forward_fused())


def test_a_plan_is_a_line_for_every_storage_value_gradient_and_task():
    assert (
        TEXT
        == """\
stepcast.plan-text/1
strategy   forward-fusion
options    {"form":"fused","degrees":[1,2]}
semantics  {"staleness":{"0":0}}
losses     y

storages
  # storage  bytes  device
  x          8192   cuda:0
  w1         32768  cuda:0
  w2         5120   cuda:0
  h          16384  cuda:0
  y          1280   cuda:0
  g1         32768  cuda:0
  g2         5120   cuda:0

values
  # value  kind        device  geometry
  x        input       cuda:0  float32[32,64]
  w1       parameter   cuda:0  float32[64,128]
  w2       parameter   cuda:0  float32[128,10]
  h        activation  cuda:0  float32[32,128]
  y        activation  cuda:0  float32[32,10]
  g1       gradient    cuda:0  float32[64,128]
  g2       gradient    cuda:0  float32[128,10]

gradients
  # parameter  operand
  w1           g1
  w2           g2

segment
  # task      lane      phase     layer  settings  body                                      operands
  update.1    cuda:0/0  update    1      lag=1     update optimizer=sgd form=fused parameters=["w1"] hyper=[["lr",0.1]]  \
reads g1  mutates w1
  forward.1   cuda:0/0  forward   1                op target=aten.mm.default args=`[$0,$1]` flops=524288.0  reads x, w1  writes h
  update.2    cuda:0/0  update    2      lag=1     update optimizer=sgd form=fused parameters=["w2"] hyper=[["lr",0.1]]  \
reads g2  mutates w2
  forward.2   cuda:0/0  forward   2                op target=aten.mm.default args=`[$0,$1]` flops=81920.0  reads h, w2  writes y
  backward.2  cuda:0/0  backward  2                op target=aten.mm.default flops=80000.0   reads h as float32[128,32](1,128), y  writes g2
  backward.1  cuda:0/0  backward  1                op target=aten.mm.default flops=500000.0  reads x, y  writes g1
"""
    )


def test_the_outline_shows_tasks_alone():
    updates = Task(
        "update", forward_fused().tasks[0].body, "cuda:0", reads=tuple(Operand(f"g{i}", (1,), (1,), "float32") for i in range(9))
    )
    plan = replace(forward_fused(), segments=(Segment(forward_fused().tasks[:2], 3), Segment((updates,))))
    assert (
        outline(plan)
        == """\
plan forward-fusion
  options    form=fused, degrees=[1, 2]
  semantics  staleness={'0': 0}

2 tasks a period, 3 periods
  # task     lane      phase    layer  settings  body                               operands
  update.1   cuda:0/0  update   1      lag=1     update sgd form=fused              reads g1  mutates w1
  forward.1  cuda:0/0  forward  1                op aten.mm.default flops=524288.0  reads x, w1  writes h

1 tasks a period
  # task  lane      phase    layer  body                   operands
  update  cuda:0/0  forward  -      update sgd form=fused  reads g0, g1, g2, g3, ... (5 more)
"""
    )


def test_a_plan_comes_back_as_it_was():
    for plan in (forward_fused(), copied()):
        back = parse(render(plan))
        assert back == plan
        assert list(back.values) == list(plan.values)
        assert list(back.storages) == list(plan.storages)


@pytest.mark.parametrize(
    ("module", "factory"), [(mlp, "make"), (mlp, "shared"), (layered, "six"), (sequence_models, "rnn_with_initial_state")]
)
def test_the_plan_of_every_strategy_comes_back_as_it_was(module, factory):
    plans = default_plans(Job(f"{module.__file__}:{factory}", 4), cpu("cpu:0", "cpu:1", cores=2))
    assert len(plans) >= 4
    for name, plan in plans.items():
        assert parse(render(plan)) == plan, name
        assert len(outline(plan).splitlines()) > len(plan.tasks)


@settings(max_examples=150)
@given(PLANS)
def test_any_plan_comes_back_as_it_was(plan):
    assert parse(render(plan)) == plan


@settings(max_examples=50)
@given(random_plans.plans(shared=False))
def test_random_schedules_come_back_as_they_were(planned):
    plan, _ = planned
    assert parse(render(plan)) == plan


def test_options_that_json_would_change_are_refused():
    with pytest.raises(StepcastError, match="options are not JSON data"):
        render(Plan("s", (Segment(()),), {}, {}, options={"config": (1, 2)}))


@pytest.mark.parametrize(
    "name", ["w", "0/mm#2", "w::exp_avg@cpu:1", "h'", "größe", "", "-", "#1", "a b", 'a"b', "a\nb", "a=b", "\ud800", "x,y"]
)
def test_names_are_quoted_if_they_are_unusual(name):
    text = word(name)
    assert "\n" not in text
    assert text.startswith('"') == (name in ("", "-", "#1", "a b", 'a"b', "a\nb", "a=b", "\ud800", "x,y"))
    plan = copied()
    tasks = (replace(plan.tasks[0], name=name or "z", layer=name, after=(name,)), *plan.tasks[1:])
    plan = replace(plan, strategy=name, segments=(Segment(tasks),), losses=("h",))
    assert parse(render(plan)) == plan


@pytest.mark.parametrize(
    ("views", "text"),
    [
        ((ViewStep("aten.slice.Tensor", "[0, 0, 8]"),), "w.x[0:8]"),
        ((ViewStep("aten.slice.Tensor", "[0,0,8]"),), "w.x.slice(0,0,8)"),
        ((ViewStep("aten.slice.Tensor", "[2, 1, -1]"),), "w.x[:,:,1:-1]"),
        ((ViewStep("aten.slice.Tensor", "[0, null, 8]"),), "w.x.slice(0, null, 8)"),
        ((ViewStep("aten.select.int", "[1, -1]"),), "w.x[:,-1]"),
        ((ViewStep("aten.select.int", "[0,3]"),), "w.x.select(0,3)"),
        ((ViewStep("aten.t.default"),), "w.x.t()"),
        ((ViewStep("aten.t.default", "[ ]"),), "w.x.t( )"),
        ((ViewStep("aten.view.default", "[[2, 3]]"), ViewStep("aten.transpose.int", "[0,1]")), "w.x.view([2, 3]).transpose(0,1)"),
        ((ViewStep("aten.split.Tensor", "[2]", 1), ViewStep("aten.t.default", "[]")), "w.x|aten.split.Tensor[2]->1.t()"),
        ((ViewStep("aten.flip.default", "[[0], 1]"), ViewStep("aten.select.int", "[0, 3]")), "w.x|aten.flip.default[[0], 1][3]"),
        ((ViewStep("aten.split.Tensor", "no list", 0),), 'w.x|aten.split.Tensor"no list"->0'),
    ],
)
def test_view_steps(views, text):
    operand = Operand("w.x", (2,), (1,), "float32", views)
    assert operand_text(operand) == text
    plan = copied()
    value = replace(plan.values["x"], source=operand)
    plan = replace(plan, values=plan.values | {"x": value})
    assert f"from {text} as float32[2]\n" in render(plan)
    assert parse(render(plan)) == plan


@pytest.mark.parametrize(
    "args", ['[{"$":0},{"$":1}]', '[{"$": 0}]', "[$0]", "`", '["`"]', '["$1",{"$":1}]', "[\n]", "", "1", "true", "plain"]
)
def test_arguments_of_ops_keep_their_spelling(args):
    plan = copied()
    tasks = (replace(plan.tasks[0], body=OpCall("aten.mm.default", args)), *plan.tasks[1:])
    assert parse(render(replace(plan, segments=(Segment(tasks),)))).tasks == tasks


def test_comments_blank_lines_and_line_ends_do_not_matter():
    assert parse(TEXT.replace("\n", "\r\n\r\n  # note\r\n")) == forward_fused()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("stepcast.plan-text/1", "hello", "line 1, column 1: expected stepcast.plan-text/1 at the start of a plan's text, got 'hello'"),
        ("storages", "storage", "line 7, column 1: expected one of strategy, options ... got 'storage'"),
        ("storages", "losses x", "line 7, column 1: expected one of ... , each once but for segment, got 'losses x'"),
        ('{"staleness":{"0":0}}', "[1]", "line 4, column 12: expected a JSON object, got '[1]'"),
        ('{"staleness":{"0":0}}', "{", "line 4, column 12: expected a JSON object, got '{'"),
        ("8192 ", "much ", "line 9, column 14: expected its bytes, got 'much   cuda:0'"),
        ("float32[32,64]", "float32[32;64]", "line 19, column 42: expected a comma or ], got ';64]'"),
        ("float32[32,64]", "float32[32,64](1)", "line 19, column 32: expected 2 strides, one for each dimension"),
        ("float32[32,64]", f"float32[{'9' * 50}]", "line 19, column 40: expected a whole number of at most 20 digits"),
        ("float32[32,64]", "float3[32,64]", "line 19: the plan is damaged: value x has an unknown dtype 'float3'"),
        (
            "  w1           g1",
            "  w1           nobody",
            "line 29, column 16: expected one of the plan's values, or an operand with its geometry, got",
        ),
        ("  w2           g2", "  w1           g2", "line 30, column 1: expected a parameter that has no gradient yet"),
        ("losses     y", "losses     x, nobody", "line 5: the plan is damaged: the loss 'nobody' is not among its values"),
        ("cuda:0/0  update    1", "cuda:0    update    1", "line 34, column 15: expected a lane, such as cuda:0/1, got 'cuda:0"),
        ("update    1 ", "updating  1 ", "line 34: the plan is damaged: task update.1 has phase 'updating'"),
        (
            "lag=1     update optimizer=sgd",
            "lag=1 hue=2 update optimizer=sgd",
            "line 34, column ... : expected settings among priority, lag",
        ),
        ("lag=1 ", "lag=x ", "line 34: the plan's segments are damaged at 0 > tasks > 0 > lag"),
        ("form=fused", "form=fused form=for", "line 34, column ... : expected form only once, got 'form=for"),
        (
            "update optimizer=sgd",
            "exec optimizer=sgd",
            "line 34: the plan's segments are damaged at 0 > tasks > 0 > body: Input tag 'exec'",
        ),
        ("`[$0,$1]` flops=524288.0", "`[$0,$1] flops=524288.0", "line 35, column ... : expected a second back quote"),
        ("reads x, w1  writes h", "reads x, w1  writes h, h[0;8]", "line 35, column ... : expected a slice such as [0:8] or an index"),
        ("reads x, w1  writes h", "reads x, w1.u()  writes h", "line 35, column ... : expected a view, one of expand, permute"),
        ("reads x, w1  writes h", "reads x, w1  writes h again", "line 35, column ... : expected the end of the line, got 'again'"),
        ("segment\n", "segment repeat=some\n", "line 32, column 16: expected the number of periods, got 'some'"),
        ("segment\n", "storage\n", "line 32, column 1: expected one of strategy"),
    ],
)
def test_the_message_names_the_line_and_what_was_expected(old, new, expected):
    assert old in TEXT
    with pytest.raises(UnusableFileError) as caught:
        parse(TEXT.replace(old, new, 1), "plan.txt")
    message = str(caught.value)
    assert message.startswith("plan.txt, line ")
    assert [part for part in expected.split(" ... ") if part not in message] == [], message
    assert "\n" not in message


def test_a_text_without_a_segment_is_refused_at_its_end():
    with pytest.raises(UnusableFileError, match="line 32, column 1: expected a segment of tasks, got the end of the line"):
        parse(TEXT[: TEXT.index("segment")])


def test_an_error_of_the_whole_plan_names_its_first_line():
    two = TEXT.replace("activation", "thing").replace("lag=1", "lag=-1")
    with pytest.raises(UnusableFileError, match="line 22: the plan is damaged: value h has kind 'thing'"):
        parse(two)


DEEP = "[" * 100_000
JUNK = st.sampled_from(
    ["", " ", "\n", "\n  ", "  x", "\x00", "\ud800", '"', "`", "[", "]", "(", "|", ".", ",", "=", "-", "9" * 5000, DEEP, "as", "é", "\\"]
)


@settings(max_examples=300)
@given(at=st.integers(0, len(TEXT)), cut=st.integers(0, 12), junk=JUNK)
def test_a_damaged_text_is_read_or_refused_in_one_line(at, cut, junk):
    message = ""
    try:
        parse(TEXT[:at] + junk + TEXT[at + cut :])
    except UnusableFileError as error:
        message = str(error)
    assert "\n" not in message
    assert not message or " line " in message
    assert len(message) < 2000
