"""Data-parallel ResNet-50 on T4s over Ethernet, predicted against AdaptDL's measured steps. Needs the shared data.

A case is (nodes, replicas, images per replica) on AWS g4dn.12xlarge (4 T4, 50 Gb/s) with PyTorch's DistributedDataParallel over NCCL.
`step` is the measured time, `sync` the part of it that waits for gradients. `data-parallel` predicts it with 25 MB buckets and rings,
without the copies of inputs:
(a) from data sheets alone: costs of the table in float32, links of the preset `16xg4dn-12xlarge`;
(b) with three numbers fitted on the smallest (nodes, replicas), which are not scored: a line of compute seconds by images (to step - sync),
and the bandwidth of the network (to step).
"""

import csv
import gzip
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, NETWORK, Machine
from simulator.machine.presets import load_machine
from simulator.model.graph import TrainingGraph
from simulator.model.job import Job
from simulator.plan.dependencies import Dependencies
from simulator.plan.plan import Plan
from simulator.strategies.data_parallel import Options, plan
from tests.support.shared_data import shared_folder

FILE, PRESET, PER_NODE = "t4_ddp_imagenet_step_and_sync.csv.gz", "16xg4dn-12xlarge", 4
#: Images per replica that are scored (others take their time, and say the same).
SCORED = (20, 81, 200)


class Sample(NamedTuple):
    """A measured step."""

    nodes: int
    replicas: int
    images: int
    step_s: float
    sync_s: float


class Times(NamedTuple):
    """A predicted step. `compute_s`: the first device computes; `sync_s`: it only waits for gradients."""

    step_s: float
    compute_s: float
    sync_s: float


def samples() -> list[Sample]:
    """All measured steps; none without the shared data."""
    folder = shared_folder("collectives")
    if folder is None or not (folder / FILE).is_file():
        return []
    with gzip.open(folder / FILE, "rt") as file:
        found = csv.DictReader(file)
        return [
            Sample(*(int(r[n]) for n in ("num_nodes", "num_replicas", "local_bsz")), float(r["step_time"]), float(r["sync_time"]))
            for r in found
        ]


class OneGraph(Job):
    """A job whose graph does not depend on the number of replicas, since the divisor of the loss does not change the time."""

    def graph(self, batch: int | None = None, parts: int | None = None, **others: Any) -> TrainingGraph:
        """The graph of one shard."""
        return super().graph(batch, 1, **others)


