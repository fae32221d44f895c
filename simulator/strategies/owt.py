"""One weird trick: convolutions by image, linear layers by channel.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014). Linear layers have most parameters and little to
compute, so each device stores a part of them and receives the activations of all images; all other layers use image parallelism. A
linear layer whose channels do not divide among the devices is divided by image as well. Batch-norm uses separate statistics on every
device.
"""

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.model.whole_mean import BATCH
from simulator.plan.plan import Plan
from simulator.strategies.sharding.configuration import STEP_CANDIDATES, Configuration, StepOptions, check_job
from simulator.strategies.sharding.configurations import nearest, place
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.plan import ShardedStep
from simulator.strategies.sharding.regions import is_linear_layer
from traces.process import gc_paused

NAME = "owt"
ABOUT = "one weird trick: linear layers divided by channel, all others by image"
LEAST_DEVICES = 2
CANDIDATES = STEP_CANDIDATES


Options = StepOptions


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Forward, backward and update of all layers on all devices.

    Raises SchedcastError if the machine has too few devices.
    """
    check_job(NAME, job, machine, options)
    with gc_paused():
        network = Network(job.graph(), job.loss_mean == BATCH)
        placed = [place(configuration, machine) for configuration in configurations(network, len(machine.devices))]
        return ShardedStep(NAME, job, machine, network, placed, options).plan()


def configurations(network: Network, devices: int) -> list[Configuration]:
    """The configuration of each layer."""
    by_image, by_channel = Configuration(n=devices), Configuration(c=devices)
    linear = [is_linear_layer(network.graph.ops[layer.main]) for layer in network.layers]
    return [
        by_channel if is_linear and by_channel in network.legal(number, devices) else nearest(network, number, by_image)
        for number, is_linear in enumerate(linear)
    ]
