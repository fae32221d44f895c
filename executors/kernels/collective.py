"""Runs a collective with torch.distributed, for the device of this process.

How algorithms map to the library: "server" sums at the root and broadcasts the sum (if the root is the host, the first device's process
does so). "ring", "tree" and "distributed" all call the library's all-reduce, which chooses its own algorithm. A reduce-scatter sums each
chunk at the rank that owns it, and an all-gather broadcasts each chunk from its owner, because chunks may differ in size and gloo has
neither operation.

Several tensors are sent as one flat buffer, like the buckets of DistributedDataParallel. A single dense tensor is sent in place.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from executors.binding import Binding, Instance
from executors.errors import PeerLostError, first_sentence
from executors.process_groups import group_of
from simulator.engine.collectives.local import ProcessGroup
from simulator.engine.collectives.rounds import SERVER
from simulator.engine.collectives.tasks import chunks
from simulator.plan.bodies.collective import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Collective
from simulator.plan.task import Operand, Task

KIND = "collective"
#: PyTorch's backend by the kind of device.
LIBRARIES = {"cpu": "gloo", "cuda": "nccl"}


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that takes part in the collective. `task` belongs to a local plan: `mutates` has this device's operands only.

    Raises SchedcastError if this process runs alone.
    """
    body: Collective = task.body
    group, ranks = group_of(ProcessGroup(body.devices, task.stream), LIBRARIES[binding.device(task.device).type])
    call = _operation(body, task.mutates, group, ranks)
    getters = [binding.getter(operand) for operand in task.mutates]
    any_order = body.operation == ALL_REDUCE  # other operations cut chunks along dimension 0, so the order of elements matters

    def call_with_peers(flat: torch.Tensor) -> None:
        try:
            call(flat)
        except RuntimeError as error:  # gloo has no error class of its own for a lost peer
            raise PeerLostError(f"{task.name}: another process ended or does not answer ({first_sentence(error)})") from error

    def run(instance: Instance) -> None:
        tensors = [get(instance) for get in getters]
        if len(tensors) == 1 and (tensors[0].is_contiguous() or (any_order and dense(tensors[0]))):
            call_with_peers(flat_view(tensors[0]))
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        call_with_peers(flat)
        results = flat.split([tensor.numel() for tensor in tensors])
        torch._foreach_copy_(tensors, [result.view(tensor.shape) for result, tensor in zip(results, tensors, strict=True)])

    return run


def _operation(
    body: Collective, operands: Sequence[Operand], group: dist.ProcessGroup, ranks: Sequence[int]
) -> Callable[[torch.Tensor], None]:
    """The operation on a flat tensor of all this device's elements. `ranks`: the ranks of the body's devices, in their order."""
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
    """(first, end) of each chunk's elements in the flat tensor. The chunks (`simulator.engine.collectives.tasks`) are consecutive."""
    starts = [0]
    for operand in operands:
        starts.append(starts[-1] + operand.elements)
    ranges, end = [], 0
    for pieces in chunks(operands, count):
        first = end
        for piece in pieces:
            rows = max(1, operands[piece.position].shape[0] if operands[piece.position].shape else 1)
            end = starts[piece.position] + operands[piece.position].elements // rows * piece.end
        ranges.append((first, end))
    return ranges


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
