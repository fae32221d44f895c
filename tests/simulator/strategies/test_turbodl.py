"""TurboDL: exact timelines of three layers under the paper's three methods, streams, priorities, and one of Graham's anomalies."""

from dataclasses import replace

import pytest

from simulator.engine.costs.cost import Cost
from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.model.layers import LayerGraph
from simulator.plan.dependencies import Dependencies
from simulator.plan.task import UPDATE
from simulator.strategies.turbodl import by_rank
from tests.support import models, tiny
from tests.support.jobs import job_of, planned
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.errors import Code

ONE_LEVEL, FOUR_LEVELS = (replace(tiny.gpu(), devices=(replace(tiny.gpu().devices[0], priority_levels=n),)) for n in (1, 4))


class FixedCosts:
    """Costs by role: a forward product takes a second, dX and dW as given, other ops no time. All tasks can run concurrently."""

    def __init__(self, dx_s: float, dw_s: float):
        self._seconds = {"mm.dX": dx_s, "mm.dW": dw_s, "mm": 1.0}

    def resolve(self, plan):
        return [self._cost(task.name.partition("/")[2].partition("#")[0]) for task in plan.tasks]

    def _cost(self, op: str) -> Cost:
        seconds = self._seconds.get(op, 0.0)
        return Cost(op, seconds, seconds)


def on_one_gpu(text: str, factory: str = "three_layers", machine=None, costs=None, **fields):
    machine = machine or tiny.gpu()
    return planned(text, Job(f"{models.__file__}:{factory}", 4, **fields), machine, costs or CostModel(machine))


def spans(text: str, dx_s: float, dw_s: float, machine=None) -> dict[str, tuple[float, float]]:
    """Start and end of every backward product of one iteration."""
    machine, costs = machine or tiny.gpu(), FixedCosts(dx_s, dw_s)
    plan = on_one_gpu(text, machine=machine, costs=costs)
    timeline = simulate(plan, machine, costs.resolve(plan), iterations=1)
    return {span.task.replace("/mm", ""): (span.start_s, span.end_s) for span in timeline.spans if "mm.d" in span.task}


def step_s(text: str, dx_s: float, dw_s: float) -> float:
    costs = FixedCosts(dx_s, dw_s)
    plan = on_one_gpu(text, costs=costs)
    return simulate(plan, tiny.gpu(), costs.resolve(plan)).step_s


def test_with_a_barrier_a_layer_starts_after_all_tasks_of_the_previous_one():
    assert spans("turbodl:async=off", 1.0, 3.0) == {
        "2.dX": (3.0, 4.0), "2.dW": (3.0, 6.0), "1.dX": (6.0, 7.0), "1.dW": (6.0, 9.0), "0.dW": (9.0, 12.0),
    }  # fmt: skip
    assert step_s("turbodl:async=off", 1.0, 3.0) == 12.0


def test_asynchronous_layers_wait_only_for_the_gradient():
    assert spans("turbodl", 1.0, 3.0) == {
        "2.dX": (3.0, 4.0), "2.dW": (3.0, 6.0), "1.dX": (4.0, 5.0), "1.dW": (6.0, 9.0), "0.dW": (5.0, 8.0),
    }  # fmt: skip
    # the next forward waits layer by layer: its first layer starts at 8, after that layer's update and during the second layer's dW
    assert step_s("turbodl", 1.0, 3.0) == 8.0


def test_a_barrier_costs_nothing_if_the_gradient_takes_longest():
    assert spans("turbodl:async=off", 3.0, 1.0) == spans("turbodl", 3.0, 1.0)
    assert step_s("turbodl:async=off", 3.0, 1.0) == step_s("turbodl", 3.0, 1.0) == 10.0


def test_on_one_stream_nothing_overlaps():
    assert step_s("turbodl:streams=off", 1.0, 3.0) == step_s("baseline", 1.0, 3.0) == 3.0 + 2 * 1.0 + 3 * 3.0


