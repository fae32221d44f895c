"""Task executions that the engine simulates per second, with the event rate of bare SimPy for comparison.

    python -m tools.bench_engine [tasks per period]

Prints executions per second over all simulated periods: for the events alone; after dependencies are derived and costs are resolved
(events and recipes; the plan keeps its walk through the cache); and for the whole call of `simulate`, with spans, memory and critical
path. Each also as a multiple of the rate of bare SimPy, measured together with it. Targets for the events: 0.286 times bare SimPy on one
stream, 0.071 times on four contending streams (400,000 and 100,000 tasks/s where bare SimPy makes 1,400,000 timeouts/s), and less than
300 MB for a plan of 3,000 tasks. Rates are per second of CPU, and the best of five runs, since other processes only slow a run down.
"""

import gc
import resource
import sys
import time

import simpy

from simulator.engine.scenario import Scenario
from simulator.engine.simulation import Simulation, simulate
from simulator.plan.dependencies import dependencies_of
from tests.support.tiny import build, gpu, host, task


def bare_timeouts(count: int = 200_000) -> float:
    """Timeouts per second of one SimPy process."""
    env = simpy.Environment()

    def wait():
        for _ in range(count):
            yield env.timeout(1.0)

    env.process(wait())
    begin = time.process_time()
    env.run()
    return count / (time.process_time() - begin)


def layered(count: int, streams: int):
    """A chain of kernels per stream, of varying sizes, times, priorities and shares. Every 50th kernel waits for another stream."""
    timed = []
    for i in range(count):
        reads = f"y{i - streams}" if i >= streams else "x"
        if streams > 1 and i % 50 == 0 and i >= streams:
            reads += f" y{i - streams + 1}"
        seconds = 1e-5 * (2 + (i * 7919) % 13)
        timed.append(
            task(
                f"t{i}",
                seconds,
                cold_s=1.2 * seconds,
                reads=reads,
                writes=f"y{i}",
                stream=i % streams,
                priority=-(i % streams % 2),
                grid=40 + (i * 31) % 400,
                compute_share=0.5,
                memory_share=0.2 + 0.1 * (i % 6),
            )
        )
    return build(*timed)


def bench(name: str, count: int, streams: int, merge: bool = True) -> None:
    """Print one line of figures. `merge` as in `simulate`."""
    plan, costs = layered(count, streams)
    machine = gpu(sms=132, cache_bytes=10**5, host=host(dispatch_s=4e-6, record_s=1e-6, wait_s=1e-6, queue_depth=1000))
    scenario = Scenario(plan, machine, costs)
    for period in range(scenario.dependencies.steady + 1):
        scenario.dependencies.waits(period)
    bare, seconds = [], {"events alone": [], "from costs": [], "with the timeline": []}
    for _ in range(5):
        bare.append(bare_timeouts())
        gc.collect()
        gc.disable()
        begin = time.process_time()
        simulation = Simulation(scenario, merge=merge)
        ready = time.process_time()
        simulation.play()
        end = time.process_time()
        seconds["events alone"].append(end - ready)
        seconds["from costs"].append(end - begin)
        del simulation
        gc.enable()
        begin = time.process_time()
        timeline = simulate(plan, machine, costs, merge=merge)
        seconds["with the timeline"].append(time.process_time() - begin)
    tasks = len(timeline.spans)
    assert tasks >= 3 * count, "expected at least three periods"
    rates = [f"{tasks / min(each):9,.0f} tasks/s {what} ({tasks / min(each) / max(bare):.3f})" for what, each in seconds.items()]
    print(f"{name:32} {tasks:7,} tasks, bare SimPy {max(bare):9,.0f}/s: {', '.join(rates)}", flush=True)


def added_memory(count: int = 3_000) -> float:
    """MB by which one simulation of `count` tasks raises the peak of this process."""
    plan, costs = layered(count, 4)
    machine = gpu(sms=132, host=host(dispatch_s=4e-6))
    dependencies_of(plan, machine)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    simulate(plan, machine, costs)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    """Print all figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print(f"a plan of 3,000 tasks adds {added_memory():.0f} MB")
    bench("one stream and its host", count, 1)
    bench("the same, every task an event", count, 1, merge=False)
    bench("four contending streams", count, 4)


if __name__ == "__main__":
    main()
