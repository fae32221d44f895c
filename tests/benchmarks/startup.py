"""Times of `stepcast --help`, of capturing ResNet-50 and of reading it from the cache, and the memory to simulate ResNet-152.

Targets: help in less than 0.5 s, capture in less than 8 s, cache in less than 1 s, simulation in less than 300 MB.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HELP = "from ui.cli import main; main()"


def help_s() -> float:
    """Median time of five processes."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", HELP, "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def peak_mb() -> float:
    """Highest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the figures."""
    print(f"stepcast --help: {help_s():.2f} s")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["STEPCAST_CACHE"] = cache
        begin = time.perf_counter()
        import torch  # noqa: F401

        print(f"import torch: {time.perf_counter() - begin:.2f} s")
        from simulator.costs.model import CostModel
        from simulator.job import Job
        from simulator.machine.presets import load_machine
        from simulator.predict.forecast import forecast
        from simulator.strategies import registry as strategies

        for what in ("captured", "from the disk cache"):
            begin = time.perf_counter()
            graph = Job("resnet50", 32).graph()
            print(f"resnet50 (batch 32, 224 px, {len(graph.ops)} ops) {what}: {time.perf_counter() - begin:.2f} s")
        job = Job("resnet152", 32)
        machine = load_machine("h100")
        model = CostModel(machine)
        strategy, options = strategies.parse("forward-fusion")
        plan = strategy.plan(job, machine, model, options)
        before = peak_mb()
        found = forecast(plan, machine, model)
        print(
            f"resnet152 under forward-fusion on h100: {len(found.timeline.spans)} tasks simulated in {found.simulate_wall_s:.2f} s,"
            f" adding {peak_mb() - before:.0f} MB to a process of {before:.0f} MB"
        )


if __name__ == "__main__":
    main()
