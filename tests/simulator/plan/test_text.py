"""A plan as text: everything there is, lined up in columns, and the outline of its tasks."""

from dataclasses import replace

import pytest

from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Task, ViewStep
from simulator.plan.text import outline, render
from simulator.plan.text_lines import operand_text, word
from tests.support.refusals import refuses
from tests.support.small_plans import copied, forward_fused
from traces.errors import Code

TEXT = render(forward_fused())


def test_a_plan_is_a_line_for_every_storage_value_gradient_and_task():
    assert (
        TEXT
        == """\
schedcast.plan-text/1
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
    first = replace(forward_fused(), tasks=forward_fused().tasks[:2], iterations=3)
    plan = replace(forward_fused(), tasks=(updates,), earlier=(first,))
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


def test_options_that_json_would_change_are_refused():
    with refuses(Code.REQUEST):
        render(Plan("s", (), {}, {}, options={"config": (1, 2)}))


@pytest.mark.parametrize(
    "name", ["w", "0/mm#2", "w::exp_avg@cpu:1", "h'", "größe", "", "-", "#1", "a b", 'a"b', "a\nb", "a=b", "\ud800", "x,y"]
)
def test_names_are_quoted_if_they_are_unusual(name):
    text = word(name)
    assert "\n" not in text
    assert text.startswith('"') == (name in ("", "-", "#1", "a b", 'a"b', "a\nb", "a=b", "\ud800", "x,y"))


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
