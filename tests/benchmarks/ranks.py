"""Wall times of data parallelism on up to 64 GPUs: `python -m tests.benchmarks.ranks [ranks]...`.

ResNet-50 with 32 images of 224 x 224 pixels per GPU on nodes of 8 GPUs (DGX A100). Prints the time of each stage: the plan of the captured
graph, dependencies, costs, simulation to the last event, and the timeline with its memory and critical path. The time to capture the graph
(once per number of ranks, then cached on disk) is printed separately.
"""

import sys
import time

from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import Simulation
from simulator.machine.machine import Machine
from simulator.machine.presets import data, preset
from simulator.model.job import Job
from simulator.plan.dependencies import Dependencies
from simulator.strategies.data_parallel import Options, plan
from traces.process import gc_paused

PER_GPU, IMAGE_SIZE = 32, 224
CASES = {
    "25 MB buckets": Options(),
    "per gradient": Options(bucket=0),
    "forward-fusion": Options(update="forward-fusion"),
    "backward-fusion": Options(update="backward-fusion"),
    "no overlap": Options(overlap=False),
}


def machine_of(ranks: int) -> Machine:
    """So many A100 in nodes of 8."""
    return preset(f"{ranks} A100", data().machines["2xdgx-a100"], ranks)


class Laps:
    """Seconds between calls."""

    def __init__(self):
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Since the last call."""
        before, self._last = self._last, time.perf_counter()
        return self._last - before


def main(counts: list[int]):
    """Print a row per number of ranks and case."""
    print(f"{'ranks':>5}  {'case':16} {'capture':>8} {'plan':>6} {'check':>6} {'depend':>7} {'costs':>6} {'events':>7} {'timeline':>9} "
          f"{'sum':>6}  {'tasks':>8} {'step':>9}")  # fmt: skip
    for ranks in counts:
        machine = machine_of(ranks)
        job = Job("resnet50", ranks * PER_GPU, IMAGE_SIZE)
        for name, options in CASES.items():
            laps = Laps()
            job.graph(PER_GPU, ranks)
            seconds = [laps.lap()]
            model = CostModel(machine)
            made = plan(job, machine, model, options)
            seconds.append(laps.lap())
            made.validate(machine)
            seconds.append(laps.lap())
            dependencies = Dependencies(made)
            seconds.append(laps.lap())
            costs = model.resolve(made)
            seconds.append(laps.lap())
            with gc_paused():
                simulation = Simulation(made, machine, costs, "eager", None, dependencies, True, None)
                simulation.play()
                seconds.append(laps.lap())
                timeline = simulation.timeline()
            seconds.append(laps.lap())
            captured, planned, checked, derived, resolved, played, told = seconds
            print(f"{ranks:5}  {name:16} {captured:8.1f} {planned:6.1f} {checked:6.1f} {derived:7.1f} {resolved:6.1f} {played:7.1f} "
                  f"{told:9.1f} {sum(seconds):6.1f}  {len(timeline.spans):8,} {timeline.step_s * 1e3:6.1f} ms", flush=True)  # fmt: skip


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]] or [8, 16, 32, 64])
