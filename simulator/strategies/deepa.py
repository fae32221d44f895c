"""Per-layer parallelism: each layer is divided by images, channels, height and width as suits it (DeePa).

Jia et al., "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks", ICML 2018. Each worker of a layer computes an
equal part of its output, and holds the part of its parameters that this needs. Between layers of different configurations, each device
gets what it lacks. Batch-norm uses separate statistics for every part.
"""

from dataclasses import dataclass

from simulator.costs.cost import PlanCosts
from simulator.job import Job
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.shards.configurations import place, read_configurations
from simulator.shards.network import Network
from simulator.shards.plan import ShardedStep, StepOptions, check_job
from traces.errors import StepcastError
from traces.garbage import gc_paused

NAME = "deepa"
ABOUT = "per-layer parallelism: each layer divided by images, channels, height and width as a file says or a search finds"
LEAST_DEVICES = 2
USES_COSTS = True


@dataclass(frozen=True)
class Options(StepOptions):
    """How layers are divided, and how gradients are reduced."""

    config: str = ""
    """A JSON file with the configuration of each layer (stepcast.configurations/1); empty: the best ones are searched."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Forward, backward and update of all layers in their configurations.

    Raises StepcastError for a configuration that a layer cannot have, and if the machine has too few devices.
    """
    check_job(NAME, job, machine, options)
    with gc_paused():
        network = Network(job.graph())
        if options.config:
            placed = read_configurations(options.config, network, machine)
        else:
            placed = [place(configuration, machine) for configuration in _searched(network, machine, costs, options)]
        return ShardedStep(NAME, job, machine, network, placed, options).plan()


def _searched(network: Network, machine: Machine, costs: PlanCosts | None, options: Options):
    try:
        from simulator.shards.search import best
    except ImportError as error:
        raise StepcastError(f"{NAME} needs config=FILE.json, the configuration of each layer") from error
    return best(network, machine, costs, options.server)
