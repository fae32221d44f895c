"""Runs collectives and messages with torch.distributed, for the device of this process, in one process group per stream and set of devices.

How algorithms map to the library: "server" sums at the root and broadcasts the sum (if the root is the host, the first device's process
does so). "ring", "tree" and "distributed" all call the library's all-reduce, which chooses its own algorithm. Several tensors are sent as
one flat buffer, like the buckets of DistributedDataParallel; a single dense one in place. A reduce-scatter and an all-gather are those of
the library.

Every direction of messages between two devices has a separate process group, so that messages of one direction never wait for those of
another, and they match in the order in which both processes issue them. Several tensors of a message are one batch: a single launch on
NCCL. All are sent as bytes, because NCCL does not know every dtype. gloo blocks the calling thread until the message has arrived. NCCL only
queues: the current stream, which is the task's lane, waits for the message, and so do the events that are recorded on it afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from executors.binding import Binding, Instance, same_strides, with_strides
from executors.errors import PeerLostError, first_sentence
from simulator.engine.collectives.local import ProcessGroup
from simulator.engine.collectives.rounds import SERVER
from simulator.plan.bodies.copy import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER, Collective, Message
from simulator.plan.task import Operand, Task
from simulator.plan.tensors import contiguous
from traces.errors import Code, SchedcastError

#: A collective fails if a peer does not arrive within this time. Peers of one step are at most one chunk of work apart.
TIMEOUT = timedelta(minutes=10)

#: PyTorch keeps its groups per process, so they are stored at module level here, too. By
#: (library, group): PyTorch's group, and the ranks of the group's devices in the order of the devices.
_groups: dict[tuple[str, ProcessGroup], tuple[dist.ProcessGroup, tuple[int, ...]]] = {}


def make_groups(groups: Sequence[ProcessGroup], devices: Sequence[str], library: str) -> None:
    """Create the groups that do not exist yet. Every process must call this with the same arguments.

    `devices` lists the machine's devices by rank.
    """
    for group in groups:
        if (library, group) not in _groups:
            ranks = tuple(devices.index(name) for name in group.devices)
            _groups[library, group] = dist.new_group(list(ranks), timeout=TIMEOUT, backend=library), ranks


def group_of(group: ProcessGroup, library: str) -> tuple[dist.ProcessGroup, tuple[int, ...]]:
    """PyTorch's group for `group`, and the ranks of the group's devices in the order of the devices.

    Raises SchedcastError if the group was not created, for example because the process runs alone.
    """
    try:
        return _groups[library, group]
    except KeyError:
        raise SchedcastError(
            f"the plan has collectives over {', '.join(group.devices)}, which run with a process per device; start it with"
            f" torchrun --nproc-per-node {len(group.devices)}"
        ) from None


def forget_groups() -> None:
    """Forget all groups. Called when PyTorch's process groups are destroyed."""
    _groups.clear()


#: PyTorch's backend by the kind of device.
LIBRARIES = {"cpu": "gloo", "cuda": "nccl"}


@contextmanager
def _peers(task: Task) -> Iterator[None]:
    """Turns an error of the library into PeerLostError: gloo has no separate error class for a lost peer."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(f"{task.name}: another process ended or does not answer ({first_sentence(error)})") from error


def compile_collective(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that takes part in the collective. `task` belongs to a local plan: it has this device's operands only.

    Raises SchedcastError if this process runs alone, and for an all-to-all, which is predicted only.
    """
    body: Collective = task.body
    if body.operation == ALL_TO_ALL:
        raise SchedcastError(
            f"{task.name}: as many tokens for each expert are assumed, so that no executor runs experts elsewhere; drop ep",
            Code.PLAN,
        )
    group, ranks = group_of(ProcessGroup(body.devices, task.stream), LIBRARIES[binding.device(task.device).type])
    if body.operation in _CHUNKED:
        return _compile_chunks(task, binding, group)
    call = _all_reduce(body, group, ranks)
    getters = [binding.getter(operand) for operand in task.mutates]

    def run(instance: Instance) -> None:
        tensors = [get(instance) for get in getters]
        if len(tensors) == 1 and dense(tensors[0]):
            with _peers(task):
                call(flat_view(tensors[0]))
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with _peers(task):
            call(flat)
        results = flat.split([tensor.numel() for tensor in tensors])
        torch._foreach_copy_(tensors, [result.view(tensor.shape) for result, tensor in zip(results, tensors, strict=True)])

    return run


