"""A transfer between two devices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from simulator.plan.task import Body, Operand, Resource, Task, Value, Work

#: How bytes get from one device to the other: over the machine's links; by a kernel of the task's device, if both devices share one
#: memory; or not at all, because the target is a second name for the source's memory.
Means = Literal["link", "kernel", "alias"]
LINK: Final = "link"
KERNEL: Final = "kernel"
ALIAS: Final = "alias"


@dataclass(frozen=True, slots=True)
class Copy(Body):
    """Copy each of `reads`, on device `source`, to the write or the mutated operand at the same position, on device `target`.

    With `add`, add it to the mutated operand. `means` is "link", "kernel" or "alias". The bytes of a "kernel" also pass the link
    that the machine states between the two devices, if it states one.
    """

    source: str
    target: str
    add: bool = False
    means: Means = LINK
    kind: Literal["copy"] = "copy"

    crosses_devices = True
    is_copy = True

    @property
    def resource(self) -> Resource:
        """The links, or the SMs of the kernel that copies."""
        return Resource.COMPUTE if self.means == KERNEL else Resource.LINK

    @property
    def aliases(self) -> bool:
        """Whether the target is a second name for the source's memory."""
        return self.means == ALIAS

    @property
    def ends(self) -> tuple[str, str]:
        """Source and target."""
        return self.source, self.target

    def moved_bytes(self, task: Task) -> int:
        """Bytes of all reads."""
        return sum(operand.bytes for operand in task.reads)

    def key(self, task: Task) -> str:
        """Route and bytes; for a kernel, what it does, dtype, bytes and number of tensors."""
        moved = self.moved_bytes(task)
        if self.means == KERNEL:
            return f"copy|{'add' if self.add else 'put'}|{task.reads[0].dtype}|{moved}|{len(task.reads)}"
        return f"copy|{self.source}>{self.target}|{moved}"

    def work(self, task: Task) -> Work:
        """Bytes read and written, and with `add` one FLOP per element."""
        moved = self.moved_bytes(task)
        if self.means == KERNEL:
            added = float(sum(operand.elements for operand in task.reads)) if self.add else 0.0
            return Work("elementwise", added, (3.0 if self.add else 2.0) * moved)
        return Work("copy", 0.0, 2.0 * moved)

    def faults(self, task: Task, values: Mapping[str, Value]) -> Iterator[str]:
        """Reads and targets that do not pair up, or that lie on other devices than `source` and `target`."""
        targets = task.mutates or task.writes
        if len(task.reads) != len(targets) or not targets:
            yield f"copies {len(task.reads)} operands to {len(targets)}; expected as many, and at least one"
            return
        source, target = (values[o.value].device if o.value in values else "nowhere" for o in (task.reads[0], targets[0]))
        if (source, target) != self.ends:
            yield f"copies from {self.source} to {self.target}, but its values lie on {source} and {target}"


# One process's half of a copy between the devices of two processes: the send or the receive.


@dataclass(frozen=True, slots=True)
class Message(Body):
    """Send the `reads` to the process of device `target`, or receive them from that of `source`.

    It occurs only in the share of a plan that a process runs (`collectives.local_plan`), where it replaces a `Copy` of the whole plan. The
    task on `source` has only the reads, the one on `target` the writes, or the mutated operands, of the copy; with `add`, the received
    values are added to them. `channel`: the stream on which the target receives, which no other direction uses. `strides`: those of each
    tensor on the target. Elements travel in that order.
    """

    source: str
    target: str
    channel: int
    strides: tuple[tuple[int, ...], ...]
    add: bool = False
    kind: Literal["message"] = "message"

    resource = Resource.LINK
    crosses_devices = True
    waits_for_peers = True

    @property
    def ends(self) -> tuple[str, str]:
        """Source and target."""
        return self.source, self.target

    def sends(self, task: Task) -> bool:
        """Whether this is the sender's half."""
        return task.device == self.source

    def moved_bytes(self, task: Task) -> int:
        """Bytes of all tensors."""
        return sum(operand.bytes for operand in task.reads or task.writes or task.mutates)

    def key(self, task: Task) -> str:
        """Direction, route and bytes."""
        return f"message|{'send' if self.sends(task) else 'receive'}|{self.source}>{self.target}|{self.moved_bytes(task)}"

    def work(self, task: Task) -> Work:
        """Bytes read or written."""
        return Work("copy", 0.0, float(self.moved_bytes(task)))

    def faults(self, task: Task, values: Mapping[str, Value]) -> Iterator[str]:
        """A device that is neither the sender nor the receiver."""
        if task.device not in self.ends:
            yield f"is a message from {self.source} to {self.target}; expected to run on one of them"


# An operation of several devices at the same time, run by a library of collectives (NCCL, gloo).


