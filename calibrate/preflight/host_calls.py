"""Whether a stream calls the host, eagerly and in every replay of a graph, while the issuing thread goes on."""

from calibrate.preflight.check import SUBSTITUTE, Check, CheckContext, Finding
from traces.errors import StepcastError

_SLEEP_S, _REPLAYS = 0.2, 3


def _run(context: CheckContext) -> Finding:
    driver = context.driver
    lane = driver.stream()
    begin, end = driver.event(timing=True), driver.event(timing=True)
    driver.synchronize()
    try:
        with driver.capture(lane) as graph:
            driver.call_host(_SLEEP_S)
    except (StepcastError, RuntimeError) as error:
        return Finding.of([(SUBSTITUTE, f"leave turbodl:update=callback out: {error}")], "")
    driver.use(lane)
    held_s, waited_s = [], []
    for issue in (lambda: driver.call_host(_SLEEP_S), *[graph.replay] * _REPLAYS):
        begin.record(lane)
        begin_s = driver.now_s()
        issue()
        waited_s.append(driver.now_s() - begin_s)
        end.record(lane)
        driver.synchronize()
        held_s.append(begin.elapsed_time(end) * 1e-3)
    context.figure("held_s", held_s)
    context.figure("issuing_thread_waited_s", waited_s)
    faults = []
    if not all(_SLEEP_S <= seconds < 10 * _SLEEP_S for seconds in held_s):
        shown = ", ".join(f"{seconds:.3g}" for seconds in held_s)
        faults.append((SUBSTITUTE, f"a host call of {_SLEEP_S} s must hold its stream, eagerly and in every replay: it took {shown} s"))
    if max(waited_s) > _SLEEP_S / 2:
        faults.append((SUBSTITUTE, f"the issuing thread must not wait for a host call: it waited {max(waited_s):.3g} s"))
    return Finding.of(faults, "a host call holds its stream, eagerly and in every replay, and not the issuing thread")


CHECK = Check("host-calls", "Do streams call the host, eagerly and in every replay?", 60.0, _run)
