"""What a candidate takes and holds at least, known before it is planned: no plan is made of one that cannot fit or win.

A strategy says which share of a microbatch's ops, activations and parameters a device has (`Strategy.portion`). A step takes no less time
than these ops one after another on one stream, and while they run, their activations are held beside the device's share of the parameters.
"""

from typing import Any, NamedTuple

from simulator.engine.memory.over_time import carried_bytes, least_bytes
from simulator.model.division.local import COLLECTIVES
from simulator.predict.search.bound import work_bound
from simulator.predict.search.setup import Setup
from simulator.strategies.baseline import Options
from simulator.strategies.data_parallel import replica_builders
from simulator.strategies.options import Portion
from simulator.strategies.registry import Strategy


class Least(NamedTuple):
    """Seconds of a step, and bytes by memory, that no plan of a candidate is below."""

    step_s: float
    memory_bytes: dict[str, int]


class _Microbatch(NamedTuple):
    """One microbatch on one device: its seconds on the stream, the bytes that it makes, and those of all parameters and optimizer state."""

    seconds: float
    made_bytes: int
    carried_bytes: int


def least(setup: Setup, strategy: Strategy, options: Any) -> Least | None:
    """What a candidate takes and holds at least; None if that is not known without a plan. `setup`: with the candidate's job."""
    job, memory = setup.job, setup.machine.devices[0].memory
    portion = strategy.portion(job, setup.machine, options)
    if portion is None or job.batch % (portion.replicas * portion.microbatches):
        return None
    key = (portion.replicas * portion.microbatches, job.checkpoint, portion.division)
    if key not in setup.microbatches:
        setup.microbatches[key] = _microbatch(setup, portion)
    own: _Microbatch = setup.microbatches[key]
    held_bytes = int(portion.made * own.made_bytes + portion.held * own.carried_bytes)
    return Least(portion.runs * own.seconds, {memory: held_bytes})


def _microbatch(setup: Setup, portion: Portion) -> _Microbatch:
    machine, names = setup.machine, [device.name for device in setup.machine.devices]
    job = setup.job.varied(accumulate=portion.microbatches)
    (builder,) = replica_builders(job, names[:1], portion.replicas, division=portion.division)
    graph = builder.graph
    # What casts parameters may run beside the rest, on shards; so may collectives.
    own = [index for index, op in enumerate(graph.ops) if index not in graph.casts and op.body.target not in COLLECTIVES]
    tasks = builder.ops(own, builder.microbatches[0])
    plan = builder.plan("microbatch", tasks, Options())
    made = least_bytes(plan, machine)[machine.devices[0].memory] - carried_bytes(plan)[names[0]]
    update = builder.update(graph.parameters, "update")
    seconds = work_bound(plan, machine, setup.model.resolve(plan), setup.model.pair_multipliers).step_s
    return _Microbatch(seconds, made, sum(operand.bytes for operand in update.mutates))
