"""Random simulations that use every mechanism of the engine: hosts, streams, priorities, links, collectives, graphs, caches and lags."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.engine.costs.cost import Cost
from simulator.machine.machine import HostLane, Link, Machine
from simulator.plan.bodies.copy import Collective
from simulator.plan.bodies.host import Host, Synchronize
from simulator.plan.plan import Plan
from tests.support.tiny import build, copy, cpu, gpu, task

#: Times that often coincide, so that many things happen at one instant.
COARSE_S = (0.0, 0.25, 0.5, 0.5, 1.0, 1.0, 1.75, 3.0)


@dataclass(frozen=True)
class Run:
    """The arguments of one call of `simulate`."""

    plan: Plan
    machine: Machine
    costs: Sequence[Cost]
    options: dict[str, Any]


def random_run(seed: int, tasks: int = 24, coarse: bool | None = None) -> Run:
    """One random run of at most `tasks` tasks. `coarse`: whether times are of `COARSE_S` (None: by the seed)."""
    rng = random.Random(seed)
    coarse = rng.random() < 0.5 if coarse is None else coarse
    devices = ("p", "q")[: rng.choice((1, 2, 2))]
    kind = rng.choice(("cpu", "gpu", "gpu"))
    mode = rng.choice(("eager", "graph")) if kind == "gpu" else "eager"
    machine = _cpu(rng, devices) if kind == "cpu" else _gpu(rng, devices, mode, coarse)
    shared = len(devices) == 2 and machine.device("p").memory == machine.device("q").memory
    timed = _tasks(rng, devices, rng.randint(3, tasks), coarse, shared, mode == "eager")
    plan, costs = build(*timed)
    options = {
        "mode": mode,
        "iterations": rng.choice((None, None, 1, 2, 5)),
        "use_cache": rng.random() < 0.5,
        "pair_multipliers": {("a", "b"): 1.5} if rng.random() < 0.2 else None,
    }
    return Run(plan, machine, costs, options)


def _tasks(rng: random.Random, devices, count: int, coarse: bool, shared: bool, eager: bool):
    streams = rng.randint(1, 4)
    written: dict[str, list[str]] = {device: [] for device in devices}
    timed = []
    for i in range(count):
        on = rng.choice(devices)
        reads = [f"x{on}", *rng.sample(written[on], min(len(written[on]), rng.choice((0, 0, 1, 1, 2))))]
        lag = rng.choice((0, 0, 0, 0, 1, 2)) if i else 0
        kind = rng.random()
        name, made = f"t{i}", f"y{i}"
        if kind < 0.12 and len(devices) == 2:
            other = devices[1 - devices.index(on)]
            timed.append(copy(name, on, other, reads[-1], made, stream=rng.choice((0, 5)), priority=rng.randint(-2, 0), lag=lag))
            written[other].append(made)
            continue
        if kind < 0.18 and len(devices) == 2 and not shared and written["p"] and written["q"]:
            sums = f"{rng.choice(written['p'])} {rng.choice(written['q'])}"
            body = Collective("all-reduce", devices)
            timed.append(task(name, 0.0, mutates=sums, on="p", stream=6, lag=lag, phase="collective", body=body))
            continue
        seconds = rng.choice(COARSE_S) if coarse else rng.uniform(0.01, 2.0)
        timed.append(
            task(
                name,
                seconds,
                cold_s=seconds * rng.choice((1.0, 1.0, 1.5)),
                reads=" ".join(reads),
                writes=made,
                mutates=rng.choice(("", "", "", f"w1{on}", f"w2{on}")),
                on=on,
                stream=rng.randrange(streams),
                priority=rng.randint(-2, 0),
                lag=lag,
                body=Host(seconds) if kind > 0.95 else Synchronize() if kind > 0.9 and eager else None,
                grid=rng.randint(1, 40),
                blocks_per_sm=rng.randint(1, 2),
                compute_share=rng.choice((0.2, 1.0)),
                memory_share=rng.choice((0.0, 0.3, 0.7)),
                group=rng.choice(("a", "b")),
                launches=rng.choice((1, 1, 1, 2)),
            )
        )
        written[on].append(made)
    return timed


def _links(rng: random.Random) -> tuple[Link, ...]:
    rate = rng.choice((100.0, 400.0, 1000.0))
    return (Link("p", "q", rng.choice((0.0, 0.25)), rate, duplex=rng.random() < 0.5),)


def _cpu(rng: random.Random, devices) -> Machine:
    links = _links(rng) if len(devices) == 2 and rng.random() < 0.5 else ()
    machine = cpu(*devices, cores=rng.randint(1, 3), overhead_s=rng.choice((0.0, 0.125)), links=links, cache_bytes=rng.choice((0, 1000)))
    wake_s = rng.choice((0.0, 0.0, 0.0625))
    return replace(machine, devices=tuple(replace(device, wake_s=wake_s) for device in machine.devices))


def _gpu(rng: random.Random, devices, mode: str, coarse: bool) -> Machine:
    def seconds(*choices: float) -> float:
        return rng.choice((0.0, *choices)) * (1.0 if coarse else rng.uniform(0.5, 1.0))

    times = {
        "dispatch_s": seconds(0.125, 0.5), "record_s": seconds(0.0625), "wait_s": seconds(0.0625), "graph_launch_s": seconds(0.5),
        "node_gap_s": seconds(0.125), "cross_gap_s": seconds(0.25), "callback_s": seconds(0.125), "switch_s": seconds(0.0625),
    }  # fmt: skip
    lane = HostLane("host", devices, **times, queue_depth=rng.choice((1, 2, 3, 8, 100)), graph_iterations=rng.randint(1, 4))
    hosted = mode == "graph" or rng.random() < 0.8
    links = _links(rng) if len(devices) == 2 else ()
    memory = "hbm" if len(devices) == 2 and rng.random() < 0.3 else ""
    return gpu(*devices, host=lane if hosted else None, links=links, memory=memory, cache_bytes=rng.choice((0, 1000)))