def test_priorities_let_the_critical_path_go_first():
    """On one SM the task that is ready first runs first, unless the gradient is more urgent."""
    plain, urgent = (spans(text, 1.0, 1.0, tiny.gpu(sms=1)) for text in ("turbodl:priorities=off", "turbodl"))
    assert plain["2.dW"][0] < plain["1.dX"][0]
    assert urgent["1.dX"][0] < urgent["0.dW"][0] < urgent["2.dW"][0] < urgent["1.dW"][0]


@pytest.mark.parametrize(("machine", "levels"), [(ONE_LEVEL, (0, 0)), (load_machine("p100"), (-1, 0)), (FOUR_LEVELS, (-1, 0))])
def test_priorities_of_a_chain(machine, levels):
    plan = on_one_gpu("turbodl", machine=machine)
    priorities = {task.name.partition(".")[2]: task.priority for task in plan.tasks if task.name in ("1/mm.dX", "1/mm.dW", "2/mm.dW")}
    assert (priorities["dX"], priorities["dW"]) == levels


@pytest.mark.parametrize(
    ("options", "levels", "expected"),
    [
        ("", 8, {"long1": (-5, -2, -2), "middle": (-4, -1, -1), "short": (-3, 0, 0)}),
        (":alpha=1,beta=2", 8, {"long1": (-4, -3, -2), "middle": (-3, -2, -1), "short": (-2, -1, 0)}),
        ("", 3, {"long1": (-2, 0, 0), "middle": (-1, 0, 0), "short": (-1, 0, 0)}),
        ("", 2, {"long1": (-1, 0, 0), "middle": (-1, 0, 0), "short": (-1, 0, 0)}),  # the paper's P100, first method
    ],
)
def test_priorities_of_paths_and_roles(options, levels, expected):
    machine = replace(tiny.gpu(), devices=(replace(tiny.gpu().devices[0], priority_levels=levels),))
    plan = on_one_gpu(f"turbodl{options}", "six", machine)
    of = {(task.layer, task.name[-2:]): task.priority for task in plan.tasks}
    assert {layer: tuple(of[layer, role] for role in ("dX", "dW", "dB")) for layer in expected} == expected


def test_the_papers_example_takes_nine_streams():
    plan = on_one_gpu("turbodl", "six")
    assert sorted({task.stream for task in plan.tasks}) == list(range(9))
    streams = {(task.layer, task.name[-2:]): task.stream for task in plan.tasks}
    assert {layer: streams[layer, "dX"] for layer in ("fork", "long1", "long2", "merge") if layer != "fork"} == dict.fromkeys(
        ("long1", "long2", "merge"), 0
    )
    assert {streams["middle", "dX"], streams["short", "dX"]} == {3, 6}
    assert streams["fork", "dW"] == streams["fork", "dB"] == streams["fork", "te"] == 0  # the next iteration waits for these first
    assert streams["long1", "dW"] == 1
    assert streams["long1", "dB"] == 2
    assert {task.stream for task in on_one_gpu("turbodl:async=off", "six").tasks} == {0, 1, 2}


def test_a_chain_takes_three_streams():
    machine = load_machine("p100")
    plan = planned("turbodl", Job("vgg16", 2, 32), machine, CostModel(machine))
    assert {task.stream for task in plan.tasks} == {0, 1, 2}


def test_the_dependency_distance_of_a_chain():
    graph = Job(f"{models.__file__}:three_layers", 4).graph()
    layers = LayerGraph(graph, [1.0] * len(graph.ops))
    distances = {op.name: layers.layer_of(index).distance(op.gradient) for index, op in enumerate(graph.ops) if op.gradient}
    assert {name: distances[name] for name in ("2/mm.dX", "1/mm.dX")} == {"2/mm.dX": 1, "1/mm.dX": 1}
    assert [distances[f"{i - 1}/mm.dW"] for i in (1, 2, 3)] == [2 * (i - 1) + 1 for i in (1, 2, 3)]


