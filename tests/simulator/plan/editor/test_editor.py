"""Moves of tasks, and what is said of an order that computes other numbers."""

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from executors.run import execute
from executors.tensors import job_tensors
from simulator.engine.costs.model import CostModel
from simulator.model.job import Job
from simulator.plan.editor.editor import Move, ScheduleEditor
from simulator.plan.editor.order import Entry, Order, OrderError
from simulator.plan.plan import Plan, program
from simulator.plan.task import UPDATE
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from tests.support import mlp, tiny
from tests.support.jobs import planned
from tests.support.random_plans import plans

#: Forward, backward and update of two layers. The update of the second layer may run before the first layer's backward.
TRAINING = (
    tiny.task("f1", reads="x w1", writes="h"), tiny.task("f2", reads="h w2", writes="y"),
    tiny.task("b2", reads="y h", writes="g2"), tiny.task("b1", reads="y w2", writes="g1"),
    tiny.task("u1", reads="g1", mutates="w1"), tiny.task("u2", reads="g2", mutates="w2"),
)  # fmt: skip


@pytest.fixture
def editor():
    return ScheduleEditor(tiny.build(*TRAINING)[0], tiny.cpu(cores=2))


def names(order: Order) -> str:
    return " ".join(entry.task for entry in order.entries)


def words(editor: ScheduleEditor, order: Order) -> list[str]:
    return [fault.words for fault in editor.faults(order)]


def test_a_move_within_the_lane(editor):
    moved = editor.moved(editor.own, Move("u2", "d", 0, before="u1"))
    assert names(moved) == "f1 f2 b2 b1 u2 u1"
    assert words(editor, moved) == []


def test_a_move_that_overwrites_what_is_still_read(editor):
    moved = editor.moved(editor.own, Move("u2", "d", 0, before="b1"))
    assert names(moved) == "f1 f2 b2 u2 b1 u1"
    assert words(editor, moved) == ["u2 must come after b1: it changes the parameter w2, which b1 reads"]


def test_every_broken_hazard_is_named(editor):
    moved = editor.moved(editor.own, Move("b2", "d", 0, before="f1"))
    assert words(editor, moved) == [
        "b2 must come after f1: it reads the activation h, which f1 writes",
        "b2 must come after f2: it reads the activation y, which f2 writes",
    ]
    moved = editor.moved(editor.own, Move("u2", "d", 0, before="b2"))
    assert "u2 must come after b2: it reads the activation g2, which b2 writes" in words(editor, moved)


def test_a_value_with_the_name_of_its_task_is_not_named_twice():
    plan, _ = tiny.build(tiny.task("relu.dX", reads="x", writes="relu"), tiny.task("conv.dW", reads="relu", writes="g"))
    editor = ScheduleEditor(plan, tiny.cpu())
    moved = editor.moved(editor.own, Move("conv.dW", "d", 0, before="relu.dX"))
    assert words(editor, moved) == ["conv.dW must come after relu.dX: it reads the activation that relu.dX writes"]


def test_a_task_that_two_tasks_change_keeps_its_order():
    plan, _ = tiny.build(tiny.task("a", mutates="w"), tiny.task("b", mutates="w"), tiny.task("c", after="a"))
    editor = ScheduleEditor(plan, tiny.cpu())
    assert words(editor, editor.moved(editor.own, Move("b", "d", 0, before="a"))) == [
        "b must come after a: it changes the parameter w, which a changes"
    ]
    assert words(editor, editor.moved(editor.own, Move("c", "d", 0, before="a"))) == ["c must come after a: the strategy orders them so"]


def test_a_move_to_a_new_stream_keeps_the_place_in_the_order(editor):
    moved = editor.moved(editor.own, Move("b2", "d", 1))
    assert names(moved) == names(editor.own)
    assert [entry.stream for entry in moved.entries] == [0, 0, 1, 0, 0, 0]


def test_in_another_lane_a_task_stays_as_near_as_hazards_allow(editor):
    """Dropped before u1 on its new lane, u2 stands after b1, which still reads what it changes, although b1 is on another lane."""
    order = editor.moved(editor.own, Move("u1", "d", 1))
    moved = editor.moved(order, Move("u2", "d", 1, before="u1"))
    assert names(moved) == "f1 f2 b2 b1 u2 u1"
    assert words(editor, moved) == []


def test_a_task_takes_the_priority_of_its_lane():
    plan, _ = tiny.build(
        tiny.task("a", writes="p"), tiny.task("b", writes="q", stream=1, priority=-1), tiny.task("c", reads="p", writes="r")
    )
    editor = ScheduleEditor(plan, tiny.gpu())
    assert editor.moved(editor.own, Move("c", "d", 1)).entries[2] == Entry("c", "d", 1, -1)
    mixed = editor.moved(editor.own, Move("c", "d", 1, priority=-2))
    assert mixed.entries[2] == Entry("c", "d", 1, -2)
    assert words(editor, mixed) == [
        "c has priority -2 on stream 1 of d, where b has -1; a stream of a GPU has one priority: use another stream"
    ]
    assert editor.moved(editor.own, Move("c", "d", 2)).entries[2] == Entry("c", "d", 2, 0)


def test_a_task_needs_its_values_on_its_device():
    plan, _ = tiny.build(tiny.task("a", reads="x", writes="p", on="c"), tiny.task("b", writes="q", on="d"))
    editor = ScheduleEditor(plan, tiny.cpu("c", "d"))
    (line,) = words(editor, editor.moved(editor.own, Move("a", "d", 0)))
    assert line.startswith("a cannot run on d: it needs the input x, which is on c; move it to another stream of c")