ALL_REDUCE: Final = "all-reduce"
REDUCE_SCATTER: Final = "reduce-scatter"
ALL_GATHER: Final = "all-gather"
ALL_TO_ALL: Final = "all-to-all"
Operation = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]
Algorithm = Literal["ring", "tree", "distributed", "server"]


@dataclass(frozen=True, slots=True)
class Collective(Body):
    """Run `operation` over `devices`, which are in rank order. The task lists its operands device by device, equally many for each:

    all-reduce      `mutates` become their sum on every device
    reduce-scatter  each read of a device has n equal chunks; rank r writes the sums of the chunks r. Or, in place, chunk r of what rank r
                    mutates becomes the sum, and nobody reads the other chunks any more
    all-gather      each read of rank r becomes chunk r of what every device writes
    all-to-all      chunk r of what rank s reads becomes chunk s of what rank r writes; predicted only

    `algorithm` says which way the bytes travel ("ring", "tree", "distributed" or "server"), from which the time on links is derived; a
    library may use a better one. `root` is the root of a "server": a device, or the host.

    `listed`: the task lists only the operands of the first `listed` devices, which represent the others in the plan (`DeviceClass`); 0: of
    all. `times`: the task represents this many, one after another, each with operands like these.
    """

    operation: Operation
    devices: tuple[str, ...]
    algorithm: Algorithm = "ring"
    root: str = ""
    listed: int = 0
    times: int = 1
    kind: Literal["collective"] = "collective"

    resource = Resource.COLLECTIVE
    crosses_devices = True
    waits_for_peers = True

    @property
    def launches(self) -> int:
        """A kernel for each."""
        return self.times

    @property
    def name(self) -> str:
        """The operation, and the algorithm if the library must follow it: "server" is a sum at the root and a broadcast."""
        return f"{self.operation}>{self.algorithm}" if self.algorithm == "server" else self.operation

    def share(self, device: str, operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        """One device's part of the task's reads, writes or mutated operands."""
        count, rank = len(operands) // (self.listed or len(self.devices)), self.devices.index(device)
        return operands[rank * count : (rank + 1) * count]

    def payload_bytes(self, task: Task) -> int:
        """Bytes of the whole that is summed or gathered, on one device, each time."""
        whole = task.writes if self.operation == ALL_GATHER else task.mutates or task.reads
        return sum(operand.bytes for operand in self.share(self.devices[0], whole))

    def key(self, task: Task) -> str:
        """Operation, algorithm, devices, bytes and number of tensors, and how many times."""
        count = (len(task.mutates) or len(task.reads)) // (self.listed or len(self.devices))
        algorithm = f"{self.algorithm}{'>' + self.root if self.root else ''}"
        times = f"|x{self.times}" if self.times > 1 else ""
        return f"collective|{self.operation}|{algorithm}|{','.join(self.devices)}|{self.payload_bytes(task)}|{count}{times}"

    def work(self, task: Task) -> Work:
        """Bytes that every device reads and writes."""
        share = 1.0 if self.operation == ALL_REDUCE else 1.0 / len(self.devices)
        return Work("collective", 0.0, (1.0 + share) * self.payload_bytes(task) * self.times)

    def faults(self, task: Task, values: Mapping[str, Value]) -> Iterator[str]:
        """Operands that do not fit the operation: the operands of chunks, or their number."""
        ranks, listed = len(self.devices), self.listed or len(self.devices)
        if self.operation == ALL_REDUCE:
            if task.reads or task.writes or not task.mutates or len(task.mutates) % listed:
                yield f"is an all-reduce of {len(task.mutates)} tensors on {listed} devices; expected as many mutated ones on each"
            return
        if self.operation == REDUCE_SCATTER and task.mutates and not (task.reads or task.writes):
            if len(task.mutates) % listed or any(not operand.shape or operand.shape[0] % ranks for operand in task.mutates):
                yield f"is reduce-scatter of {len(task.mutates)} tensors in place; expected as many of {ranks} parts on each device"
            return
        many = self.operation != ALL_TO_ALL and bool(task.reads)
        if task.mutates or len(task.reads) != len(task.writes) or len(task.reads) % listed or not (many or len(task.reads) == listed):
            yield (
                f"is {self.operation} of {len(task.reads)} tensors into {len(task.writes)}; expected as many of each, the same number for"
                f" each of {listed} devices"
            )
            return
        if self.operation == ALL_TO_ALL:
            return
        wholes, chunks = (task.reads, task.writes) if self.operation == REDUCE_SCATTER else (task.writes, task.reads)
        if any(whole.elements != ranks * chunk.elements for whole, chunk in zip(wholes, chunks, strict=True)):
            yield f"is {self.operation} with chunks that are no {ranks}th of the whole"