def test_a_less_urgent_path_waits_for_the_urgent_one_if_there_are_too_few_levels():
    after = {task.name: task.after for task in on_one_gpu("turbodl:fallback=sync", "six", load_machine("p100")).tasks if task.after}
    assert set(after) == {"middle/mm.dX", "short/mm.dX"}
    assert "long2/mm.dX" in {name for names in after.values() for name in names}
    assert not [task for task in on_one_gpu("turbodl:fallback=sync", "six", FOUR_LEVELS).tasks if task.after]
    assert not [task for task in on_one_gpu("turbodl:fallback=order", "six", load_machine("p100")).tasks if task.after]


def test_updates():
    names = [task.name for task in on_one_gpu("turbodl").tasks if task.phase == UPDATE]
    assert names == ["0/update", "1/update", "2/update"]  # in the order in which the next forward needs them
    assert [task.name for task in on_one_gpu("turbodl:fuse=backward").tasks if task.phase == UPDATE] == ["2/update", "1/update", "0/update"]
    assert [task.name for task in on_one_gpu("turbodl:async=off").tasks if task.phase == UPDATE] == ["update"]
    called = [task for task in on_one_gpu("turbodl:update=callback").tasks if task.phase == UPDATE]
    assert [task.name for task in called] == [f"{i}/{what}" for i in range(3) for what in ("callback", "update")]
    assert all(a.stream == b.stream for a, b in zip(called[::2], called[1::2], strict=True))


def test_clipping_needs_all_gradients():
    assert on_one_gpu("turbodl", clip_norm=1.0)
    with refuses(Code.MODEL):
        on_one_gpu("turbodl:fuse=backward", clip_norm=1.0)


def test_gradients_of_microbatches_are_added_on_the_stream_of_the_gradient():
    plan = on_one_gpu("turbodl", "six", accumulate=2)
    added = {task.name: task.stream for task in plan.tasks if "accumulate" in task.name}
    assert added["long1.weight/accumulate@1"] == 1
    assert added["long1.bias/accumulate@1"] == 2
    assert added["fork.weight/accumulate@1"] == 0


@pytest.mark.parametrize(("shorter_by_s", "expected_s"), [(0.0, 12.0), (1.0, 13.0)])
def test_one_of_grahams_anomalies_appears(shorter_by_s, expected_s):
    """With every task a second shorter, the whole takes a second longer (Graham 1969, Bounds on multiprocessing timing anomalies)."""
    seconds = [s - shorter_by_s for s in (3.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0, 9.0)]
    needs = {5: "v4", 6: "v4", 7: "v4", 8: "v4", 9: "v1"}
    tasks = [tiny.task(f"t{i}", s, reads=needs.get(i, "x"), writes=f"v{i}", stream=i) for i, s in enumerate(seconds, start=1)]
    plan, costs = tiny.build(*tasks)
    assert simulate(plan, tiny.cpu(cores=3), costs, iterations=1).step_s == expected_s


CAFFE = "turbodl:async=off,layers=caffe"


def test_caffe_creates_streams_for_every_convolution():
    """VGG-16 has 38 (section 4.3): three for each of 13 convolutions but the first, which has no dX. The others are on the default one."""
    plan = planned(CAFFE, Job("vgg16", 2, 32), load_machine("p100"))
    assert {task.stream for task in plan.tasks if "convolution" not in task.name} == {0}
    assert len({task.stream for task in plan.tasks if "convolution" in task.name}) == 3 * 13 - 1
    grouped = {task.name: task.stream for task in on_one_gpu(CAFFE, "grouped").tasks}
    of_groups = [name for name, stream in grouped.items() if name.startswith("2/convolution") and stream]
    assert len(of_groups) == len({grouped[name] for name in of_groups}) == 6, "forward, dW and dX of two groups; there is no bias"


