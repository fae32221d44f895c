"""Hand-made plans of the models `square_...` in `models`: each device computes a box of the output, with its pieces of the parameters.

plan = shard_plan(job, machine, [Shard("cpu:0", channels=(0, 3)), Shard("cpu:1", channels=(3, 6))])
"""

import json
from dataclasses import dataclass
from math import prod

from simulator.engine.collectives.tasks import Group
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.bodies.update import STATE, Update, state_shape
from simulator.plan.plan import Plan
from simulator.plan.task import (
    ACTIVATION,
    BACKWARD,
    BUFFER,
    GRADIENT,
    INPUT,
    OPTIMIZER_STATE,
    PARAMETER,
    UPDATE,
    Operand,
    Task,
    Value,
)
from simulator.plan.tensors import PlanTensors, contiguous, transposed, viewed

#: Channels of every model's output.
CHANNELS = 6


@dataclass(frozen=True)
class Shard:
    """The images (default: all) and channels that a device computes, each (first, end)."""

    device: str
    channels: tuple[int, int] = (0, CHANNELS)
    images: tuple[int, int] | None = None


def by_channels(*devices: str) -> list[Shard]:
    """Equal parts of the channels."""
    size = CHANNELS // len(devices)
    return [Shard(device, (i * size, (i + 1) * size)) for i, device in enumerate(devices)]


def by_images(job: Job, *devices: str) -> list[Shard]:
    """Equal parts of the images, with replicas of all parameters."""
    size = job.batch // len(devices)
    return [Shard(device, images=(i * size, (i + 1) * size)) for i, device in enumerate(devices)]


def cut(operand: Operand, box: tuple[tuple[int, int], ...]) -> Operand:
    """The part of an operand in a box, as slices of the dimensions that the box cuts."""
    for dim, (first, end) in enumerate(box):
        if (first, end) != (0, operand.shape[dim]):
            shape = (*operand.shape[:dim], end - first, *operand.shape[dim + 1 :])
            operand = viewed(operand, shape, operand.strides, "aten.slice.Tensor", dim, first, end)
    return operand


def shard_plan(job: Job, machine: Machine, shards: list[Shard]) -> Plan:
    """A step of which each device computes its shard; devices with the same channels sum their gradients."""
    builders = [_Builder(job, shard, len(shards)) for shard in shards]
    tasks = [task for builder in builders for task in builder.passes()]
    for channels in dict.fromkeys(shard.channels for shard in shards):
        replicas = [builder for builder in builders if builder.shard.channels == channels]
        if len(replicas) > 1:
            group = Group(machine, tuple(builder.shard.device for builder in replicas), stream=1)
            tasks += group.all_reduce(f"sum {channels}", [tuple(builder.gradients.values()) for builder in replicas])
    tasks += [builder.update() for builder in builders]
    values = {name: value for builder in builders for name, value in builder.tensors.values.items()}
    storages = {name: storage for builder in builders for name, storage in builder.tensors.storages.items()}
    gradients = {name: operand for builder in builders for name, operand in builder.gradients.items()}
    losses, notes = tuple(f"loss{builder.suffix}" for builder in builders), {}
    images = len({builder.images for builder in builders})
    if images > 1 and job.model.endswith(":square_batch_norm"):
        notes["batch_norm_parts"] = {"0": [images, 1, 1]}
    return Plan("shards", tuple(tasks), values, storages, losses, gradients, semantics=notes)


