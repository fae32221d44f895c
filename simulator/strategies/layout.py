"""Which devices of a plan work together, and on what.

All devices are in a row, as [stage, replica, part of the tokens, part of the layers]. For example, two stages with two replicas each, whose
layers two devices divide:

    stage 0   replica 0   gpu:0 gpu:1   gpu:0 and gpu:1 divide the layers of the same microbatches
              replica 1   gpu:2 gpu:3   gpu:0 and gpu:2 have the same part of the layers: they sum their gradients, or shard its parameters
    stage 1   replica 0   gpu:4 gpu:5   gpu:0 and gpu:4 are stages of one pipeline
              replica 1   gpu:6 gpu:7

Replicas of a stage are neighbors, which is Megatron-LM's default order, data parallelism inside and the pipeline outside ("Efficient
Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", Narayanan et al., 2021): gradients have many bytes and stay inside a
node if possible; activations have fewer and cross nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.engine.collectives.rounds import RING, Algorithm
from simulator.engine.collectives.tasks import Group
from simulator.machine.machine import Machine
from simulator.model.division.divide import UNDIVIDED, Division
from simulator.model.division.local import EXPERTS, TENSOR
from simulator.plan.task import DeviceClass

#: Devices that run a collective together, and the numbers of those that the plan has.
Members = tuple[Group, Sequence[int]]


@dataclass(frozen=True)
class Layout:
    """Devices `names` in a row, as [stage, replica, part of the tokens, part of the layers].

    `division`: how many divide the tokens, and how many the layers. `size`: of the groups over which those that have the same part of the
    layers shard its parameters. `folded`: the plan has the first device of each stage only, for all of the stage (`classes`). `priority`:
    of the groups' tasks.

    >>> from simulator.machine.presets import load_machine
    >>> machine = load_machine("8xh100")
    >>> layout = Layout(machine, tuple(device.name for device in machine.devices), Division(2), size=2, stages=2)
    >>> (layout.replicas, layout.stage(1).names)
    (2, ('cuda:4', 'cuda:5', 'cuda:6', 'cuda:7'))
    >>> [group.devices for group, _ in layout.stage(0).sharding(stream=0)]
    [('cuda:0', 'cuda:2'), ('cuda:1', 'cuda:3')]
    """

    machine: Machine
    names: tuple[str, ...]
    division: Division = UNDIVIDED
    size: int = 1
    folded: bool = False
    priority: int = 0
    stages: int = 1

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that the plan has."""
        return self.names[:: len(self.names) // self.stages] if self.folded else self.names

    @property
    def classes(self) -> tuple[DeviceClass, ...]:
        """Those of a folded plan: one for each stage."""
        each = len(self.names) // self.stages
        return tuple(DeviceClass(first, self.names[n * each : (n + 1) * each]) for n, first in enumerate(self.devices) if self.folded)

    @property
    def replicas(self) -> int:
        """How many parts the batch has."""
        return self.copies // self.division.context

    @property
    def copies(self) -> int:
        """How many devices have the same part of the layers of a stage."""
        return len(self.names) // self.stages // self.division.degree

    @property
    def semantics(self) -> dict[str, object]:
        """What the semantics of a plan of one stage say if it has only one of the devices that take part."""
        return {"folded": f"{self.names[0]} stands for {len(self.names)} devices, which do the same"} if self.folded else {}

    @property
    def of_experts(self) -> "Layout":
        """The same devices with those that divide experts as if they divided layers: how those that have the same experts shard them."""
        experts = self.division.experts
        return self if experts == 1 else replace(self, division=Division(experts), size=max(1, self.size // experts))

    def stage(self, number: int) -> "Layout":
        """The devices of one stage."""
        each = len(self.names) // self.stages
        return replace(self, names=self.names[number * each : (number + 1) * each], stages=1)

    def all(self, stream: int, algorithm: Algorithm = RING, root: str = "", priority: int | None = None) -> Group:
        """All devices; `algorithm`, `root`: as in `Group`. `priority`: of its tasks, if it is not the layout's."""
        priority = self.priority if priority is None else priority
        return Group(self.machine, self.names, algorithm, root, stream=stream, priority=priority, listed=int(self.folded))

    def across(self, stream: int) -> list[Members]:
        """The groups of devices that have the same part of the layers and tokens, one of each replica."""
        each = self.division.devices
        return self._groups([range(rank, len(self.names), each) for rank in range(each)], stream)

    def sharding(self, stream: int) -> list[Members]:
        """The groups that parameters are sharded over."""
        degree = self.division.degree
        length = self.size * degree
        starts = [n + rank for n in range(0, len(self.names), length) for rank in range(degree)]
        return self._groups([range(n, n + length - n % degree, degree) for n in starts], stream)

    def same_shards(self, stream: int) -> list[Members]:
        """The groups of devices that have the same shards."""
        length = self.size * self.division.degree
        return self._groups([range(rank, len(self.names), length) for rank in range(length)], stream)

    def dividing(self, what: str, stream: int) -> list[Members]:
        """The groups that divide layers (`division.local.TENSOR`), tokens (CONTEXT), or experts (EXPERTS)."""
        degree, each = self.division.degree, self.division.devices
        if what == EXPERTS:
            return self._groups([range(n, n + self.division.experts) for n in range(0, len(self.names), self.division.experts)], stream)
        if what == TENSOR:
            return self._groups([range(n, n + degree) for n in range(0, len(self.names), degree)], stream)
        starts = [n + rank for n in range(0, len(self.names), each) for rank in range(degree)]
        return self._groups([range(n, n + each - n % degree, degree) for n in starts], stream)

    def _groups(self, members: list[range], stream: int) -> list[Members]:
        """Groups with these numbers; of a folded plan, the first one."""
        groups: list[Members] = []
        for numbers in members[:1] if self.folded else members:
            own = replace(self, names=tuple(self.names[at] for at in numbers))
            groups.append((own.all(stream), numbers[: len(self.devices)]))
        return groups
