"""Whether external events in a replayed graph time the work between them, also on a stream that was forked into the capture."""

import torch

from calibrate.preflight.check import WRONG, Check, CheckContext, Finding
from executors.cuda.issue import fork, join

_REPLAYS = 3


def _run(context: CheckContext) -> Finding:
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
    faults = []
    if result != 1 + _REPLAYS:
        faults.append((WRONG, f"a graph replayed {_REPLAYS} times must do its work as often: 1 became {result:g}"))
    if not 0 < milliseconds < 100:
        faults.append((WRONG, f"external events must time a graph's work: an addition took {milliseconds:g} ms by them"))
    return Finding.of(faults, f"an addition on a forked stream of a graph takes {milliseconds * 1e3:.1f} us by external events")


CHECK = Check("events", "Do external events time the work of a replayed graph?", 60.0, _run)
