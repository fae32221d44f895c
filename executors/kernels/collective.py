"""Makes a collective by torch.distributed, for the one device that this process has.

What a library makes of an algorithm: "server" is a sum at the root, which is then sent to all (the host as a root is the first device's);
"ring", "tree" and "distributed" are the library's all-reduce, which chooses by itself. A reduce-scatter is a sum of every chunk at its own
rank, an all-gather a broadcast of every chunk from it: chunks may differ in size, and gloo has neither operation.

Several tensors travel in one flat buffer, as DistributedDataParallel's buckets do; a single dense one in place.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from executors.binding import Binding, Instance
from executors.errors import PeerLostError, first_sentence
from executors.process_groups import group_of
from simulator.bodies.collective import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Collective
from simulator.collectives.local import ProcessGroup
from simulator.collectives.rounds import SERVER
from simulator.collectives.tasks import chunks
from simulator.plan.task import Operand, Task

KIND = "collective"
#: PyTorch's backend by the kind of device.
LIBRARIES = {"cpu": "gloo", "cuda": "nccl"}


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that takes part in the collective. `task` is a local plan's: `mutates` are this device's operands alone.

    Raises StepcastError where this process runs alone.
    """
    body: Collective = task.body
    group, ranks = group_of(ProcessGroup(body.devices, task.stream), LIBRARIES[binding.device(task.device).type])
    call = _operation(body, task.mutates, group, ranks)
    getters = [binding.getter(operand) for operand in task.mutates]
    whole = body.operation == ALL_REDUCE  # else chunks are cut along dimension 0

    def joined(flat: torch.Tensor) -> None:
        try:
            call(flat)
        except RuntimeError as error:  # gloo has no class of its own for it
            raise PeerLostError(f"{task.name}: another process ended or does not answer ({first_sentence(error)})") from error

    def run(instance: Instance) -> None:
        tensors = [get(instance) for get in getters]
        if len(tensors) == 1 and (tensors[0].is_contiguous() or (whole and dense(tensors[0]))):
            joined(in_line(tensors[0]))
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        joined(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        torch._foreach_copy_(tensors, [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)])

    return run


def _operation(
    body: Collective, operands: Sequence[Operand], group: dist.ProcessGroup, ranks: Sequence[int]
) -> Callable[[torch.Tensor], None]:
    """The operation on a flat tensor of all this device's elements. `ranks`: of the devices' processes."""
    if body.operation == ALL_REDUCE and body.algorithm != SERVER:
        return lambda flat: dist.all_reduce(flat, group=group)
    if body.operation == ALL_REDUCE:
        root = ranks[body.devices.index(body.root) if body.root in body.devices else 0]

        def through_root(flat: torch.Tensor) -> None:
            dist.reduce(flat, root, group=group)
            dist.broadcast(flat, root, group=group)

        return through_root
    ranges = _ranges(operands, len(body.devices))

    def scatter(flat: torch.Tensor) -> None:
        for owner, (low, high) in zip(ranks, ranges, strict=True):
            if low < high:
                dist.reduce(flat[low:high], owner, group=group)

    def gather(flat: torch.Tensor) -> None:
        for owner, (low, high) in zip(ranks, ranges, strict=True):
            if low < high:
                dist.broadcast(flat[low:high], owner, group=group)

    return {REDUCE_SCATTER: scatter, ALL_GATHER: gather}[body.operation]


def _ranges(operands: Sequence[Operand], count: int) -> list[tuple[int, int]]:
    """The elements of each chunk (`simulator.collectives.tasks.chunks`) in the flat tensor: one range, as chunks follow one another."""
    starts = [0]
    for operand in operands:
        starts.append(starts[-1] + operand.elements)
    found, reached = [], 0
    for pieces in chunks(operands, count):
        low = reached
        for piece in pieces:
            rows = max(1, operands[piece.position].shape[0] if operands[piece.position].shape else 1)
            reached = starts[piece.position] + operands[piece.position].elements // rows * piece.end
        found.append((low, reached))
    return found


def dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie next to each other in some order of the dimensions, each once."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


def in_line(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's elements in the order in which they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))
