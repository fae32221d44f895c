"""Measure how long a user waits: for the help, a refusal, a cached prediction and a capture; and the memory that a simulation adds.

Targets on an idle machine: help and refusals 0.5 s, a prediction from a cached graph 1.5 s, capturing ResNet-50 8 s, reading it from the
cache 1 s, simulating ResNet-152 300 MB.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from tests.support.jobs import planned

COMMAND = "from ui.cli import main; main()"
PREDICT = ("predict", "--batch", "16", "--machine", "h100")
CACHED = (*PREDICT, "--model", "resnet18", "--strategy", "backward-fusion")
REFUSED = {
    "an unknown model": (*PREDICT, "--model", "resnet5", "--strategy", "baseline"),
    "an unknown strategy": (*PREDICT, "--model", "resnet18", "--strategy", "basline"),
    "an unknown option": (*PREDICT, "--model", "resnet18", "--strategy", "backward-fusion:speed=9"),
}


def command_s(arguments: tuple[str, ...], status: int = 0, repeats: int = 5) -> float:
    """Return the median wall time of whole processes."""
    times_s = []
    for _ in range(repeats):
        begin_s = time.perf_counter()
        process = subprocess.run([sys.executable, "-c", COMMAND, *arguments], check=False, capture_output=True)
        times_s.append(time.perf_counter() - begin_s)
        if process.returncode != status:
            raise RuntimeError(process.stderr.decode())
    return statistics.median(times_s)


def peak_mb() -> float:
    """Return the highest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SCHEDCAST_CACHE"] = cache
        print(f"schedcast --help: {command_s(('--help',)):.2f} s")
        for what, arguments in REFUSED.items():
            print(f"refusing {what}: {command_s(arguments, status=2):.2f} s")
        for what, repeats in (("captured", 1), ("from the disk cache", 5)):
            print(f"predicting resnet18 (batch 16) {what}: {command_s(CACHED, repeats=repeats):.2f} s")
        begin_s = time.perf_counter()
        import torch  # noqa: F401

        print(f"import torch: {time.perf_counter() - begin_s:.2f} s")
        from simulator.engine.costs.model import CostModel
        from simulator.machine.presets import load_machine
        from simulator.model.job import Job
        from simulator.predict.forecast import forecast
        from simulator.predict.target import Target

        for what in ("captured", "from the disk cache"):
            begin_s = time.perf_counter()
            graph = Job("resnet50", 32).graph()
            print(f"resnet50 (batch 32, 224 px, {len(graph.ops)} ops) {what}: {time.perf_counter() - begin_s:.2f} s")
        job = Job("resnet152", 32)
        machine = load_machine("h100")
        model = CostModel(machine)
        plan = planned("forward-fusion", job, machine, model)
        before_mb = peak_mb()
        predicted = forecast(plan, Target(machine, model))
        print(
            f"resnet152 under forward-fusion on h100: {len(predicted.timeline.spans)} tasks simulated in"
            f" {predicted.simulate_wall_s:.2f} s, adding {peak_mb() - before_mb:.0f} MB to a process of {before_mb:.0f} MB"
        )


if __name__ == "__main__":
    main()
