"""The CSV of an order of tasks, out and in; files that do not fit the plan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.plan.editor import order_csv
from simulator.plan.editor.order import Entry, Order
from simulator.strategies import registry as strategies
from tests.support import tiny
from tests.support.any_plans import NAMES
from tests.support.refusals import refuses
from traces.errors import LONGEST, Code

PLAN, _ = tiny.build(tiny.task("a", reads="x", writes="p"), tiny.task("b", reads="p", writes="q"), tiny.task("c", reads="x", writes="r"))
TEXT = "task,device,stream,priority\na,d,0,0\nc,d,1,0\nb,d,0,0\n"
ENTRIES = st.builds(
    Entry, NAMES.filter(lambda name: name.isprintable() and name == name.strip()), st.just("cuda:0"), st.integers(0, 9), st.integers(-5, 0)
)


def test_a_file_gives_the_plan_its_order(tmp_path):
    path = tmp_path / "order.csv"
    path.write_text(TEXT)
    plan = order_csv.followed(PLAN, tiny.cpu(), order_csv.read(path), path)
    assert [(task.name, task.lane) for task in plan.tasks] == [("a", ("d", 0)), ("c", ("d", 1)), ("b", ("d", 0))]
    assert plan.options == {"schedule": str(path)}
    assert order_csv.write(Order.of(plan)) == TEXT


@pytest.mark.thorough
@given(entries=st.lists(ENTRIES, max_size=5))
def test_every_order_is_the_same_out_and_in(entries):
    order = Order(tuple(entries))
    assert order_csv.parse(order_csv.write(order)) == order


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TEXT.replace("b,d", "e,d"), "line 4: 'e' is not a task of tiny's plan"),
        (TEXT.replace("b,d", "a,d"), "line 4: 'a' is there twice; list each task once"),
        (TEXT.replace("b,d,0,0\n", ""), "2 tasks, but tiny's plan has 3: it lacks 'b'"),
        (TEXT.replace("a,d,0,0\n", "") + "a,d,0,0\n", "line 3: b must come after a: it reads the activation p, which a writes"),
        (TEXT.replace("c,d,1", "c,d,-1"), "line 3: the stream of 'c' is '-1'; expected a whole number such as 0 or 1"),
        (TEXT.replace("c,d,1,0", "c,d,1,high"), "line 3: the priority of 'c' is 'high'; expected a whole number such as 0 or -1"),
        (TEXT.replace("c,d,1,0", "c,d,1"), "line 3: 'c,d,1' has 3 cells; expected task,device,stream,priority"),
        (TEXT.replace("c,d", "c,cuda:9"), "line 3: c cannot run on cuda:9: it needs the input x, which is on d"),
        (TEXT.replace("c,d,1,0", "c,d,1,-1"), "task 'c' has priority -1"),
        ("0F0,0B0\n", "it begins with '0F0,0B0'; expected the line task,device,stream,priority"),
        ("", "it begins with ''"),
        (TEXT + '"', "cannot be read as CSV"),
        (TEXT.replace("b,d", "b" * 5000 + ",d"), "has 5000 characters; expected at most 500"),
        (TEXT.replace("b,d", "b," + "d" * 5000), "has 5000 characters; expected at most 500"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_its_line(tmp_path, text, expected):
    path = tmp_path / "order.csv"
    path.write_text(text)
    with refuses(Code.FILE) as refusal:
        order_csv.followed(PLAN, tiny.cpu(), order_csv.read(path), path)
    assert str(refusal.value).startswith(f"schedule {path}: ")
    assert expected in str(refusal.value)
    assert len(str(refusal.value)) <= LONGEST


def test_every_strategy_follows_a_file(tmp_path):
    """The option is not among a strategy's own, unless it is a pipeline, which also reads the order of its actions."""
    path = tmp_path / "order.csv"
    path.write_text(TEXT)
    for name in strategies.names():
        strategy, options = strategies.parse(f"{name}:schedule={path}")
        assert strategy.plan is not strategies.get(name).plan
        assert not getattr(options, "schedule", "")
    with refuses(Code.FILE):
        strategies.parse("baseline:schedule=missing.csv")
