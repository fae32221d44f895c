"""Whether streams, events, captures, calls of the host and partitions of the GPU do what plans need of them, and what they cost."""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from calibrate.cuda.bench import Bench, repeated
from calibrate.cuda.host import tiny_kernel
from calibrate.cuda.testbed import SPLITS
from calibrate.preflight.probe import SUBSTITUTE, WRONG, Context, Order, Probe
from executors.cuda.driver import Driver, Stream
from executors.cuda.driver_api import POOLED
from executors.cuda.issue import fork, join
from simulator.model.user_code import brief
from traces.errors import SchedcastError

_REPLAYS = 3
#: Tiny kernels in the graphs that measure the cost of external events.
_TINY = 200
#: How long calls of the host sleep, one that must hold its stream and two at once, and calls per sample of those that return at once.
_HOLD_S, _SLEEP_S, _CALLS = 0.2, 10e-3, 50


def _streams(context: Context) -> str:
    """Streams are distinct queues, beyond PyTorch's pool of 32, at all priorities."""
    driver, least = context.driver, 1 - context.driver.facts.priority_levels
    streams: list[Any] = []
    try:
        for priority in (0, least - 1):  # beyond the most urgent one, to which it is clipped
            streams += [driver.stream(priority) for _ in range(POOLED + 2)]
    except SchedcastError as error:
        context.fault(SUBSTITUTE, f"let plans have more than {POOLED} lanes of one priority: {error}")
    queues = len({getattr(stream, "cuda_stream", id(stream)) for stream in streams})
    priorities = sorted({stream.priority for stream in streams})
    for name, value in {"streams": len(streams), "queues": queues, "priorities": priorities, "most_urgent": least}.items():
        context.figure(name, value)
    if queues < len(streams):
        context.fault(WRONG, f"streams must not share queues: {len(streams)} streams have {queues}")
    if not context.faults and priorities != sorted({0, least}):
        context.fault(WRONG, f"streams have priorities {priorities}; expected 0 and {least}")
    return f"{queues} streams have queues of their own, at priorities 0 to {least}"


def _events(context: Context) -> str:
    """External events in a replayed graph time the work between them, also on a stream that was forked into the capture."""
    driver = context.driver
    lane, side = driver.stream(), driver.stream(-1)
    driver.use(lane)
    x = torch.ones(1 << 20, device=driver.device)
    begin, end = (driver.event(timing=True, external=True) for _ in range(2))
    driver.synchronize()
    with driver.capture(lane) as graph:
        begin.record(lane)
        fork(driver, lane, [side])
        driver.use(side)
        x.add_(1)
        join(driver, [side], lane)
        end.record(lane)
    driver.use(lane)
    for _ in range(_REPLAYS):
        graph.replay()
    driver.synchronize()
    milliseconds, result = begin.elapsed_time(end), float(x[0])
    context.figure("milliseconds", milliseconds)
    context.figure("result", result)
    if result != 1 + _REPLAYS:
        context.fault(WRONG, f"a graph replayed {_REPLAYS} times must do its work as often: 1 became {result:g}")
    if not 0 < milliseconds < 100:
        context.fault(WRONG, f"external events must time a graph's work: an addition took {milliseconds:g} ms by them")
    bench = Bench(driver, effort=context.scale.effort)
    context.attempt("per_event_s", partial(_per_event_s, bench), "graphs must take many external events")
    return f"an addition on a forked stream of a graph takes {milliseconds * 1e3:.1f} us by external events"


def _per_event_s(bench: Bench) -> float:
    """Seconds that an external event after a tiny kernel of a graph takes."""
    issue = tiny_kernel(bench.driver)
    events = [bench.driver.event(timing=True, external=True) for _ in range(_TINY)]

    def with_events() -> None:
        for event in events:
            issue()
            event.record(bench.stream)

    bench.run(issue)
    without_s, with_s = (min(times) for times in bench.replays([bench.capture(lambda: repeated(issue)(_TINY)), bench.capture(with_events)]))
    return (with_s - without_s) / _TINY


def _captures(context: Context) -> str:
    """The GPU is usable after a capture that failed: by an error, by a stream that was not joined, by an illegal call."""
    answers = {}
    for fault in ("error", "unjoined", "illegal"):
        answers[fault] = _after(context.driver, fault) or "ok"
        context.figure("after", answers)
        if answers[fault] != "ok":
            context.fault(WRONG, f"a capture that fails ({fault}) must leave the GPU usable: {answers[fault]}")
    return "after a failed capture the next one works"


def _after(driver: Driver, fault: str) -> str | None:
    """Let a capture fail, then use the GPU. Returns None if that works, else what went wrong."""
    lane, side = driver.stream(), driver.stream()
    driver.use(lane)
    x = torch.ones(8, device=driver.device)
    driver.synchronize()
    try:
        with driver.capture(lane):
            x.add_(1)
            if fault == "unjoined":
                fork(driver, lane, [side])
                driver.use(side)
                x.add_(1)
            elif fault == "illegal":
                x.sum().item()
            else:
                raise ZeroDivisionError
    except (ZeroDivisionError, RuntimeError) as error:
        if isinstance(error, ZeroDivisionError) != (fault == "error"):
            return f"it was reported as {brief(error)}"
    else:
        return "it did not fail"
    try:
        return _use(driver, side, x)
    except Exception as error:
        return brief(error)


