"""Operators of a trace, with their shapes and launches, and iterations whose annotated steps hold no device work."""

from tests.support.kineto_traces import Trace
from traces.formats.iterations import Iterations, find
from traces.formats.kineto import load_trace


def iterations(tmp_path, *annotations: tuple[str, float]) -> Iterations:
    """Those of a recording of two kernels, launched at 1000 and 1040."""
    trace = Trace()
    trace.kernel("first", 1000, 1010, 20)
    trace.kernel("second", 1040, 1050, 30)
    for name, start in annotations:
        trace.annotate(name, start, 50)
    return find(load_trace(trace.save(tmp_path / "trace.json")))


def test_annotated_steps_without_work_fall_back_to_the_whole(tmp_path):
    empty = iterations(tmp_path, ("ProfilerStep#7", 2000))
    assert (empty.names, empty.of_work) == (("recording",), (0, 0))
    assert empty.source == "the whole recording: nothing in it repeats (no device work was launched in the profiler steps)"
    assert iterations(tmp_path, ("ProfilerStep#7", 0), ("ProfilerStep#8", 2000)).names == ("ProfilerStep#7", "ProfilerStep#8")


def test_optimizer_steps_count_where_profiler_steps_are_empty(tmp_path):
    both = iterations(tmp_path, ("ProfilerStep#7", 5000), ("Optimizer.step#SGD.step", 1100))
    assert both.names == ("optimizer step 1",)
    assert both.source == "optimizer steps (no device work was launched in the profiler steps)"


def recorded(trace, tmp_path):
    return load_trace(trace.save(tmp_path / "trace.json"))


def test_operators_nest_by_thread_and_own_the_launches_inside_them(tmp_path):
    trace = Trace()
    trace.op("aten::conv2d", 0, 100, [[2, 3, 8, 8], [4, 3, 3, 3], []])
    trace.op("aten::cudnn_convolution", 10, 50)
    trace.op("aten::add_", 60, 30, [[2, 4, 6, 6]])
    trace.op("aten::mm", 20, 50, thread=2)
    for at, thread in ((15, 1), (60, 1), (30, 2), (95, 1)):
        trace.kernel(f"kernel at {at}", at, 200 + at, 5, call=2, thread=thread)
    recording = recorded(trace, tmp_path)
    operators = recording.operators
    assert [(o.name, o.parent, o.shapes) for o in operators.all] == [
        ("aten::conv2d", -1, ((2, 3, 8, 8), (4, 3, 3, 3), ())),
        ("aten::cudnn_convolution", 0, None),
        ("aten::mm", -1, None),
        ("aten::add_", 0, ((2, 4, 6, 6),)),
    ]
    owners = {work.name: operators.all[operators.of_call[work.call]].name for work in recording.works}
    assert owners == {
        "kernel at 15": "aten::cudnn_convolution", "kernel at 60": "aten::add_", "kernel at 30": "aten::mm", "kernel at 95": "aten::conv2d",
    }  # fmt: skip


def test_a_launch_outside_of_all_operators_belongs_to_the_one_that_it_names(tmp_path):
    trace = Trace()
    trace.op("aten::mm", 0, 10, thread=1, **{"External id": 77})
    trace.kernel("gemm", 5, 20, 5, thread=4711)
    trace.events[-2]["args"]["External id"] = 77
    recording = recorded(trace, tmp_path)
    assert recording.operators.of_call == {0: 0}


def test_shapes_of_any_kind_do_not_stop_the_reader(tmp_path):
    trace = Trace()
    for shapes in ([[-1, 2]], [["x"]], [[[3, 3], [4]], [2]], "text", [None, 7]):
        trace.op("aten::odd", 0, 10, shapes)
    trace.kernel("kernel", 5, 20, 5)
    assert [operator.shapes for operator in recorded(trace, tmp_path).operators.all] == [((),), ((),), ((), (2,)), None, ((), ())]


def test_time_is_covered_by_the_innermost_operator_that_lasts_for_half_of_it(tmp_path):
    trace = Trace()
    trace.annotate("ProfilerStep#1", 0, 1000)
    trace.op("loader", 100, 200)
    trace.op("aten::stack", 150, 60)
    trace.op("other thread", 0, 900, thread=2)
    trace.kernel("gemm", 500, 510, 5)
    trace.kernel("gemm", 500, 510, 5, thread=2)
    operators = recorded(trace, tmp_path).operators
    origin = 500  # the first call
    covering = {
        (start, end): operators.covering(0, (start - origin) * 1e-6, (end - origin) * 1e-6)
        for start, end in ((90, 310), (150, 210), (140, 280), (290, 400), (400, 450))
    }
    assert covering == {(90, 310): "loader", (150, 210): "aten::stack", (140, 280): "loader", (290, 400): "", (400, 450): ""}
    assert operators.covering(1, -100e-6, 0.0) == "other thread"
    assert operators.covering(7, 0.0, 1.0) == ""
