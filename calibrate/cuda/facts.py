"""Facts to measure first on an unknown GPU: plain data in seconds and counts, each fact by itself, so that one failure leaves the rest.

`measure_facts` returns them as one JSON document.
"""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise

import torch

from calibrate.cuda.bench import Bench, Effort, Issue, objects_kept, repeated
from calibrate.cuda.cadence import cadence_s, cross_cadence_s, launch_cadence_s, tiny_kernel
from calibrate.cuda.co_runs import Sizes, co_runs, named_kernels
from calibrate.cuda.cold import Cold, flusher, in_turn
from calibrate.cuda.profiler_effect import before_profiler
from executors.cuda.driver import Driver, Stream
from executors.cuda.issue import fork, join
from executors.kernels.update import apply_update
from simulator.model.user_code import brief
from simulator.plan.bodies.update import STATE, Update, forms

_SPLITS = (2, 4, 8)
#: Tiny kernels in the graphs that price external events.
_TINY = 200
#: Host calls per sample, and how long a sleeping call takes: far longer than it takes to issue that many calls.
_CALLS, _SLEEP_S = 50, 10e-3


@dataclass(frozen=True)
class Scale:
    """Sizes of the work on which the facts are measured; tests use smaller ones.

    `convolution` is (batch, channels, edge); `parameters` are the sizes of the tensors of one Adam update.
    """

    kernels: Sizes = field(default_factory=Sizes)
    convolution: tuple[int, int, int] = (32, 128, 28)
    parameters: tuple[int, ...] = (2048 * 1024, 512 * 512 * 9, 2048, 2048)
    effort: Effort = field(default_factory=Effort)


def measure_facts(driver: Driver, scale: Scale | None = None) -> dict[str, object]:
    """Measure every fact. Returns the facts by name; one that fails is `{"failed": reason}`."""
    scale = scale or Scale()
    bench = Bench(driver, effort=scale.effort)
    facts: dict[str, object] = {"gpu": asdict(driver.facts), "software": driver.software()}
    with objects_kept():
        for name, fact in FACTS.items():
            facts[name] = _guarded(partial(fact, bench, scale))
    return facts


def partitions(bench: Bench, scale: Scale) -> dict[str, object]:
    """For each split, the SMs of each partition, and the SMs on which launched and replayed kernels ran."""
    return {str(count): _guarded(partial(_split, bench.driver, count)) for count in _SPLITS}


def _split(driver: Driver, count: int) -> dict[str, object]:
    parts = driver.partitions(count)
    streams = [driver.stream(partition=part) for part in parts]
    facts: dict[str, object] = {"sms": [part.sms for part in parts]}
    for how, replayed in (("eager", False), ("replayed", True)):
        seen = [driver.sm_ids(stream, replayed) for stream in streams]
        facts[how] = {"sms_seen": [len(ids) for ids in seen], "disjoint": len(frozenset().union(*seen)) == sum(map(len, seen))}
    return facts


def priorities(bench: Bench, scale: Scale) -> dict[str, object]:
    """The number of priority levels, and how many streams could be made with distinct levels."""
    levels = bench.driver.facts.priority_levels
    return {"levels": levels, "streams_made": len([bench.driver.stream(priority=-level) for level in range(levels)])}


def external_events(bench: Bench, scale: Scale) -> dict[str, float]:
    """Seconds of a graph of tiny kernels without and with an external event after each kernel, and seconds per event."""
    issue = tiny_kernel(bench.driver)
    events = [bench.driver.event(timing=True, external=True) for _ in range(_TINY)]

    def with_events() -> None:
        for event in events:
            issue()
            event.record(bench.stream)

    graphs = [bench.capture(lambda: repeated(issue)(_TINY)), bench.capture(with_events)]
    without_s, with_s = (min(times) for times in bench.replays(graphs))
    return {"without_s": without_s, "with_s": with_s, "per_event_s": (with_s - without_s) / _TINY}


def cadence(bench: Bench, scale: Scale) -> dict[str, float]:
    """Seconds from one tiny kernel to the next: in a graph on one stream, alternating between two, and launched one by one."""
    return {"one_stream_s": cadence_s(bench), "two_streams_s": cross_cadence_s(bench), "launched_s": launch_cadence_s(bench)}


