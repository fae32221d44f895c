"""Kernels, their shapes, and the SMs of one device, which `sms` shares among kernels."""

from dataclasses import dataclass
from typing import NamedTuple

from simulator.engine.clock import Signal
from simulator.engine.costs.cost import Cost


class Shape(NamedTuple):
    """What a kernel needs of SMs and memory.

    `need`, `last_need`: the most SMs that it can use, in all waves but the last and in the last. `x_need`, `x_last`: SMs with which it
    reaches full speed. A `held` kernel does not end by itself: it occupies its SMs until `Sms.leave`. `calls`: op calls of a CPU worker.
    `compute_share`: the share of the computing units that it takes alone, where kernels share SMs; else 0.
    """

    waves: int
    need: int
    last_need: int
    x_need: float
    x_last: float
    memory_share: float
    group: str
    held: bool = False
    calls: int = 1
    compute_share: float = 0.0


#: That of a kernel which has not been queued yet.
_NO_SHAPE = Shape(1, need=0, last_need=0, x_need=0.0, x_last=0.0, memory_share=0.0, group="")


def shape_of(cost: Cost, sms: int, saturation_share: float, shared: bool = False) -> Shape:
    """The shape of a kernel of this cost on a device of `sms` SMs.

    Blocks are dealt to SMs in turn, so in a wave of fewer blocks than SMs, each block takes an SM. Blocks of other kernels rarely fit on
    the same SM. On an H100, 30 pairs of ResNet-50's ops, repeated so that both take equally long, took 1.78 times as long together as one
    alone. This says 1.87, and packing blocks onto the fewest SMs 1.63 (averages weighted by how long the pairs run side by side under
    `turbodl`).

    `shared`: the blocks of a kernel that leaves places free are spread over all SMs, among those of others (`Device.sm`). "SMs" then means
    the places for blocks that this many SMs have, and kernels with places share the computing units.
    """
    per_wave = cost.blocks_per_sm * sms
    waves = max(1, -(-cost.grid // per_wave))
    blocks = max(1, cost.grid - (waves - 1) * per_wave)  # of the last wave
    last_need = -(-blocks // cost.blocks_per_sm) if shared else min(sms, blocks)
    need = last_need if waves == 1 else sms
    saturated = saturation_share * sms
    share, group = min(1.0, cost.memory_share), cost.group or cost.op_class
    compute = cost.compute_share if shared else 0.0
    return Shape(
        waves,
        need=need,
        last_need=last_need,
        x_need=min(float(need), max(cost.compute_share * need, saturated)),
        x_last=min(float(last_need), max(cost.compute_share * last_need, saturated)),
        memory_share=share,
        group=group,
        calls=cost.calls,
        compute_share=compute,
    )


@dataclass(slots=True, eq=False)
class Kernel:
    """The kernel that a lane runs or waits to run. A lane runs one kernel at a time, so it reuses one object. Only `Sms` changes it."""

    pool: "Pool"  # the SMs of its device
    signal: Signal  # what its lane waits for
    number: int = -1  # of its execution
    priority: int = 0
    order: tuple[int, float, int] = (0, 0.0, -1)  # among those that wait: (priority, arrival, issue)
    shape: Shape = _NO_SHAPE
    seconds: float = 0.0  # if it ran alone
    held: bool = False
    waves: int = 1
    memory_share: float = 0.0
    queued: bool = False  # whether it waits for SMs
    last: bool = True  # whether its last wave is placed
    goal: int = 0  # SMs that it wants
    full: float = 0.0  # SMs with which it reaches full speed
    sms: int = 0  # that it has
    freed_by: int = -1  # the execution whose SMs it got
    start_s: float = -1.0
    granted_s: float = -1.0
    rate: float = 0.0  # share of its solo speed, since `anchor_s`
    anchor_s: float = 0.0
    done: float = 0.0  # seconds of solo time done at `anchor_s`
    next_s: float = 0.0
    demand: float = 0.0
    factor: float = 1.0
    border: int = 0  # the last wave border that was seen
    at_border: bool = False  # whether that was just now
    next_border: int = 0
    ending: bool = False

    def progress(self, now_s: float) -> float:
        """Work done, in seconds of the solo time."""
        done = self.done + (now_s - self.anchor_s) * self.rate
        return done if done < self.seconds else self.seconds


class Pool:
    """The SMs of one device, or the cores of a CPU, and the kernels that wait for some.

    `wake_s`: how long a task waits for a sleeping worker; None for the SMs of a GPU. `interpreter_s`: how long a worker waits to get the
    interpreter back after an op call while another worker of the same `process` calls ops too.
    """

    __slots__ = ("awake", "awake_s", "free", "freed_by", "interpreter_s", "process", "queue", "wake_s")

    def __init__(self, sms: int, wake_s: float | None = None, interpreter_s: float = 0.0, process: str = ""):
        """All SMs are free."""
        self.free, self.wake_s, self.interpreter_s, self.process = sms, wake_s, interpreter_s, process
        self.queue: list[Kernel] = []
        self.freed_by = -1  # the execution that freed SMs last
        self.awake: list[Kernel] = []  # kernels that ended at `awake_s`: their workers look for another task
        self.awake_s = -1.0
