"""Task executions that the engine simulates per second, with the event rate of bare SimPy for comparison.

    python -m tests.benchmarks.bench_engine [tasks per period]

Prints executions per second over all simulated periods: for the events alone, after dependencies are derived and costs are resolved, and
for the whole call of `simulate`, with spans, memory and critical path. Also prints the memory that a simulation adds. Targets: 50,000
tasks/s on one stream, 25,000 on four contending streams, less than 300 MB for a plan of 3,000 tasks. Rates are the best of three runs,
since other processes only slow a run down.
"""

import gc
import resource
import sys
import time

import simpy

from simulator.engine.simulation import Simulation, simulate
from simulator.plan.dependencies import Dependencies
from tests.support.tiny import build, gpu, host, task


def bare_timeouts(count: int = 200_000) -> float:
    """Timeouts per second of one SimPy process."""
    env = simpy.Environment()

    def wait():
        for _ in range(count):
            yield env.timeout(1.0)

    env.process(wait())
    begin = time.perf_counter()
    env.run()
    return count / (time.perf_counter() - begin)


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


def bench(name: str, count: int, streams: int) -> None:
    """Print one line of figures."""
    plan, costs = layered(count, streams)
    machine = gpu(sms=132, cache_bytes=10**5, host=host(dispatch_s=4e-6, record_s=1e-6, wait_s=1e-6, queue_depth=1000))
    dependencies = Dependencies(plan)
    for period in range(dependencies.steady + 1):
        dependencies.waits(period)
    to_last_event, whole = [], []
    for _ in range(3):
        gc.collect()
        gc.disable()
        begin = time.perf_counter()
        simulation = Simulation(plan, machine, costs, "eager", None, dependencies, True, None)
        simulation.play()
        to_last_event.append(time.perf_counter() - begin)
        del simulation
        gc.enable()
        begin = time.perf_counter()
        timeline = simulate(plan, machine, costs, dependencies=dependencies)
        whole.append(time.perf_counter() - begin)
    tasks = len(timeline.spans)
    assert tasks >= 3 * count, "expected at least three periods"
    print(f"{name:28} {tasks:8,} tasks  {tasks / min(to_last_event):10,.0f} tasks/s  {tasks / min(whole):10,.0f} with the timeline")


def added_memory(count: int = 3_000) -> float:
    """MB by which one simulation of `count` tasks raises the peak of this process."""
    plan, costs = layered(count, 4)
    dependencies = Dependencies(plan)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    simulate(plan, gpu(sms=132, host=host(dispatch_s=4e-6)), costs, dependencies=dependencies)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    """Print all figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print(f"a plan of 3,000 tasks adds {added_memory():.0f} MB")
    print(f"bare SimPy: {bare_timeouts():,.0f} timeouts/s")
    bench("one stream and its host", count, 1)
    bench("four contending streams", count, 4)


if __name__ == "__main__":
    main()