def host_calls(bench: Bench, scale: Scale) -> dict[str, float]:
    """Seconds of host calls on a stream: of one that returns at once (in a graph, and eagerly), and of one and two calls that sleep.

    The two sleeping calls are on two streams: together they take as long as one if the driver runs them concurrently, else twice as long.
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
    n = _CALLS
    works = [partial(eager, n), partial(eager, 2 * n), partial(sleeping, first), partial(sleeping, first, second)]
    few, many, one, two = map(statistics.median, bench.between(works))
    return {
        "graph_s": bench.slope_s(call, n),
        "eager_s": (many - few) / n,
        "one_of_10_ms_s": one,
        "two_of_10_ms_on_two_streams_s": two,
    }


def by_sms(bench: Bench, scale: Scale) -> dict[str, dict[str, float]]:
    """Seconds of a matrix product and of a copy, by the number of SMs that they may use."""
    driver = bench.driver
    benches = {driver.facts.sms: bench}
    for count in _SPLITS:
        part = driver.partitions(count)[0]
        benches[part.sms] = Bench(driver, part, scale.effort)
    kernels = named_kernels(driver, scale.kernels)
    return {name: {str(sms): _kernel_s(bench, kernels[name]) for sms, bench in benches.items()} for name in ("gemm", "copy")}


def pairs_of_kernels(bench: Bench, scale: Scale) -> dict[str, object]:
    """Co-runs of the fixed pairs of kernels: sharing the GPU, and each kernel on its half of it."""

    def pairs(halves=None) -> list[dict[str, object]]:
        return [asdict(pair) | {"slow_downs": list(pair.slow_downs)} for pair in co_runs(bench.driver, scale.kernels, halves, scale.effort)]

    return {"shared": _guarded(pairs), "halves": _guarded(lambda: pairs(bench.driver.partitions(2)))}


def split_backward(bench: Bench, scale: Scale) -> dict[str, float]:
    """Seconds of a convolution's whole backward op and of its two halves: the gradient of the input, and of the parameters."""
    (batch, channels, edge), device = scale.convolution, bench.driver.device
    grad, x = (torch.randn(batch, channels, edge, edge, device=device) for _ in range(2))
    weight = torch.randn(channels, channels, 3, 3, device=device)

    def backward(*mask: bool) -> Issue:
        rest = ([channels], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, list(mask))
        return lambda: torch.ops.aten.convolution_backward(grad, x, weight, *rest)

    masks = {"joint_s": (True, True, True), "input_s": (True, False, False), "parameters_s": (False, True, True)}
    return {name: _kernel_s(bench, backward(*mask)) for name, mask in masks.items()}


def adam(bench: Bench, scale: Scale) -> dict[str, object]:
    """Seconds of Adam's update in each form, warm and cold."""
    return {form: _guarded(partial(_adam, bench, scale, form)) for form in forms("adam")}


def _adam(bench: Bench, scale: Scale, form: str) -> dict[str, float]:
    body = Update("adam", form, tuple(f"p{i}" for i in range(len(scale.parameters))))
    driver, facts = bench.driver, bench.driver.facts

    def update() -> Issue:
        grads = [torch.randn(size, device=driver.device) for size in scale.parameters]
        tensors = [
            torch.full((), 10.0, device=driver.device) if name == "step" else torch.rand(size, device=driver.device)
            for size in scale.parameters
            for name in ("parameter", *STATE["adam"])
        ]
        return lambda: apply_update(body, grads, tensors, capturable=True)

    one = update()
    warm_s = _kernel_s(bench, one)
    size = 4 * 4 * sum(scale.parameters)
    cold = Cold.of(size, facts.cache_bytes, facts.memory_bytes // 8, scale.effort.copies(warm_s), scale.effort.most_sets)
    sets = [one, *(update() for _ in range(1, cold.sets))]
    for work in sets:
        bench.run(work)
    return {"bytes": size, "warm_s": warm_s, "cold_s": bench.slope_s(in_turn(sets, flusher(driver)), cold.copies)}


def timer(bench: Bench, scale: Scale) -> dict[str, float]:
    """The shortest time between two events with nothing in between, and the resolution of the GPU's timer.

    The resolution is the smallest difference between the distinct times of a tiny kernel.
    """
    issue = tiny_kernel(bench.driver)
    bench.run(issue)
    nothing, kernel = bench.between([lambda: None, issue], rounds=100)
    steps = sorted({round(second * 1e9) for second in kernel})
    return {"nothing_s": min(nothing), "tick_s": min((b - a for a, b in pairwise(steps)), default=0) * 1e-9}


def profiler(bench: Bench, scale: Scale) -> dict[str, float | str]:
    """Seconds of a matrix product's kernels according to the profiler, and in a graph.

    Also the host seconds of a launch before the first session of the process.
    """
    issue, launch_s = named_kernels(bench.driver, scale.kernels)["gemm"], before_profiler(bench)
    seconds = _kernel_s(bench, issue)
    bench.driver.use(bench.stream)
    profiled = bench.driver.kernels([issue])
    if profiled is None:
        return {"graph_s": seconds, "launch_before_s": launch_s, "failed": "the profiler is refused"}
    profiled_s = sum(kernel.seconds for kernel in profiled[0])
    return {"graph_s": seconds, "profiler_s": profiled_s, "inflation": profiled_s / seconds, "launch_before_s": launch_s}


#: The facts by their name in the document, in the order of measuring.
FACTS: dict[str, Callable[[Bench, Scale], object]] = {
    "partitions": partitions,
    "priorities": priorities,
    "external_events": external_events,
    "cadence": cadence,
    "host_calls": host_calls,
    "seconds_by_sms": by_sms,
    "co_runs": pairs_of_kernels,
    "convolution_backward": split_backward,
    "adam": adam,
    "timer": timer,
    "profiler": profiler,
}


def _guarded(fact: Callable[[], object]) -> object:
    """The result of `fact`, or `{"failed": reason}` if it raises."""
    try:
        return fact()
    except Exception as error:
        return {"failed": brief(error)}


def _kernel_s(bench: Bench, issue: Issue) -> float:
    """Median seconds of a piece of work, from graphs as long as calibration uses."""
    bench.run(issue)
    seconds = bench.slope_s(repeated(issue), bench.effort.fewest_copies, rounds=2)
    return bench.slope_s(repeated(issue), bench.effort.copies(seconds))