def _all_reduce(body: Collective, group: dist.ProcessGroup, ranks: Sequence[int]) -> Callable[[torch.Tensor], None]:
    """The sum of a flat tensor of all this device's elements, in place. `ranks`: the ranks of the body's devices, in their order."""
    if body.algorithm != SERVER:
        return lambda flat: dist.all_reduce(flat, group=group)
    root = ranks[body.devices.index(body.root) if body.root in body.devices else 0]

    def through_root(flat: torch.Tensor) -> None:
        dist.reduce(flat, root, group=group)
        dist.broadcast(flat, root, group=group)

    return through_root


#: PyTorch's functions on single tensors. They were renamed in 2.13, and the old names warn.
_CHUNKED = {
    REDUCE_SCATTER: getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor,
    ALL_GATHER: getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor,
}


def _compile_chunks(task: Task, binding: Binding, group: dist.ProcessGroup) -> Callable[[Instance], None]:
    """A reduce-scatter or an all-gather: of each read into a write, or in place; one of them has a chunk for each device."""
    call, device = _CHUNKED[task.body.operation], binding.device(task.device)
    getters = [binding.getter(operand) for operand in task.reads or task.mutates]

    def moved(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        result = torch.empty(shape, dtype=tensor.dtype, device=device)
        with _peers(task):
            call(result.view(-1), tensor.reshape(-1), group=group)
        return result

    if task.mutates:
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)

        def run_in_place(instance: Instance) -> None:
            for get in getters:
                whole = get(instance)
                chunk = whole.chunk(ranks)[rank]
                chunk.copy_(moved(whole, chunk.shape))

        return run_in_place
    setters = [(binding.setter(write), write.shape) for write in task.writes]

    def run(instance: Instance) -> None:
        for get, (put, shape) in zip(getters, setters, strict=True):
            put(instance, moved(get(instance), shape))

    return run


def dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements fill a contiguous block of memory, each once, in some order of the dimensions."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


def flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's elements in memory order, as a view of shape [elements]."""
    return tensor.as_strided((tensor.numel(),), (1,))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor in memory order, as a view of shape [bytes]."""
    return flat_view(tensor).view(torch.uint8)


def compile_message(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that sends the reads, or that receives the writes or the mutated operands. `task` belongs to a local plan.

    Raises SchedcastError if this process runs alone.
    """
    body: Message = task.body
    device = binding.device(task.device)
    group, ranks = group_of(ProcessGroup(body.ends, body.channel), LIBRARIES[device.type])

    def exchange(tensors: list[torch.Tensor]) -> None:
        operation, peer = (dist.isend, ranks[1]) if body.sends(task) else (dist.irecv, ranks[0])
        operations = [dist.P2POp(operation, as_bytes(tensor), peer, group) for tensor in tensors if tensor.numel()]
        with _peers(task):
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()

    operands = task.reads or task.writes or task.mutates
    strides = [sent_strides(operand, own) for operand, own in zip(operands, body.strides, strict=True)]
    if body.sends(task):
        getters = [binding.getter(operand) for operand in operands]

        def send(instance: Instance) -> None:
            exchange([_as_planned(get(instance), operand, own) for get, operand, own in zip(getters, operands, strides, strict=True)])

        return send

    def receive() -> list[torch.Tensor]:
        arriving = [
            torch.empty_strided(operand.shape, own, dtype=getattr(torch, operand.dtype), device=device)
            for operand, own in zip(operands, strides, strict=True)
        ]
        exchange(arriving)
        return arriving

    if task.mutates:
        getters = [binding.getter(operand) for operand in operands]
        merge = torch._foreach_add_ if body.add else torch._foreach_copy_
        return lambda instance: merge([get(instance) for get in getters], receive())
    setters = [binding.setter(operand) for operand in operands]

    def put(instance: Instance) -> None:
        for store, tensor in zip(setters, receive(), strict=True):
            store(instance, tensor)

    return put


def sent_strides(operand: Operand, strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of the tensor that a library sends: those of the operand's target, or contiguous ones if those leave gaps or overlap."""
    return strides if dense(torch.empty_strided(operand.shape, strides, device="meta")) else contiguous(operand.shape)


def _as_planned(tensor: torch.Tensor, operand: Operand, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor with these strides: itself, or a copy. Raises SchedcastError for a shape that the receiver does not expect."""
    if tuple(tensor.shape) != tuple(operand.shape):
        raise SchedcastError(
            f"{operand.value} has shape {tuple(tensor.shape)} and was planned with {tuple(operand.shape)}, which the receiving process"
            " expects; cut the model elsewhere"
        )
    return tensor if same_strides(tensor, strides) and dense(tensor) else with_strides(tensor, strides)


HANDLERS = {"collective": compile_collective, "message": compile_message}
