"""How long kernels take: one after another, under the profiler, on fewer SMs, concurrently with others, and split in two."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import pairwise

import torch

from calibrate.cuda.bench import Bench, Issue, objects_kept, repeated
from calibrate.cuda.contention import measure_pairs, measure_urgency, named_kernels
from calibrate.cuda.host import cadence_s, cross_cadence_s, graph_launches, launch_cadence_s, launch_law, switch_s, tiny_kernel
from calibrate.cuda.testbed import SPLITS
from calibrate.preflight.probe import BLOCKS, SUBSTITUTE, UNCERTAIN, WRONG, Context, Order, Probe
from executors.cuda.profiled import TEARDOWN
from traces.documents.profile import Profile

#: A tiny kernel that follows another later than this is delayed: by a debugger, a profiler, or a host that waits for every launch.
_LONGEST_S = 15e-6
#: A graph whose launch takes the host longer per node waits for the host: a GPU runs a tiny node in about this time.
_LONGEST_NODE_S = 1e-6
_SESSIONS, _CALLS, _NODES = 3, 200, 100
#: Steps of plain PyTorch, of which the later half counts.
_YARDSTICK_STEPS = 20
#: A time that differs by this share from what it should be is a fault.
_GROWTH = 0.1


def _yardstick(context: Context) -> str:
    """Steps of a transformer's encoder in plain PyTorch, timed by the host's clock: nothing of Schedcast is between it and the GPU."""
    (layers, batch, length, width, heads), device = context.scale.encoder, context.driver.device
    block = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False).to(device)
    optimizer, x = torch.optim.AdamW(model.parameters(), fused=True), torch.randn(batch, length, width, device=device)
    seconds, losses = [], []
    for _ in range(_YARDSTICK_STEPS):
        begin_s = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # waits for the GPU
        seconds.append(time.perf_counter() - begin_s)
    step_s = statistics.median(seconds[_YARDSTICK_STEPS // 2 :])
    # Per token and layer: 12 products of width x width, and attention's two of length x width. Backward does twice the work of forward.
    flops = 3 * 2 * layers * batch * length * (12 * width**2 + 2 * length * width)
    context.figure("step_s", step_s)
    context.figure("flops_per_s", flops / step_s)
    context.figure("losses", losses)
    if not all(map(math.isfinite, losses)):
        context.fault(BLOCKS, f"let plain PyTorch train under autocast to bf16: its loss became {losses[-1]}")
    return f"{step_s * 1e3:.1f} ms for a step of {layers} encoder layers under autocast to bf16, {flops / step_s / 1e12:.3g} TFLOP/s"


def _cadence(context: Context) -> str:
    """The time from one tiny kernel to the next: in a graph, across its streams, and one by one, eagerly or as graphs of one kernel."""
    bench = Bench(context.driver, effort=context.scale.effort)
    tiny = tiny_kernel(bench.driver)
    bench.run(tiny)
    graph = bench.capture(tiny)
    seconds = {}
    measures = {
        "in a graph": partial(cadence_s, bench),
        "across two streams of a graph": partial(cross_cadence_s, bench),
        "eagerly": partial(launch_cadence_s, bench, tiny),
        "from graph to graph": partial(launch_cadence_s, bench, graph.replay),
    }
    for words, measure in measures.items():
        seconds[words] = measure()
        context.figure("seconds", seconds)
    issue_s = statistics.median(bench.host_s(tiny, _CALLS))
    nothing, kernel = bench.between([lambda: None, tiny], rounds=100)
    steps = sorted({round(second * 1e9) for second in kernel})
    context.figure("issue_s", issue_s)
    context.figure("timer_of_nothing_s", min(nothing))
    context.figure("timer_tick_s", min((b - a for a, b in pairwise(steps)), default=0) * 1e-9)
    if seconds["eagerly"] >= 0.9 * issue_s:
        context.fault(UNCERTAIN, f"the host was not ahead, so the eager gap is unknown: {issue_s * 1e6:.2f} us per launch")
    for words, taken_s in seconds.items():
        if taken_s > _LONGEST_S:
            context.fault(WRONG, f"find what holds up every kernel: {words}, a tiny one follows another after {taken_s * 1e6:.1f} us")
    shown = ", ".join(f"{taken_s * 1e6:.2f} us {words}" for words, taken_s in seconds.items())
    return f"a tiny kernel follows another after {shown}: the eager gap is a fact of its own if it differs from the graph's"


def _launches(context: Context) -> str:
    """The host time to switch to another stream, and to launch a graph by its nodes and branches."""
    bench = Bench(context.driver, effort=context.scale.effort)
    tiny = tiny_kernel(bench.driver)
    bench.run(tiny)
    issue_s, turn_s = statistics.median(bench.host_s(tiny, _CALLS)), switch_s(bench)
    context.figure("issue_s", issue_s)
    context.figure("switch_s", turn_s)
    launches = graph_launches(bench)
    context.figure("launch_s", {f"{nodes} nodes on {branches} branches": seconds for (nodes, branches), seconds in launches.items()})
    law = launch_law(launches)
    context.figure("law", law)
    if turn_s > issue_s:
        context.fault(WRONG, f"change lanes less often: it takes the host {turn_s * 1e6:.1f} us, and a launch {issue_s * 1e6:.1f} us")
    constant, per_node, per_branch = (seconds * 1e6 for seconds in law.values())
    if law["graph_node_s"] > _LONGEST_NODE_S:
        context.fault(WRONG, f"find what holds up launches of graphs: the host needs {per_node:.1f} us per node, more than the GPU")
    graphs = f"to launch a graph {constant:.1f} us, {per_node:.3f} us per node and {per_branch:.1f} us per further branch"
    return f"the host takes {turn_s * 1e6:.2f} us to go on with another stream, and {graphs}"


def _profiler(context: Context) -> str:
    """Later profiler sessions of a process list all kernels, with captures between them, and cost the host nothing after them."""
    driver = context.driver
    bench = Bench(driver, effort=context.scale.effort)
    x, tiny, gemm = torch.ones(1 << 16, device=driver.device), tiny_kernel(driver), named_kernels(driver, context.scale.kernels)["gemm"]
    works: list[Issue] = [lambda: x.add_(1), lambda: None, lambda: (x.mul_(2), x.add_(1))]
    bench.run(lambda: [work() for work in works])

    def times() -> dict[str, float]:
        return {"launch_s": statistics.median(bench.host_s(tiny, _CALLS)), "graph_node_s": bench.slope_s(repeated(tiny), _NODES)}

    bench.run(tiny)
    before, after = times(), []
    gemm_s, profiled_s = _kernel_s(bench, gemm), None
    context.figure("before", before)
    counts: list[list[int] | None] = []
    for _ in range(_SESSIONS):
        driver.use(bench.stream)
        kernels = driver.kernels([*works, gemm])
        counts.append(None if kernels is None else [len(of_work) for of_work in kernels[: len(works)]])
        profiled_s = profiled_s if kernels is None else sum(kernel.seconds for kernel in kernels[-1])
        after.append(times())  # captures and replays graphs
        context.figure("kernels_by_session", counts)
        context.figure("after_session", after)
    context.figure("product", {"graph_s": gemm_s, "profiler_s": profiled_s, "inflation": profiled_s and profiled_s / gemm_s})
    if counts[0] is None:
        context.fault(UNCERTAIN, "let the profiler see kernels: it is refused, so grids are estimated from times on partitions")
    elif any(count != [1, 0, 2] for count in counts):
        context.fault(WRONG, f"every profiler session must list the kernels (1, 0 and 2): by session they are {counts}")
    grown = {name: after[-1][name] / before[name] - 1 if before[name] else 0.0 for name in before}
    if grown["graph_node_s"] > _GROWTH:
        longer = f"after {_SESSIONS} profiler sessions a graph's node takes {100 * grown['graph_node_s']:.0f} % longer"
        context.fault(WRONG, f"measure graphs before the first session: {longer}")
    listed = f"{_SESSIONS} profiler sessions list all kernels"
    if grown["launch_s"] > _GROWTH:  # validations time eager steps in a process that has had none
        return f"{listed}; afterwards launching a kernel takes {100 * grown['launch_s']:.0f} % longer"
    return f"{listed}, and cost nothing afterwards"


def _kernels(context: Context) -> str:
    """Seconds of a few kernels. Each case is measured separately, so that one failure does not affect the rest."""
    driver, scale = context.driver, context.scale
    bench = Bench(driver, effort=scale.effort)

    def on_halves() -> list[dict[str, object]]:
        first, second = driver.partitions(2)
        pairs = measure_pairs(driver, scale.kernels, (first, second), scale.effort, "bf16")  # as the first jobs that are validated
        return [asdict(pair) | {"slow_downs": pair.slow_downs} for pair in pairs]

    cases: dict[str, tuple[Callable[[], object], int]] = {
        "seconds_by_sms": (lambda: _by_sms(context, bench), SUBSTITUTE),
        "co_runs_on_halves": (on_halves, SUBSTITUTE),  # calibration measures the same kernels on the whole GPU
        "convolution_backward": (lambda: _split_backward(context, bench), WRONG),
    }
    with objects_kept():
        for name, (case, worth) in cases.items():
            context.attempt(name, case, f"measure {name.replace('_', ' ')}", worth)
    return "the times of kernels are known by SMs, beside others and split"


def _urgency(context: Context) -> str:
    """How much less a kernel beside others slows down on a stream of high priority, measured and as the engine models it."""
    profile = Profile(identity=context.identities[False]) if context.folder is None else context.profiles[False]
    with objects_kept():
        pairs = measure_urgency(context.driver, profile, context.scale.kernels, context.scale.effort)
    context.figure(
        "slow_downs",
        {pair.name: {"equal": pair.equal.slow_downs, "urgent": pair.urgent.slow_downs, "modeled": pair.modeled} for pair in pairs},
    )
    equal = statistics.median(pair.equal.slow_downs[0] for pair in pairs)
    urgent = statistics.median(pair.urgent.slow_downs[0] for pair in pairs)
    words = f"beside others a kernel takes {equal:.2f} times as long as alone, and {urgent:.2f} times with priority"
    if equal > 1 + _GROWTH and urgent > equal * (1 - _GROWTH):
        context.fault(SUBSTITUTE, f"predict streams without priorities, which must shorten what is urgent: {words}")
    errors = [abs(pair.modeled[0] / pair.urgent.slow_downs[0] - 1) for pair in pairs if pair.modeled is not None]
    if errors and (error := statistics.median(errors)) > _GROWTH:
        context.fault(UNCERTAIN, f"correct how urgent kernels get SMs: the engine errs by {100 * error:.0f} % ({words})")
    return words


def _by_sms(context: Context, bench: Bench) -> dict[str, dict[int, float]]:
    """Seconds of a matrix product and of a copy, by the number of SMs that they may use."""
    driver, kernels = context.driver, named_kernels(context.driver, context.scale.kernels)
    parts = [driver.partitions(count)[0] for count in SPLITS]
    benches = {driver.facts.sms: bench, **{part.sms: Bench(driver, part, context.scale.effort) for part in parts}}
    return {name: {sms: _kernel_s(of_part, kernels[name]) for sms, of_part in benches.items()} for name in ("gemm", "copy")}


def _split_backward(context: Context, bench: Bench) -> dict[str, float]:
    """Seconds of a convolution's whole backward op and of its two halves: the gradient of the input, and of the parameters."""
    (batch, channels, edge), device = context.scale.convolution, bench.driver.device
    grad, x = (torch.randn(batch, channels, edge, edge, device=device) for _ in range(2))
    weight = torch.randn(channels, channels, 3, 3, device=device)

    def backward(*mask: bool) -> Issue:
        rest = ([channels], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, list(mask))
        return lambda: torch.ops.aten.convolution_backward(grad, x, weight, *rest)

    masks = {"joint_s": (True, True, True), "input_s": (True, False, False), "parameters_s": (False, True, True)}
    return {name: _kernel_s(bench, backward(*mask)) for name, mask in masks.items()}


