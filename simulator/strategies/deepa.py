"""Per-layer parallelism: each layer has its own division by images, channels, height and width (DeePa).

Jia et al., "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks", ICML 2018. Each worker of a layer computes an
equal part of its output, and stores the part of its parameters that this needs. Between layers of different configurations, each device
receives the data that it lacks. Batch-norm uses separate statistics for every part.
"""

from dataclasses import dataclass
from typing import Literal

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.model.whole_mean import BATCH
from simulator.plan.plan import Plan
from simulator.strategies.options import Count
from simulator.strategies.sharding import search
from simulator.strategies.sharding.configuration import STEP_CANDIDATES, Configuration, StepOptions, check_job
from simulator.strategies.sharding.configurations import place, read_configurations
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.plan import ShardedStep
from traces.process import gc_paused

NAME = "deepa"
ABOUT = "per-layer parallelism: each layer divided by images, channels, height and width as a file says or a search finds"
LEAST_DEVICES = 2
CANDIDATES = STEP_CANDIDATES
USES_COSTS = True

#: The most tasks of all simulated plans together: about 20 seconds.
_MOST_TASKS = 60_000


@dataclass(frozen=True)
class Options(StepOptions):
    """How layers are divided, and how gradients are reduced."""

    config: str = ""
    """A JSON file with the configuration of each layer (schedcast.configurations/1); empty: the best ones are searched."""
    simulated: Count = 3
    """How many of the best divisions that the search finds are simulated, to choose by what overlaps; 1: the smallest sum of costs."""
    cost: Literal["exact", "repaired"] = "exact"
    """What the search minimizes: costs of what really moves over the machine's links; or the paper's costs, on one pipe, repaired.

    repaired: the smallest sum of the paper's costs, whatever `simulated` says; between equal configurations, the bytes that really move.
    """


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Forward, backward and update of all layers in their configurations.

    Raises SchedcastError for a configuration that a layer cannot have, and if the machine has too few devices.
    """
    check_job(NAME, job, machine, options)
    with gc_paused():
        network = Network(job.graph(), job.loss_mean == BATCH)
        if options.config:
            return ShardedStep(NAME, job, machine, network, read_configurations(options.config, network, machine), options).plan()
        drafts: list[Plan] = []
        for division in _divisions(job, network, machine, costs, options):
            placed = [place(configuration, machine) for configuration in division]
            drafts.append(ShardedStep(NAME, job, machine, network, placed, options).plan())
            if sum(len(draft.tasks) for draft in drafts) + len(drafts[0].tasks) > _MOST_TASKS:
                break
        if costs is None or len(drafts) == 1:
            return drafts[0]
        from simulator.engine.scenario import Scenario
        from simulator.engine.simulation import Simulation

        scenarios = [Scenario(draft, machine, costs.resolve(draft), pair_multipliers=costs.pair_multipliers) for draft in drafts]
        return min(scenarios, key=lambda scenario: Simulation(scenario).play().step_s).plan


def _divisions(job: Job, network: Network, machine: Machine, costs: PlanCosts | None, options: Options) -> list[list[Configuration]]:
    """The divisions of all layers to choose from, the smallest sum of costs first. That sum hides no transfer behind computation."""
    tables = search.cost_tables(network, machine, costs, options.server, options.cost, (job.optimizer, job.form))
    several = (options.overlap or options.lag) and options.simulated > 1 and options.cost == search.EXACT
    return search.candidates(tables, options.simulated) if several else [search.cheapest_of(tables)]
