"""Sends tensors to another process, or receives them, with torch.distributed.

Every direction between two devices has a process group of its own, so that messages of one direction never wait for those of another, and
they match in the order in which both processes issue them. Several tensors of a message are one batch: a single launch on NCCL. All travel
as bytes, because NCCL does not know every dtype.

gloo blocks the calling thread until the message has arrived. NCCL only queues: the current stream, which is the task's lane, waits for the
message, and so do the events that are recorded on it afterwards.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from executors.binding import Binding, Instance
from executors.errors import PeerLostError, first_sentence
from executors.kernels.collective import LIBRARIES, dense, flat_view
from executors.process_groups import group_of
from executors.strides import same_strides, with_strides
from simulator.engine.collectives.local import ProcessGroup
from simulator.plan.bodies.message import Message
from simulator.plan.task import Operand, Task
from simulator.plan.views import contiguous
from traces.errors import SchedcastError

KIND = "message"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that sends the reads, or that receives the writes or the mutated operands. `task` belongs to a local plan.

    Raises SchedcastError if this process runs alone.
    """
    body: Message = task.body
    device = binding.device(task.device)
    group, ranks = group_of(ProcessGroup(body.ends, body.channel), LIBRARIES[device.type])

    def exchange(tensors: list[torch.Tensor]) -> None:
        """Send or receive dense tensors."""
        operation, peer = (dist.isend, ranks[1]) if body.sends(task) else (dist.irecv, ranks[0])
        operations = [dist.P2POp(operation, flat_view(tensor).view(torch.uint8), peer, group) for tensor in tensors if tensor.numel()]
        try:
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()
        except RuntimeError as error:  # gloo has no error class of its own for a lost peer
            raise PeerLostError(f"{task.name}: another process ended or does not answer ({first_sentence(error)})") from error

    operands = task.reads or task.writes or task.mutates
    strides = [travelling(operand, own) for operand, own in zip(operands, body.strides, strict=True)]
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


def travelling(operand: Operand, strides: tuple[int, ...]) -> tuple[int, ...]:
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