def _kernel_s(bench: Bench, issue: Issue) -> float:
    """Median seconds of a piece of work, from graphs as long as calibration uses."""
    bench.run(issue)
    seconds = bench.slope_s(repeated(issue), bench.effort.fewest_copies, rounds=2)
    return bench.slope_s(repeated(issue), bench.effort.copies(seconds))


def _sessions(name: str, words: str, teardown: str) -> Probe:
    asks = f"Do later profiler sessions list all kernels, and cost nothing afterwards, {words}?"
    return Probe(name, asks, _profiler, Order.NUMERICS, 75.0, {TEARDOWN: teardown})


PROBES = (
    Probe(
        "yardstick",
        "How long does plain PyTorch take for a step of a transformer, with nothing of Schedcast?",
        _yardstick,
        Order.YARDSTICK,
        120.0,
    ),
    Probe("urgency", "What does a stream's priority give a kernel that runs beside others?", _urgency, Order.URGENCY),
    _sessions("profiler", "with CUPTI detached after each", "1"),
    _sessions("profiler-attached", "with CUPTI left attached", "0"),  # as PyTorch does by default
    Probe("cadence", "How long is it from one kernel to the next, in a graph and eagerly?", _cadence, Order.CONSTANTS),
    Probe(
        "launches",
        "What does the host take to change the lane, and to launch graphs of many nodes and branches?",
        _launches,
        Order.CONSTANTS,
    ),
    Probe("kernels", "How long do kernels take on fewer SMs, beside others on halves, and split in two?", _kernels, Order.KERNELS, 120.0),
)
