"""Runs the graphs of devices that divide experts side by side, op by op, with the tokens that each expert really gets.

A plan has as many tokens for each, so that no executor runs it. Here tensors have the sizes that the tokens' choices give them.
"""

import json

import torch
from torch import Tensor

from simulator.model.division.divide import Division
from simulator.model.graph import Op, TrainingGraph
from simulator.model.job import Job
from simulator.model.ops.aten_json import Slot, decode, decode_item, resolve
from simulator.model.ops.products import by_group
from simulator.model.ops.rms_norm import BACKWARD, backward
from simulator.plan.bodies.op_class import GROUPED_PRODUCT
from simulator.plan.task import Operand

_CPU = torch.device("cpu")
EXCHANGE = "schedcast.all_to_all.experts"


class Device:
    """The tensors of one device, by value of its graph."""

    def __init__(self, graph: TrainingGraph, tensors: dict[str, Tensor], per_device: int):
        """`tensors`: of the whole job, but for inputs. `per_device`: experts of one."""
        self.graph, self.per_device = graph, per_device
        self.tensors = {
            name: self.at(value.source, tensors).clone() if value.source is not None else tensors[name].clone()
            for name, value in graph.values.items()
            if name in tensors
        }
        #: How many rows of the last experts go to each device.
        self.numbers = torch.empty(0)

    def at(self, operand: Operand, tensors: dict[str, Tensor] | None = None) -> Tensor:
        """The tensor of an operand."""
        tensor = (self.tensors if tensors is None else tensors)[operand.value]
        for step in operand.views:
            results = resolve(step.target)(tensor, *decode(step.args, _CPU))
            tensor = results if step.output is None else results[step.output]
        return tensor

    def run(self, op: Op) -> None:
        """Run one op."""
        operands = [self.at(operand) for operand in op.inputs]

        def filled(item):
            return operands[item] if isinstance(item, Slot) else [filled(each) for each in item] if isinstance(item, list) else item

        args = filled(decode(op.body.args, _CPU))
        named = {name: filled(decode_item(item, _CPU)) for name, item in json.loads(op.body.kwargs).items()}
        if op.body.target == GROUPED_PRODUCT:
            results = [by_group(args[0], args[1], named.get("offs", args[-1]))]
        elif op.body.target == str(BACKWARD):
            results = backward(*args)
        else:
            results = resolve(op.body.target)(*args, **named)
        results = results if isinstance(results, list | tuple) else [results]
        for position, operand in zip(op.body.outputs, op.writes, strict=True):
            self.tensors[operand.value] = results[position].clone()


def gradients(job: Job, devices: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The gradients of a step by devices that divide the experts, put together, and those of plain PyTorch.

    Each device has an equal part of the batch.
    """
    built = job.build()
    carried = dict(built.module.named_parameters()) | dict(built.module.named_buffers())
    whole = {name: tensor.detach() for name, tensor in carried.items()}
    experts = {name for name, tensor in whole.items() if tensor.dim() == 3}
    count = next(iter(whole[name] for name in experts)).shape[0]
    own = [
        Device(job.graph(job.batch // devices, devices, division=Division(1, experts=devices, expert_rank=rank)), whole, count // devices)
        for rank in range(devices)
    ]
    for name, tensor in built.named_inputs().items():
        for device, part in zip(own, tensor.chunk(devices), strict=True):
            device.tensors[name] = part.clone()
    for ops in zip(*(device.graph.ops for device in own), strict=True):
        if ops[0].body.target == EXCHANGE:
            _exchange(own, ops)
        else:
            for device, op in zip(own, ops, strict=True):
                device.run(op)
    by_device = [{name: device.at(operand) for name, operand in device.graph.gradients.items()} for device in own]
    together = {name: torch.stack([each[name] for each in by_device]).sum(0) for name in by_device[0].keys() - experts}
    together |= {name: torch.cat([each[name] for each in by_device]) for name in experts}
    built.run().backward()
    return together, {name: parameter.grad for name, parameter in built.module.named_parameters()}


def _exchange(devices: list[Device], ops: tuple[Op, ...]) -> None:
    """An all-to-all: rows go to the devices of their experts; those that are there already, as many as came, go back."""
    rows = [device.at(op.reads[0]) for device, op in zip(devices, ops, strict=True)]
    if rows[0].dim() == 1:  # the numbers of experts, by which rows are sorted
        for device, numbers in zip(devices, rows, strict=True):
            device.numbers = torch.bincount(numbers // device.per_device, minlength=len(devices))
    sizes = [device.numbers.tolist() for device in devices]
    if "#unsorted" in ops[0].reads[0].value:
        sizes = [list(each) for each in zip(*sizes, strict=True)]
    parts = [tensor.split(each) for tensor, each in zip(rows, sizes, strict=True)]
    for number, (device, op) in enumerate(zip(devices, ops, strict=True)):
        device.tensors[op.writes[0].value] = torch.cat([each[number] for each in parts])