def test_what_the_machine_lacks_is_said(editor):
    moved = editor.moved(editor.own, Move("u2", "d", 0, priority=-1))
    (line,) = words(editor, moved)
    assert "task 'u2' has priority -1" in line


def test_orders_of_other_tasks(editor):
    entries = editor.own.entries
    for given_entries, expected in {
        entries[:-1]: "5 tasks, but tiny's plan has 6: it lacks 'u2'; list each task of the plan once",
        (*entries, Entry("u3", "d", 0, 0)): "'u3' should not be there",
        (*entries[:-1], Entry("U2", "d", 0, 0)): "'U2' is not a task of tiny's plan (did you mean 'u2'?)",
        (*entries[:-1], entries[0]): "'f1' is there twice",
    }.items():
        with pytest.raises(OrderError) as refusal:
            editor.faults(Order(given_entries))
        assert expected in str(refusal.value)
    with pytest.raises(OrderError, match="'u3' is not a task of the run's last plan"):
        editor.moved(editor.own, Move("u3", "d", 0))
    with pytest.raises(OrderError, match="'f1' is not on stream 1 of d"):
        editor.moved(editor.own, Move("u2", "d", 1, before="f1"))


def computed(plan: Plan, iterations: int) -> dict[tuple[str, int], int]:
    """What a plan computes, as symbols: by task and iteration, a number that stands for all that the execution read.

    The plan has no views: a storage is read and written as a whole.
    """
    contents: dict[tuple[str, int], int] = defaultdict(int)  # of each instance of a storage
    read: dict[tuple[str, int], int] = {}
    for period, _, task in program(plan.tasks, iterations):
        iteration = period - task.lag

        def instance(operand, iteration=iteration):
            storage = plan.storage_of(operand)
            return storage, -1 if storage in plan.carried else iteration

        inputs = tuple(contents[instance(operand)] for operand in task.inputs)
        read[task.name, iteration] = hash(inputs)
        for operand in (*task.mutates, *task.writes):
            contents[instance(operand)] = hash((task.name, iteration, inputs))
    return read


@pytest.mark.thorough
@settings(max_examples=100)
@given(plan=plans(shared=True), rng=st.randoms(use_true_random=False))
def test_an_order_is_refused_exactly_if_it_computes_something_else(plan, rng):
    """The oracle runs both programs with symbols in the place of numbers."""
    plan, _ = plan
    cores = tiny.cpu(cores=4)
    editor = ScheduleEditor(plan, replace(cores, devices=(replace(cores.devices[0], priority_levels=3),)))
    assume(not editor.faults(editor.own))
    entries = list(editor.own.entries)
    for _ in range(rng.randint(1, 3)):
        entries.insert(rng.randrange(len(entries)), entries.pop(rng.randrange(len(entries))))
    order = Order(tuple(entries))
    same = computed(order.applied(plan), 4) == computed(plan, 4)
    assert same == (not editor.faults(order))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("strategy", ["baseline", "forward-fusion", "turbodl"])
def test_orders_that_are_accepted_train_exactly_as_the_strategys_own(strategy, two_cores, backend):
    """Many random moves, of which those that break a hazard are taken back."""
    job = Job(f"{mlp.__file__}:normalised", 4, optimizer="momentum", form="for", precision="fp64")
    editor = ScheduleEditor(planned(strategy, job, two_cores), two_cores)
    rng, refused, order = random.Random(strategy), 0, editor.own
    for _ in range(60):
        task, before = rng.sample([entry.task for entry in order.entries], 2)
        stream = rng.randrange(3)
        moved = editor.moved(editor.moved(order, Move(before, "cpu:0", stream)), Move(task, "cpu:0", stream, before))
        accepted = not editor.faults(moved)
        refused += not accepted
        order = moved if accepted else order
    assert refused
    assert [entry.task for entry in order.entries] != [entry.task for entry in editor.own.entries]
    tensors = job_tensors(job, job.build(), job.graph())
    own, edited = (execute(plan, tensors, backend, 3).tensors for plan in (editor.plan, order.applied(editor.plan)))
    assert own.keys() == edited.keys()
    assert all(own[name].equal(edited[name]) for name in own)


def test_moves_turn_the_baseline_into_backward_fusion(two_cores):
    """Where each layer has one parameter, both have the same tasks: after the moves also the same order, and the same time to the bit."""
    job = Job(f"{mlp.__file__}:unbiased", 4, optimizer="momentum", form="for")
    chosen = (strategies.parse(name) for name in ("baseline", "backward-fusion"))
    baseline, fusion = (strategy.plan(job, two_cores, None, options) for strategy, options in chosen)
    editor = ScheduleEditor(baseline, two_cores)
    order = editor.own
    for place, task in enumerate(fusion.tasks):
        if task.phase == UPDATE:
            later = (other.name for other in fusion.tasks[place:] if other.phase != UPDATE)
            order = editor.moved(order, Move(f"{task.body.parameters[0]}/update", "cpu:0", 0, next(later, None)))
    assert editor.faults(order) == ()
    moved = order.applied(baseline)
    assert [task.body for task in moved.tasks] == [task.body for task in fusion.tasks] != [task.body for task in baseline.tasks]
    model = CostModel(two_cores, None)
    assert forecast(moved, Target(two_cores, model)).timeline.step_s == forecast(fusion, Target(two_cores, model)).timeline.step_s