@cache
def placed(nodes: int, replicas: int) -> Machine:
    """The preset with `replicas` of its GPUs, spread evenly over its first nodes and renumbered."""
    whole = load_machine(PRESET)
    chosen = [PER_NODE * node + slot for node in range(nodes) for slot in range(replicas // nodes + (node < replicas % nodes))]
    names = {f"cuda:{place}": f"cuda:{index}" for index, place in enumerate(chosen)}
    bridges = {f"bridge {node}": f"bridge {node}" for node in range(nodes)}
    ends = {**names, **bridges, HOST: HOST, NETWORK: NETWORK}
    return replace(
        whole,
        devices=tuple(replace(d, name=names[d.name]) for d in whole.devices if d.name in names),
        hosts=tuple(replace(h, devices=(names[h.devices[0]],)) for h in whole.hosts if h.devices[0] in names),
        links=tuple(replace(k, source=ends[k.source], target=ends[k.target]) for k in whole.links if {k.source, k.target} <= ends.keys()),
    )


@cache
def _job(model: str, images: int) -> Job:
    return OneGraph(model, images)


class Planned(NamedTuple):
    """The parts of a prediction that do not depend on the placement of replicas."""

    plan: Plan
    dependencies: Dependencies
    costs: tuple


@lru_cache(maxsize=8)  # plans of 64 replicas are large
def planned(model: str, replicas: int, images: int) -> Planned:
    """The plan of a number of replicas, and its costs from data sheets."""
    machine = placed(replicas, replicas) if replicas <= 16 else placed(16, replicas)
    job = replace(_job(model, images), batch=images * replicas)
    costs = CostModel(machine)
    made = plan(job, machine, costs, Options(fetch=False))
    return Planned(made, Dependencies(made), tuple(costs.resolve(made)))


def predicted(
    nodes: int, replicas: int, images: int, slower: float = 1.0, network_bytes_per_s: float | None = None, model: str = "resnet50"
) -> Times:
    """The predicted step if kernels take `slower` times as long, with a network bandwidth (default: the preset's)."""
    made, machine = planned(model, replicas, images), placed(nodes, replicas)
    if network_bytes_per_s is not None:
        links = (replace(k, bandwidth_bytes_per_s=network_bytes_per_s) if NETWORK in (k.source, k.target) else k for k in machine.links)
        machine = replace(machine, links=tuple(links))
    costs = [replace(cost, warm_s=cost.warm_s * slower, cold_s=cost.cold_s * slower) for cost in made.costs]
    found = simulate(made.plan, machine, costs, dependencies=made.dependencies)
    return Times(found.step_s, found.devices[0].busy_share * found.step_s, found.exposed_transfer_s)


class Fitted(NamedTuple):
    """`compute_s`: intercept and seconds per image of one replica."""

    compute_s: tuple[float, float]
    network_bytes_per_s: float

    def slower(self, replicas: int, images: int) -> float:
        """The factor from data-sheet kernels to the fitted compute seconds."""
        start_s, per_image_s = self.compute_s
        return (start_s + per_image_s * images) / sum(c.cold_s for c in planned("resnet50", replicas, images).costs) * replicas


def fit(given: Sequence[Sample]) -> Fitted:
    """The three fitted numbers, by least squares of relative errors."""
    seconds = np.array([s.step_s - s.sync_s for s in given])
    columns = np.stack([1 / seconds, np.array([s.images for s in given]) / seconds], axis=1)
    compute_s = tuple(np.linalg.lstsq(columns, np.ones(len(given)), rcond=None)[0])

    def wrong(log_rate: float) -> float:
        tried = Fitted(compute_s, 10**log_rate)
        times = [predicted(s.nodes, s.replicas, s.images, tried.slower(s.replicas, s.images), tried.network_bytes_per_s) for s in given]
        return sum((t.step_s / s.step_s - 1) ** 2 for t, s in zip(times, given, strict=True))

    return Fitted(compute_s, float(10 ** minimize_scalar(wrong, bounds=(8, 10), method="bounded", options={"xatol": 0.02}).x))


def _summary(errors: Iterable[float]) -> str:
    found = sorted(map(abs, errors))
    return f"{statistics.median(found):7.1%} {found[-1]:7.1%}"


def main(images: Sequence[int]):
    """Fit, then print a row per (nodes, replicas) with the measured and both predicted steps, and the errors by group."""
    data = samples()
    if not data:
        print("the shared data are not here")
        return
    smallest = min((s.nodes, s.replicas) for s in data)
    fitted = fit([s for s in data if (s.nodes, s.replicas) == smallest])
    start_s, per_image_s = fitted.compute_s
    print(f"(b) fitted on {smallest[0]} nodes with {smallest[1]} replicas")
    print(
        f"    compute {start_s * 1e3:.0f} ms and {per_image_s * 1e3:.2f} ms per image, network {fitted.network_bytes_per_s / 1e9:.2f} GB/s"
    )
    errors: dict[str, dict[tuple, tuple[float, float]]] = {"a": {}, "b": {}}
    print("nodes replicas images   measured step (sync)   (a) step (sync)  error   (b) step (sync)  error   [ms]")
    rows = {}
    for s in sorted((s for s in data if s.images in images), key=lambda s: (s.replicas, s.images, s.nodes)):  # by plan
        sheet = predicted(s.nodes, s.replicas, s.images)
        both = predicted(s.nodes, s.replicas, s.images, fitted.slower(s.replicas, s.images), fitted.network_bytes_per_s)
        for name, times in (("a", sheet), ("b", both)):
            if (s.nodes, s.replicas) != smallest:
                errors[name][s] = (times.step_s / s.step_s - 1, (times.sync_s - s.sync_s) / s.step_s)
        shown = "".join(f"{t.step_s * 1e3:10.0f} ({t.sync_s * 1e3:4.0f}) {t.step_s / s.step_s - 1:+7.0%}" for t in (sheet, both))
        rows[s] = f"{s.nodes:5} {s.replicas:8} {s.images:6} {s.step_s * 1e3:12.0f} ({s.sync_s * 1e3:4.0f})  {shown}"
    print("\n".join(rows[s] for s in sorted(rows)))
    print("|error| of the step: median, worst; and of sync by the step: median, worst")
    groups = {f"{n} nodes": lambda s, n=n: s.nodes == n for n in sorted({s.nodes for s in data})}
    groups |= {f"{n} images": lambda s, n=n: s.images == n for n in images}
    groups |= {
        "1 GPU per node": lambda s: s.replicas == s.nodes,
        "more per node": lambda s: s.replicas > s.nodes,
        "all": lambda s: True,
    }
    for title, chosen in groups.items():
        row = [[pair for s, pair in found.items() if chosen(s)] for found in errors.values()]
        if row[0]:
            text = "   ".join(f"({n}) {_summary(e for e, _ in r)} | {_summary(e for _, e in r)}" for n, r in zip(errors, row, strict=True))
            print(f"{title:15} {len(row[0]):4} steps   {text}")


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]] or SCORED)