class _Builder:
    """The values and tasks of one device. `gradients` is by name of the device's piece of a parameter."""

    def __init__(self, job: Job, shard: Shard, shards: int):
        self.job, self.shard, self.graph, self.suffix = job, shard, job.graph(), f"@{shard.device}"
        self.images = shard.images or (0, job.batch)
        self.tensors = PlanTensors()
        self.gradients: dict[str, Operand] = {}
        self.tasks: list[Task] = []

    def piece(self, name: str, kind: str) -> Operand:
        """This device's piece of a tensor of the job, cut by images or by channels."""
        own = self.graph.values[name]
        first = self.images if kind == INPUT else self.shard.channels
        box = [first, *((0, extent) for extent in own.shape[1:])] if own.shape else []
        if kind == INPUT and own.shape[1] == CHANNELS:
            box[1] = self.shard.channels
        source = cut(own.operand(), tuple(box))
        return self._value(name, source.shape, kind, source, own.dtype)

    def _value(self, name: str, shape: tuple[int, ...], kind: str, source: Operand | None = None, dtype: str = "") -> Operand:
        name, dtype = name + self.suffix, dtype or self.graph.values["0.weight"].dtype
        return self.tensors.add(Value(name, shape, contiguous(shape), dtype, self.shard.device, kind, name, source)).operand()

    def op(self, name: str, target: str, args: list, reads: tuple, writes: dict[str, tuple[int, ...]], mutates: tuple = (), **more):
        """Add a task. `args`: {"$": i} stands for input i. `writes`: shapes by name, in the order of `outputs`."""
        outputs, kwargs = more.pop("outputs", tuple(range(len(writes)))), json.dumps(more.pop("kwargs", {}))
        body = OpCall(target, json.dumps(args, separators=(",", ":")), kwargs, outputs, draw=more.pop("draw", 0))
        kind = GRADIENT if more.get("phase") == BACKWARD else ACTIVATION
        dtypes = {item: "bool" if item.startswith("mask") else "" for item in writes}
        written = tuple(self._value(item, shape, kind, dtype=dtypes[item]) for item, shape in writes.items())
        self.tasks.append(Task(name + self.suffix, body, self.shard.device, 0, 0, reads, written, mutates, **more))
        return written

    def passes(self) -> list[Task]:
        """Forward, loss and backward."""
        x, weight, bias = self.piece("input:0", INPUT), self.piece("0.weight", PARAMETER), self.piece("0.bias", PARAMETER)
        kind = self.job.model.rpartition(":square_")[2]
        y = getattr(self, f"_{kind}" if kind != "dropout" else "_linear")(x, weight, bias)
        dropped, masks = (y, []) if kind != "dropout" else self._dropped(y)
        (squares,) = self.op("square", "aten.mul.Tensor", [{"$": 0}, {"$": 0}], (dropped,), {"squares": dropped.shape})
        self.op("loss", "aten.mean.default", [{"$": 0}], (squares,), {"loss": ()})
        count = prod(y.shape) * (CHANNELS * self.job.batch) / (y.shape[0] * y.shape[1])
        (slope,) = self._backward("slope", "aten.mul.Scalar", [{"$": 0}, 2 / count], (dropped,), {"slope": y.shape})
        for number, (mask, scale) in reversed(list(enumerate(masks))):
            args = [{"$": 0}, {"$": 1}, scale]
            (slope,) = self._backward(
                f"drop.{number}'", "aten.native_dropout_backward.default", args, (slope, mask), {f"g{number}": y.shape}
            )
        made = getattr(self, f"_{kind if kind != 'dropout' else 'linear'}_backward")(slope, x, weight)
        self.gradients = dict(zip((weight.value, bias.value), made, strict=True))
        return self.tasks

    def update(self) -> Task:
        """The update of the device's pieces."""
        job, mutates = self.job, []
        for name in ("0.weight", "0.bias"):
            own = self.tensors.values[name + self.suffix]
            mutates.append(own.operand())
            for state in STATE[job.optimizer]:
                shape, dtype = state_shape(job.optimizer, state, own.shape, own.dtype)
                views = own.source.views if shape else ()
                source = Operand(f"{name}::{state}", shape, own.source.strides if shape else (), dtype, views)
                mutates.append(self._value(f"{name}::{state}", shape, OPTIMIZER_STATE, source, dtype))
        body = Update(job.optimizer, job.form, tuple(self.gradients), job.hyper, job.rates)
        reads = tuple(self.gradients.values())
        return Task(f"update{self.suffix}", body, self.shard.device, reads=reads, mutates=tuple(mutates), phase=UPDATE, layer="0")

    def _backward(self, *arguments, **more) -> tuple[Operand, ...]:
        return self.op(*arguments, phase=BACKWARD, **more)

    def _linear(self, x: Operand, weight: Operand, bias: Operand) -> Operand:
        reads, shape = (bias, x, transposed(weight)), (x.shape[0], weight.shape[0])
        return self.op("forward", "aten.addmm.default", [{"$": 0}, {"$": 1}, {"$": 2}], reads, {"y": shape})[0]

    def _linear_backward(self, slope: Operand, x: Operand, weight: Operand) -> tuple[Operand, ...]:
        (by_weight,) = self._backward("dW", "aten.mm.default", [{"$": 0}, {"$": 1}], (transposed(slope), x), {"dW": weight.shape})
        (by_bias,) = self._backward("dB", "aten.sum.dim_IntList", [{"$": 0}, [0]], (slope,), {"dB": weight.shape[:1]})
        return by_weight, by_bias

    def _dropped(self, y: Operand) -> tuple[Operand, list[tuple[Operand, float]]]:
        masks = []
        for number, p in enumerate((0.5, 0.3)):
            part = {"of": [self.job.batch, CHANNELS], "box": [self.images, self.shard.channels]}
            args, writes = [{"$": 0}, p, True], {f"z{number}": y.shape, f"mask{number}": y.shape}
            more = {"kwargs": {"part": part}, "layer": f"1.{number}", "draw": number}
            y, mask = self.op(f"drop.{number}", "aten.native_dropout.default", args, (y,), writes, **more)
            masks.append((mask, 1 / (1 - p)))
        return y, masks

    def _convolution(self, x: Operand, weight: Operand, bias: Operand) -> Operand:
        args = [{"$": 0}, {"$": 1}, {"$": 2}, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
        shape = (x.shape[0], weight.shape[0], *(extent - 2 for extent in x.shape[2:]))
        return self.op("forward", "aten.convolution.default", args, (x, weight, bias), {"y": shape})[0]

    def _convolution_backward(self, slope: Operand, x: Operand, weight: Operand) -> tuple[Operand, ...]:
        args = [{"$": 0}, {"$": 1}, {"$": 2}, [weight.shape[0]], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True]]
        writes = {"dW": weight.shape, "dB": weight.shape[:1]}
        return self._backward("backward", "aten.convolution_backward.default", args, (slope, x, weight), writes, outputs=(1, 2))

    def _batch_norm(self, x: Operand, weight: Operand, bias: Operand) -> Operand:
        statistics = self.piece("0.running_mean", BUFFER), self.piece("0.running_var", BUFFER)
        count = self.piece("0.num_batches_tracked", BUFFER)
        self.op("count", "aten.add_.Tensor", [{"$": 0}, 1], (), {}, (count,))
        args = [{"$": i} for i in range(5)] + [True, 0.1, 1e-5]
        writes = {"y": x.shape, "mean": weight.shape, "invstd": weight.shape}
        return self.op("forward", "aten.native_batch_norm.default", args, (x, weight, bias), writes, statistics)[0]

    def _batch_norm_backward(self, slope: Operand, x: Operand, weight: Operand) -> tuple[Operand, ...]:
        names = ("0.running_mean", "0.running_var", "mean", "invstd")
        reads = (slope, x, weight, *(self.tensors.values[name + self.suffix].operand() for name in names))
        args = [{"$": i} for i in range(7)] + [True, 1e-5, [False, True, True]]
        writes = {"dW": weight.shape, "dB": weight.shape}
        return self._backward("backward", "aten.native_batch_norm_backward.default", args, reads, writes, outputs=(1, 2))
