"""Pipelined back-propagation with stale weights and one copy of them ("Pipelined Training with Stale Weights of Deep CNNs", 2019).

A mini-batch enters in every cycle. Stage i of K + 1 (from 1) runs its forward i - 1 cycles later, and its backward 2K + 1 - i cycles later.
"""

from dataclasses import dataclass
from typing import Literal

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies.pipeline.asynchronous import Cycle, asynchronous
from simulator.strategies.pipeline.planning import StageOptions, devices_of, stages_in
from traces.errors import Code, SchedcastError

NAME = "stale-pipeline"
FAMILY = "pipelines"
ABOUT = "pipeline of mini-batches with stale weights: one copy of the weights, a new mini-batch in every cycle"
USES_COSTS = True
LEAST_DEVICES = 2
CANDIDATES = ("first=backward", "backward_weights=stashed", "first=backward,backward_weights=stashed")


@dataclass(frozen=True)
class Options(StageOptions):
    """How the model is cut, and where the stages run."""

    on: Literal["folded", "unfolded", "simulated"] = "folded"
    """folded: a stage's forward and backward share a device; unfolded: 2S - 1 devices, only the last stage's share one (as the paper's
    accelerators); simulated: all stages on one device, which computes the same."""
    first: Literal["forward", "backward"] = "forward"
    """What a cycle begins with; backward makes the weights of all but the last stage one update less stale."""
    backward_weights: Literal["current", "stashed"] = "current"
    """Weights of a backward: the current ones (one copy, as in the paper), or those that the mini-batch's forward read."""
    sends: Literal["direct", "staged"] = "direct"
    """How GPUs send: on separate streams, concurrently with computation, or staged: copied to the host's memory and from it, in the order
    of computations, and each GPU's host waits, as `.cpu()` and `.cuda()` do (section 5 of the paper; predicted only)."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """One mini-batch enters per period. Raises SchedcastError for too few devices."""
    return stale(NAME, job, machine, costs, options, *devices(NAME, machine, options))


def stale(
    name: str,
    job: Job,
    machine: Machine,
    costs: PlanCosts | None,
    options: Options,
    forward: tuple[str, ...],
    backward: tuple[str, ...],
) -> Plan:
    """Plan the pipeline for the strategy called `name`. `forward`, `backward`: as `devices` returns them."""
    stages = len(forward)
    cycle = Cycle(
        tuple(range(stages)),
        tuple(2 * (stages - 1) - stage for stage in range(stages)),
        options.first == "backward",
    )
    return asynchronous(
        name,
        job,
        machine,
        costs=costs,
        options=options,
        cycle=cycle,
        forward=forward,
        backward=backward,
        weights=options.backward_weights,
        staged=options.sends == "staged",
    )


#: The most stages that one device simulates: no model has that many layers.
MOST_STAGES = 10_000


def devices(name: str, machine: Machine, options: Options) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The devices of each stage's forward, and of its backward, for the strategy called `name`."""
    wanted = stages_in(options, name)
    if options.on == "simulated":
        if wanted > MOST_STAGES:
            raise SchedcastError(f"{name}: stages is {wanted}, and no model has so many layers; choose at most {MOST_STAGES}")
        alone = (machine.devices[0].name,) * (wanted or 2)
        return alone, alone
    if options.on == "folded":
        folded = devices_of(machine, wanted, name)
        return folded, folded
    count = 2 * wanted - 1 if wanted else len(machine.devices)
    if count < 3 or count % 2 == 0:
        raise SchedcastError(
            f"{name}:on=unfolded needs an odd number of devices, 2S - 1 for S stages, and at least 3, not {count}; use --devices 3,"
            " or on=folded",
            Code.DEVICES,
        )
    names = devices_of(machine, count, name)
    stages = (count + 1) // 2
    return names[:stages], tuple(names[count - 1 - stage] for stage in range(stages))
