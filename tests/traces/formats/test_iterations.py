"""Iterations of a recording whose annotated steps hold no device work."""

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
