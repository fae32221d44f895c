"""How parameters and gradients are packed into the flat tensors that are gathered and scattered, and how they come out of these."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.plan.bodies.opcall import ListedOp, OpCall, OpList
from simulator.plan.task import COLLECTIVE, Operand, Task
from simulator.plan.tensors import PlanTensors, contiguous, part, viewed
from simulator.strategies.zero.units import Flat, shaped

_CONTIGUOUS = '{"memory_format":{"memory_format":"contiguous_format"}}'


@dataclass(frozen=True)
class Packing:
    """Makes the tasks that pack and unpack what `size` devices share.

    `compute`, `gather` and `reduce`: the streams of what a device computes, of what is gathered and of what is scattered; `priority`: of
    the latter two.
    """

    tensors: PlanTensors
    devices: Sequence[str]
    size: int
    compute: int
    gather: int
    reduce: int
    priority: int

    def packed(self, own: Sequence[Operand | None], flat: Flat, dtype: str, name: str, at: int) -> tuple[list[Task], tuple[Operand, ...]]:
        """The flat shard of a device: its parts of the tensors one after another, in the type in which they are gathered."""
        device = self.devices[at]
        if len(own) == 1 and own[0] is not None and own[0].dtype == dtype and own[0].elements == flat.length:
            return [], (shaped(own[0], (flat.length,)),)
        steps = _Steps(f"{name}@{device}")
        held = next((operand.dtype for operand in own if operand is not None), dtype)
        parts = []
        for operand, length in zip(own, flat.lengths, strict=True):
            if operand is None:
                kwargs = json.dumps({"dtype": {"dtype": held}, "device": {"device": None}}, separators=(",", ":"))
                parts.append(steps.add("full.default", [[length], 0.0], (), (length,), held, kwargs))
            elif operand.elements < length:
                padded = steps.add(
                    "constant_pad_nd.default",
                    [{"$": 0}, [0, length - operand.elements]],
                    (shaped(operand, (operand.elements,)),),
                    (length,),
                    held,
                )
                parts.append(padded)
            else:
                parts.append(shaped(operand, (length,)))
        if len(parts) > 1:
            parts = [steps.add("cat.default", [[{"$": i} for i in range(len(parts))]], tuple(parts), (flat.length,), held)]
        if held != dtype:
            parts = [steps.cast(parts[0], dtype)]
        task, made = steps.task(self.tensors, device, self.gather, self.priority, 1)
        return [task], made

    def cast(self, own: Sequence[Operand | None], dtype: str, name: str, at: int) -> tuple[list[Task], tuple[Operand, ...]]:
        """A device's parts of tensors, each by itself, in the type in which they are gathered."""
        parts = tuple(operand for operand in own if operand is not None)
        if all(operand.dtype == dtype for operand in parts):
            return [], parts
        steps = _Steps(f"{name}@{self.devices[at]}")
        for operand in parts:
            steps.cast(operand, dtype)
        task, made = steps.task(self.tensors, self.devices[at], self.gather, self.priority, len(parts))
        return [task], made

    def unpacked(self, gathered: Operand, flat: Flat, name: str, at: int) -> tuple[Task, list[Operand]]:
        """The task that copies each gathered tensor to separate memory, and the copies."""
        steps = _Steps(f"{name}@{self.devices[at]}")
        for number, (length, blocks) in enumerate(zip(flat.lengths, flat.blocks, strict=True)):
            own = flat.part_of(gathered, number)
            if not blocks:
                steps.add("clone.default", [{"$": 0}], (own,), (self.size, length), gathered.dtype)
            else:
                shape = (blocks, self.size, length // blocks)
                steps.add("clone.default", [{"$": 0}], (_exchanged(own, shape),), shape, gathered.dtype, _CONTIGUOUS)
        task, copies = steps.task(self.tensors, self.devices[at], self.compute, 0, len(flat.lengths))
        return task, list(copies)

    def by_rank(self, gathered: Operand, flat: Flat, name: str, at: int) -> tuple[Task, list[Operand]]:
        """The task that copies what each rank has sent to a separate tensor, and the copies."""
        steps = _Steps(f"{name}@{self.devices[at]}")
        for rank in range(self.size):
            own = part(gathered, rank * flat.length, (rank + 1) * flat.length)
            steps.add("clone.default", [{"$": 0}], (own,), own.shape, own.dtype)
        task, copies = steps.task(self.tensors, self.devices[at], self.compute, 0, self.size)
        return task, list(copies)

    def packed_gradients(self, own: Sequence[Operand], flat: Flat, name: str, at: int) -> tuple[list[Task], Operand]:
        """A device's gradients as one flat tensor in which the parts of each rank lie together."""
        steps, parts, length = _Steps(f"{name}@{self.devices[at]}"), [], flat.length * self.size
        for operand, each, blocks in zip(own, flat.lengths, flat.blocks, strict=True):
            if operand.strides != contiguous(operand.shape):
                operand = steps.add("clone.default", [{"$": 0}], (operand,), operand.shape, operand.dtype, _CONTIGUOUS)
            if operand.elements < each * self.size:
                padding = [0, each * self.size - operand.elements]
                flattened = shaped(operand, (operand.elements,))
                operand = steps.add("constant_pad_nd.default", [{"$": 0}, padding], (flattened,), (each * self.size,), operand.dtype)
            if blocks:
                by_device = (self.size, blocks, each // blocks)
                exchanged = _exchanged(shaped(operand, (blocks, each * self.size // blocks)), by_device)
                operand = steps.add("clone.default", [{"$": 0}], (exchanged,), by_device, operand.dtype, _CONTIGUOUS)
            parts.append(shaped(operand, (self.size, each)))
        if len(parts) > 1:
            args = [[{"$": i} for i in range(len(parts))], 1]
            parts = [steps.add("cat.default", args, tuple(parts), (self.size, flat.length), parts[0].dtype)]
        if not steps.steps:
            return [], shaped(parts[0], (length,))
        task, (result,) = steps.task(self.tensors, self.devices[at], self.reduce, self.priority, 1)
        return [task], shaped(result, (length,))


def _exchanged(operand: Operand, shape: tuple[int, int, int]) -> Operand:
    """An operand of two dimensions, the second of which has as many parts as `shape` says first, with these parts first."""
    rows, by_row = shape[1], operand.strides[0]
    parts = viewed(operand, (rows, shape[0], shape[2]), (by_row, shape[2], 1), "aten.view.default", [rows, shape[0], shape[2]])
    return viewed(parts, shape, (shape[2], by_row, 1), "aten.permute.default", [1, 0, 2])


class _Steps:
    """Ops that run one after another as one task, whose last results are the task's."""

    def __init__(self, name: str):
        self.name = name
        self.steps: list[ListedOp] = []

    def add(self, target: str, args: list, reads: tuple[Operand, ...], shape: tuple[int, ...], dtype: str, kwargs: str = "{}") -> Operand:
        """Add an op. Returns its result, which is contiguous."""
        made = Operand(f"{self.name}:{len(self.steps)}", shape, contiguous(shape), dtype)
        body = OpCall(f"aten.{target}", json.dumps(args, separators=(",", ":")), kwargs)
        self.steps.append(ListedOp(body, reads, (made,)))
        return made

    def cast(self, operand: Operand, dtype: str) -> Operand:
        """Add an op that casts an operand."""
        made = Operand(f"{self.name}:{len(self.steps)}", operand.shape, contiguous(operand.shape), dtype)
        self.steps.append(ListedOp(OpCall.cast(dtype), (operand,), (made,)))
        return made

    def task(self, tensors: PlanTensors, device: str, stream: int, priority: int, results: int) -> tuple[Task, tuple[Operand, ...]]:
        """The task, and its last `results`, which are values of the plan."""
        made = tuple(step.writes[0] for step in self.steps[-results:])
        for operand in made:
            tensors.scratch(operand.value, operand.shape, operand.dtype, device)
        inner = {step.writes[0].value for step in self.steps}
        if len(self.steps) == 1:
            return Task(
                self.name,
                self.steps[0].body,
                device,
                stream=stream,
                priority=priority,
                reads=self.steps[0].reads,
                writes=made,
                phase=COLLECTIVE,
            ), made
        reads = tuple(dict.fromkeys(operand for step in self.steps for operand in step.reads if operand.value not in inner))
        body = OpList(tuple(self.steps), "shards")
        return Task(self.name, body, device, stream=stream, priority=priority, reads=reads, writes=made, phase=COLLECTIVE), made
