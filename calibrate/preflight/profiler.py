"""Whether later profiler sessions of a process list all kernels, with captures between them, and what a session costs the host after it.

Two checks: with CUPTI detached after every session (TEARDOWN_CUPTI=1), and with CUPTI left attached, as PyTorch does by default.
"""

import statistics

import torch

from calibrate.cuda.bench import Bench, repeated
from calibrate.cuda.cadence import tiny_kernel
from calibrate.preflight.check import UNCERTAIN, WRONG, Check, CheckContext, Finding

_SESSIONS, _CALLS, _NODES = 3, 200, 100
#: The host's and a graph's times may grow by this share after a session.
_GROWTH = 0.1


def _run(context: CheckContext) -> Finding:
    driver = context.driver
    bench = Bench(driver, effort=context.scale.effort)
    x, tiny = torch.ones(1 << 16, device=driver.device), tiny_kernel(driver)
    works = [lambda: x.add_(1), lambda: None, lambda: (x.mul_(2), x.add_(1))]
    bench.run(lambda: [work() for work in works])

    def times() -> dict[str, float]:
        return {"launch_s": statistics.median(bench.host_s(tiny, _CALLS)), "graph_node_s": bench.slope_s(repeated(tiny), _NODES)}

    bench.run(tiny)
    before, after = times(), []
    context.figure("before", before)
    counts: list[list[int] | None] = []
    for _ in range(_SESSIONS):
        driver.use(bench.stream)
        kernels = driver.kernels(works)
        counts.append(None if kernels is None else [len(of_work) for of_work in kernels])
        after.append(times())  # captures and replays graphs
        context.figure("kernels_by_session", list(counts))
        context.figure("after_session", list(after))
    faults = []
    if counts[0] is None:
        faults.append((UNCERTAIN, "let the profiler see kernels: it is refused, so grids are guessed from times on partitions"))
    elif any(count != [1, 0, 2] for count in counts):
        faults.append((WRONG, f"every profiler session must list the kernels (1, 0 and 2): by session they are {counts}"))
    for name, words in (("launch_s", "launching a kernel"), ("graph_node_s", "a graph's node")):
        growth = after[-1][name] / before[name] - 1 if before[name] else 0.0
        if growth > _GROWTH:
            what = "detach CUPTI, or measure before the first session" if name == "launch_s" else "measure graphs before the first session"
            faults.append((WRONG, f"{what}: after {_SESSIONS} profiler sessions {words} takes {100 * growth:.0f} % longer"))
    return Finding.of(faults, f"{_SESSIONS} profiler sessions list all kernels, and cost nothing afterwards")


def _check(name: str, words: str, teardown: str) -> Check:
    asks = f"Do later profiler sessions list all kernels, and cost nothing afterwards, {words}?"
    return Check(name, asks, 75.0, _run, {"TEARDOWN_CUPTI": teardown})


DETACHED = _check("profiler", "with CUPTI detached after each", "1")
ATTACHED = _check("profiler-attached", "with CUPTI left attached", "0")
