"""Which devices of a plan work together: replicas, in each the devices that divide its tokens, and among these those that divide layers."""

from dataclasses import dataclass, replace

from simulator.engine.collectives.tasks import Group
from simulator.machine.machine import Machine
from simulator.model.division.divide import Division
from simulator.model.division.local import EXPERTS, TENSOR

#: Devices that run a collective together, and the numbers of those that the plan has.
Members = tuple[Group, range]


@dataclass(frozen=True)
class Mesh:
    """Devices `names` in a row, as [replica, part of the tokens, part of the layers].

    `size`: of the groups over which those that have the same part of the layers shard its parameters. `folded`: the plan has the first
    device only, which represents all. `priority`: of the groups' tasks.
    """

    machine: Machine
    names: tuple[str, ...]
    division: Division
    size: int
    folded: bool
    priority: int

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that the plan has."""
        return self.names[:1] if self.folded else self.names

    @property
    def replicas(self) -> int:
        """How many parts the batch has."""
        return len(self.names) // self.division.devices

    @property
    def copies(self) -> int:
        """How many devices have the same part of the layers."""
        return len(self.names) // self.division.degree

    @property
    def of_experts(self) -> "Mesh":
        """The same devices with those that divide experts as if they divided layers: how those that have the same experts shard them."""
        experts = self.division.experts
        return self if experts == 1 else replace(self, division=Division(experts), size=max(1, self.size // experts))

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
        groups = []
        for numbers in members[:1] if self.folded else members:
            names = tuple(self.names[at] for at in numbers)
            group = Group(self.machine, names, stream=stream, priority=self.priority, listed=int(self.folded))
            groups.append((group, numbers[: len(self.devices)]))
        return groups