def _use(driver: Driver, stream: Stream, x: torch.Tensor) -> str | None:
    driver.use(stream)
    torch.rand(4, device=driver.device)
    driver.seed(3)
    driver.synchronize()
    with driver.capture(stream) as graph:
        y = x + 1
    driver.use(stream)
    graph.replay()
    driver.synchronize()
    return None if float(y[0]) == float(x[0]) + 1 else "the next graph computed something else"


def _host_calls(context: Context) -> str:
    """A stream calls the host, eagerly and in every replay of a graph, while the issuing thread goes on."""
    driver = context.driver
    lane = driver.stream()
    begin, end = driver.event(timing=True), driver.event(timing=True)
    driver.synchronize()
    try:
        with driver.capture(lane) as graph:
            driver.call_host(_HOLD_S)
    except (SchedcastError, RuntimeError) as error:
        context.fault(SUBSTITUTE, f"drop turbodl:update=callback: {error}")
        return ""
    driver.use(lane)
    held_s, waited_s = [], []
    for issue in (lambda: driver.call_host(_HOLD_S), *[graph.replay] * _REPLAYS):
        begin.record(lane)
        begin_s = driver.now_s()
        issue()
        waited_s.append(driver.now_s() - begin_s)
        end.record(lane)
        driver.synchronize()
        held_s.append(begin.elapsed_time(end) * 1e-3)
    context.figure("held_s", held_s)
    context.figure("issuing_thread_waited_s", waited_s)
    if not all(_HOLD_S <= seconds < 10 * _HOLD_S for seconds in held_s):
        shown = ", ".join(f"{seconds:.3g}" for seconds in held_s)
        context.fault(SUBSTITUTE, f"a host call of {_HOLD_S} s must hold its stream, eagerly and in every replay: it took {shown} s")
    if max(waited_s) > _HOLD_S / 2:
        context.fault(SUBSTITUTE, f"the issuing thread must not wait for a host call: it waited {max(waited_s):.3g} s")
    context.attempt("cost", partial(_call_cost, Bench(driver, effort=context.scale.effort)), "host calls must be timed", SUBSTITUTE)
    return "a host call holds its stream, eagerly and in every replay, and not the issuing thread"


def _call_cost(bench: Bench) -> dict[str, float]:
    """Seconds of eager host calls: of one that returns at once, and of one and of two on two streams that sleep.

    The two take as long as one if the driver runs them concurrently, else twice as long.
    """
    driver, first, second = bench.driver, bench.stream, bench.driver.stream()
    call = repeated(lambda: driver.call_host(0.0))

    def eager(count: int) -> None:
        driver.call_host(_SLEEP_S)  # lets the host get ahead of the stream
        call(count)

    def sleeping(*streams: Stream) -> None:
        fork(driver, first, streams)
        for stream in streams:
            driver.use(stream)
            driver.call_host(_SLEEP_S)
        join(driver, streams, first)
        driver.use(first)

    bench.run(lambda: call(1))
    works = [partial(eager, _CALLS), partial(eager, 2 * _CALLS), partial(sleeping, first), partial(sleeping, first, second)]
    few, many, one, two = map(statistics.median, bench.between(works))
    return {"eager_s": (many - few) / _CALLS, "one_of_10_ms_s": one, "two_of_10_ms_on_two_streams_s": two}


def _partitions(context: Context) -> str:
    """Partitions of the GPU stay disjoint: launched eagerly, replayed one by one, and all in one graph."""
    driver, words = context.driver, ""
    ways: dict[str, Callable[[list[Stream]], list[frozenset[int]]]] = {
        "eagerly": lambda streams: [driver.sm_ids(stream) for stream in streams],
        "replayed": lambda streams: [driver.sm_ids(stream, replayed=True) for stream in streams],
        "in one graph": driver.sm_ids_in_one_graph,
    }
    for count in SPLITS:
        try:
            parts = driver.partitions(count)
        except SchedcastError as error:
            context.figure(f"{count} parts", {"failed": str(error)})
            if not words:  # a GPU with few SMs has no more parts, which is no fault
                context.fault(SUBSTITUTE, f"validate no plan on partitions: {error}")
            break
        context.figure(f"{count} parts", [part.sms for part in parts])
        words = words or f"{count} parts of {parts[0].sms} SMs are disjoint, also in one graph"
        for way, seen in ways.items():
            how = f"{count} parts {way}"
            try:
                sms = seen([driver.stream(partition=part) for part in parts])
            except Exception as error:
                context.figure(how, {"failed": brief(error)})
                context.fault(SUBSTITUTE, f"kernels of {how} fail, so plans on partitions must not do so: {brief(error)}")
                continue
            counts, shared = [len(ids) for ids in sms], sum(map(len, sms)) - len(frozenset().union(*sms))
            context.figure(how, {"sms_seen": counts, "shared": shared})
            if shared:
                context.fault(WRONG, f"partitions of the GPU must be disjoint: {how} share {shared} SMs")
            if max(counts) > parts[0].sms:
                context.fault(WRONG, f"a partition must keep to its SMs: {how} ran on {counts} of {parts[0].sms}")
    return words


PROBES = (
    Probe("streams", "Has every stream a queue of its own, at every priority?", _streams, Order.CONSTANTS),
    Probe("events", "Do external events time the work of a replayed graph, and what does one cost?", _events, Order.GRAPHS),
    Probe("captures", "Is the GPU usable after a capture that failed?", _captures, Order.GRAPHS),
    Probe("host-calls", "Do streams call the host, eagerly and in every replay, and what does that cost?", _host_calls, Order.CONSTANTS),
    Probe("partitions", "Are the parts of the GPU disjoint, also in one graph?", _partitions, Order.PARTITIONS, 75.0),
)