def test_caffe_has_a_barrier_around_every_convolution_in_both_phases():
    plan = on_one_gpu(CAFFE, "grouped")
    edges = Dependencies(plan).edges(0)
    waits = {
        task.name: {plan.tasks[edge.index].name for edge in own} | set(task.after) for task, own in zip(plan.tasks, edges, strict=True)
    }
    previous = {f"1/convolution_backward.{role}" for role in ("dX", "dW")}
    first = next(task.name for task in plan.tasks if task.phase == "backward" and task.layer == "0")
    assert previous <= waits[first]
    after_groups = next(task for task in plan.tasks if task.layer == "2" and task.name == "2/convolution/join")
    assert {"2/convolution/group0", "2/convolution/group1"} <= waits[after_groups.name]


def test_caffe_reads_the_loss_before_backward_and_updates_at_the_end():
    tasks = on_one_gpu(CAFFE, "grouped", accumulate=2).tasks
    phases = [(task.phase, task.microbatch) for task in tasks if task.phase != UPDATE]
    held = [position for position, task in enumerate(tasks) if task.body.blocks_host]
    assert [(phases[at], phases[at + 1]) for at in held] == [(("forward", m), ("backward", m)) for m in (0, 1)]
    assert [task.phase for task in tasks][-1] == UPDATE
    with refuses(Code.REQUEST, "layers=caffe goes with async=off, and async is on: it is streams with a barrier after each layer"):
        on_one_gpu("turbodl:layers=caffe")


def test_groups_of_a_convolution_have_separate_streams():
    plan = on_one_gpu("turbodl", "grouped")
    of = {task.name: task for task in plan.tasks}
    assert [of[f"2/convolution_backward.dX/group{g}"].stream for g in (0, 1)] == [0, 3]
    assert [of[f"2/convolution_backward.dW/group{g}"].stream for g in (0, 1)] == [1, 4]
    assert [of[f"0/convolution_backward.dW/group{g}"].stream for g in (0, 1)] == [0, 3]  # the first layer's are critical
    assert of["2/convolution/join"].reads[1].shape == (4, 4, 6, 6)
    assert not [name for name in of if "group" in name and name.startswith("1/")]  # depthwise: not split
    whole = {task.name for task in on_one_gpu("turbodl:groups=off", "grouped").tasks}
    assert not [name for name in whole if "group" in name]
    flops = [sum(task.body.flops for task in on_one_gpu(text, "grouped").tasks if "conv" in task.name) for text in ("baseline", "turbodl")]
    assert flops[0] == flops[1]


@pytest.mark.parametrize("text", ["turbodl", "turbodl:async=off", CAFFE, "turbodl:fuse=backward,fallback=sync"])
def test_groups_and_barriers_change_no_number(text, two_cores, backend):
    job = job_of("grouped")
    plan = on_one_gpu(text, "grouped", two_cores, precision="fp64")
    assert largest_error(job, plan, backend) <= 1e-12


# Reordering by rank: the lowest rank first, and no task before its dependencies.


RANKS = {"a": 2, "b": 1, "c": 0, "d": 0, "e": 1}


def test_by_rank():
    plan, _ = tiny.build(
        tiny.task("a", reads="x", writes="u"),
        tiny.task("b", reads="x", writes="v"),
        tiny.task("c", reads="u", writes="z"),
        tiny.task("d", reads="x", writes="q"),
        tiny.task("e", mutates="q", after="b"),
    )
    assert [task.name for task in by_rank(plan.tasks, Dependencies(plan), lambda task: RANKS[task.name])] == ["d", "b", "e", "a", "c"]


def test_equal_ranks_keep_their_order():
    plan, _ = tiny.build(*(tiny.task(name, reads="x", writes=f"v{name}") for name in "abc"))
    assert by_rank(plan.tasks, Dependencies(plan), lambda task: 0) == list(plan.tasks)
