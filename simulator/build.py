"""Build the tasks of a job from its graph: the part that all strategies have in common.

A strategy asks for the forward and backward tasks of its micro-batches and for updates of parameters, puts them in its own order, and calls
`plan`.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from simulator.bodies.copy import ALIAS, KERNEL, LINK, Copy
from simulator.bodies.opcall import OpCall
from simulator.bodies.oplist import OpList, Step
from simulator.bodies.update import STATE, Update, state_shape
from simulator.graph import Op, TrainingGraph
from simulator.job import Job
from simulator.machine.machine import HOST, Machine
from simulator.options import option_values
from simulator.plan.plan import Plan
from simulator.plan.task import (
    ACTIVATION,
    BACKWARD,
    BUFFER,
    DTYPE_BYTES,
    FORWARD,
    INPUT,
    OPTIMIZER_STATE,
    PARAMETER,
    SCRATCH,
    TRANSFER,
    UPDATE,
    Operand,
    Segment,
    Storage,
    Task,
    Value,
    ViewStep,
)
from simulator.plan.views import contiguous
from traces.errors import StepcastError


class PlanBuilder:
    """Collects the values, storages and tasks of a job on one device.

    With `replicas` > 1, the device is one of several that each train on a share of every batch. It has micro-batches of its own, which are
    numbered over all replicas, and its own copy of every carried storage. The copies are called `NAME@DEVICE`, except on the first replica.
    """

    def __init__(self, job: Job, device: str, graph: TrainingGraph | None = None, replica: int = 0, replicas: int = 1):
        """`graph`: a changed graph that computes the same as the graph of the job's micro-batch; default: that graph."""
        self.job, self.device = job, device
        self.replica, self.parts = replica, job.accumulate * replicas
        self.micro_batches = range(replica * job.accumulate, (replica + 1) * job.accumulate)
        self.graph: TrainingGraph = graph or job.graph(job.batch // self.parts, self.parts)
        self._suffix = f"@{device}" if replica else ""
        self._values: dict[str, Value] = {}
        self._storages: dict[str, Storage] = {}
        #: Task name -> index of the op that it runs, or whose result it accumulates, and its role (dX, dW, dB; "" in forward).
        self.served: dict[str, tuple[int, str]] = {}

    @cached_property
    def layers(self) -> dict[str, list[str]]:
        """Trainable parameters by the layer that owns them, in module order."""
        layers: dict[str, list[str]] = {}
        for parameter in self.graph.parameters:
            layers.setdefault(self.graph.layers[parameter], []).append(parameter)
        return layers

    @cached_property
    def gradient_ops(self) -> dict[str, int]:
        """The index of the op that completes the gradient, by parameter."""
        owner = {self.graph.values[o.value].storage: parameter for parameter, o in self.graph.gradients.items()}
        last: dict[str, int] = {}
        for index, op in enumerate(self.graph.ops):
            for operand in (*op.writes, *op.mutates):
                parameter = owner.get(self.graph.values[operand.value].storage)
                if parameter is not None:
                    last[parameter] = index
        return last

    def step(self) -> list[Task]:
        """Return forward and backward of all micro-batches, one after another, and the clipping of gradients if the job has it."""
        return self.passes() + self.clip()

    def passes(self) -> list[Task]:
        """Return forward and backward of all micro-batches, one after another."""
        return [task for m in self.micro_batches for task in (*self.forward(m), *self.backward(m))]

    def forward(self, micro_batch: int = 0, stream: int = 0) -> list[Task]:
        """Return forward and loss of one micro-batch."""
        return self._phase(FORWARD, micro_batch, stream)[0]

    def backward(self, micro_batch: int = 0, stream: int = 0) -> list[Task]:
        """Return the backward of one micro-batch. In all but the first, each complete gradient is added to that of the first."""
        tasks, positions = self._phase(BACKWARD, micro_batch, stream)
        if micro_batch == self.micro_batches[0]:
            return tasks
        added = [(positions[index] + 1, self._accumulate(name, index, micro_batch, stream)) for name, index in self.gradient_ops.items()]
        return insert(tasks, added)

    def _phase(self, phase: str, micro_batch: int, stream: int) -> tuple[list[Task], dict[int, int]]:
        """Return the tasks of a phase, and the position of each op among them."""
        chosen = [index for index, op in enumerate(self.graph.ops) if op.phase == phase]
        tasks = [self._task(index, micro_batch, stream) for index in chosen]
        return tasks, {index: position for position, index in enumerate(chosen)}

    def clip(self, stream: int = 0) -> list[Task]:
        """Return the task that scales all gradients to the job's largest global norm, as torch.nn.utils.clip_grad_norm_ does.

        Returns an empty list without --clip-norm.
        """
        if self.job.clip_norm is None:
            return []
        gradients = tuple(self.gradient(parameter) for parameter in self.graph.parameters)
        body = OpList(_clip_steps(gradients, self.job.clip_norm, self._suffix), "clip")
        return [Task(self._own("clip"), body, self.device, stream, mutates=gradients, phase=UPDATE, layer="clip")]

    def update(self, parameters: Sequence[str], name: str, layer: str = "", lag: int = 0, stream: int = 0, priority: int = 0) -> Task:
        """Return one optimizer update of `parameters`."""
        job = self.job
        mutates = []
        for parameter in parameters:
            value = self._carried(parameter, PARAMETER)
            mutates.append(value.operand())
            for state in STATE[job.optimizer]:
                shape, dtype = state_shape(job.optimizer, state, value.shape, value.dtype)
                mutates.append(self._state(self._own(f"{parameter}::{state}"), f"{parameter}::{state}", shape, dtype, value.strides))
        body = Update(job.optimizer, job.form, tuple(parameters), job.hyper)
        reads = tuple(self.gradient(parameter) for parameter in parameters)
        name = self._own(name)
        return Task(name, body, self.device, stream, priority, reads, (), tuple(mutates), phase=UPDATE, layer=layer, lag=lag)

    def updates(self) -> list[Task]:
        """Return the updates of plain training: one update of all parameters, or one per parameter in the for-loop form."""
        if self.job.form != "for":
            return [self.update(self.graph.parameters, "update", "optimizer")]
        return [self.update([name], f"{name}/update", layer) for layer, owned in self.layers.items() for name in owned]

    def ready(self, tasks: Sequence[Task]) -> dict[str, int]:
        """Return by layer the index of the last task that uses its gradients or parameters: after this task the layer may be updated.

        Layers are sorted by this index. The rule is the use count and the race rule of "Optimizer Fusion", algorithm 3.
        """
        layer_of: dict[str, str] = {}  # by storage that an update of the layer must wait for
        for layer, owned in self.layers.items():
            for parameter in owned:
                layer_of[self.storage(parameter)] = layer
                layer_of[self.storage(self.gradient(parameter).value)] = layer
        last = {layer_of[s]: index for index, task in enumerate(tasks) for s in self.touched(task) if s in layer_of}
        return dict(sorted(((layer, last[layer]) for layer in self.layers), key=lambda item: item[1]))

    def first_use(self, tasks: Sequence[Task]) -> dict[str, int]:
        """Return by layer the index of the first task that reads its parameters. Layers are sorted by this index."""
        layer_of = {self.storage(parameter): layer for layer, owned in self.layers.items() for parameter in owned}
        first: dict[str, int] = {}
        for index, task in enumerate(tasks):
            for storage in self.touched(task) & layer_of.keys():
                first.setdefault(layer_of[storage], index)
        return dict(sorted(((layer, first[layer]) for layer in self.layers), key=lambda item: item[1]))

    def complete(self, tasks: Sequence[Task]) -> dict[str, int]:
        """Return by storage of a gradient the index of the last task that uses it: after this task it may be changed in place.

        Storages are sorted by this index.
        """
        gradients = {self.storage(self.gradient(parameter).value) for parameter in self.graph.parameters}
        last = {storage: index for index, task in enumerate(tasks) for storage in self.touched(task) & gradients}
        return dict(sorted(last.items(), key=lambda item: (item[1], item[0])))

    def holders(self) -> dict[str, Operand]:
        """Return the largest value on each of the device's storages made so far, as a whole operand."""
        largest: dict[str, tuple[int, Value]] = {}
        for value in self._values.values():
            size = math.prod(value.shape)
            if value.storage not in largest or size > largest[value.storage][0]:
                largest[value.storage] = (size, value)
        return {storage: value.operand() for storage, (_, value) in largest.items()}

    def fetches(self, machine: Machine) -> list[Task]:
        """Return copies of the inputs from the host to the device, for the micro-batches whose tasks have been made.

        The inputs are values of the host from then on.
        """
        means = LINK
        if machine.memory_name(HOST) == machine.memory_name(self.device):
            means = KERNEL if machine.link_between(HOST, self.device) else ALIAS
        copies = []
        for value in [v for v in self._values.values() if v.kind == INPUT and v.device == self.device]:
            on_host = self._host_value(f"{value.name}@{HOST}@{self.device}", value)
            self._values[value.name] = replace(value, kind=ACTIVATION, source=None)
            body = Copy(HOST, self.device, means=means)
            name = f"fetch {value.name}"
            copies.append(Task(name, body, self.device, reads=(on_host.operand(),), writes=(value.operand(),), phase=TRANSFER))
        return copies

    def at_host(self, operands: Sequence[Operand], name: str) -> tuple[Operand, ...]:
        """Make scratch values in the host's memory with the shapes of `operands`, and return their operands."""
        return tuple(
            self._host_value(f"{name}:{position}", replace(self._values[o.value], kind=SCRATCH, source=None)).operand()
            for position, o in enumerate(operands)
        )

    def _host_value(self, name: str, like: Value) -> Value:
        self._storages[name] = Storage(name, math.prod(like.shape) * DTYPE_BYTES[like.dtype], HOST)
        self._values[name] = replace(like, name=name, device=HOST, storage=name, strides=contiguous(like.shape))
        return self._values[name]

    def refuse_clipping(self, strategy: str, instead: str) -> None:
        """Raise StepcastError if the job clips by the global norm, for a strategy that updates before all gradients are known."""
        if self.job.clip_norm is not None:
            raise StepcastError(
                f"{strategy} cannot clip by the global norm (--clip-norm {self.job.clip_norm}): it updates before all gradients are known;"
                f" use {instead}"
            )

    def gradient(self, parameter: str) -> Operand:
        """Return the operand with the parameter's gradient, which is complete after the last micro-batch."""
        return self._operand(self.graph.gradients[parameter], self.micro_batches[0])

    def scratch(self, name: str, shape: tuple[int, ...], dtype: str) -> Operand:
        """Make a contiguous scratch value that is not in the graph, and return its operand."""
        operand = Operand(name, shape, contiguous(shape), dtype)
        self._values[name] = Value(name, shape, operand.strides, dtype, self.device, SCRATCH, name)
        self._storages[name] = Storage(name, operand.elements * DTYPE_BYTES[dtype], self.device)
        return operand

    def storage(self, value: str) -> str:
        """Return the storage of a placed value, or of this device's copy of a parameter."""
        placed = self._values.get(self._own(value)) or self._values.get(value)
        return placed.storage if placed is not None else self._own(self.graph.values[value].storage)

    def touched(self, task: Task) -> set[str]:
        """Return this device's storages that a task reads, writes or changes."""
        values = self._values
        return {values[o.value].storage for o in (*task.inputs, *task.writes) if o.value in values}

    def plan(
        self,
        strategy: str,
        tasks: Iterable[Task],
        options: object,
        semantics: dict[str, object] | None = None,
        others: "Sequence[PlanBuilder]" = (),
    ) -> Plan:
        """Return the finished plan. `others`: the builders of the other replicas."""
        notes: dict[str, object] = {"staleness": 0, **(semantics or {})}
        if self.parts > 1 and any("batch_norm" in op.name for op in self.graph.ops):
            notes["batch_norm"] = "statistics per micro-batch" if not others else "statistics per device and micro-batch"
        for builder in (self, *others):
            builder._add_unused()
        return Plan(
            strategy=strategy,
            segments=(Segment(tuple(tasks)),),
            values={name: value for builder in (self, *others) for name, value in builder._values.items()},
            storages={name: storage for builder in (self, *others) for name, storage in builder._storages.items()},
            losses=tuple(self._name(self.graph.loss, m) for m in range(self.parts)),
            gradients={parameter: self.gradient(parameter) for parameter in self.graph.parameters},
            options=option_values(options),
            semantics=notes,
        )

    def _add_unused(self) -> None:
        """Add the parameters and buffers that no task uses, because they take memory too."""
        for name in self.graph.values:
            if self.graph.values[name].kind in (PARAMETER, BUFFER):
                self._carried(name, self.graph.values[name].kind)

    def _task(self, index: int, micro_batch: int, stream: int) -> Task:
        op: Op = self.graph.ops[index]

        def place(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
            return tuple(self._operand(operand, micro_batch) for operand in operands)

        name = self._name(op.name, micro_batch, task=True)
        self.served[name] = (index, op.gradient)
        return Task(
            name=name,
            body=op.body,
            device=self.device,
            stream=stream,
            reads=place(op.reads),
            writes=place(op.writes),
            mutates=place(op.mutates),
            phase=op.phase,
            layer=op.layer,
            micro_batch=micro_batch,
        )

    def _accumulate(self, parameter: str, op: int, micro_batch: int, stream: int) -> Task:
        addend = self._operand(self.graph.gradients[parameter], micro_batch)
        name = f"{parameter}/accumulate@{micro_batch}"
        self.served[name] = (op, "dB" if self.graph.ops[op].gradient == "dB" else "dW")
        return Task(
            name=name,
            body=OpCall("aten.add_.Tensor", '[{"$":1},{"$":0}]', outputs=()),
            device=self.device,
            stream=stream,
            reads=(addend,),
            mutates=(self.gradient(parameter),),
            phase=BACKWARD,
            layer=self.graph.layers[parameter],
            micro_batch=micro_batch,
        )

    def _own(self, name: str) -> str:
        """Return the name of this device's copy of a carried value, storage or task."""
        return name + self._suffix

    def _name(self, name: str, micro_batch: int, task: bool = False) -> str:
        if not task and self.graph.values[name].kind in (PARAMETER, BUFFER):
            return self._own(name)
        return name if micro_batch == 0 else f"{name}@{micro_batch}"

    def _operand(self, operand: Operand, micro_batch: int) -> Operand:
        value = self.graph.values[operand.value]
        name = self._name(operand.value, micro_batch)
        if name not in self._values:
            if value.kind in (PARAMETER, BUFFER):
                self._carried(operand.value, value.kind)
            else:
                storage = self._name(value.storage, micro_batch) if value.storage in self.graph.values else name
                source = self._slice(value, micro_batch) if value.kind == INPUT else None
                self._values[name] = replace(value, name=name, device=self.device, storage=storage, source=source)
                self._storages.setdefault(storage, Storage(storage, self.graph.storage_bytes[value.storage], self.device))
        return operand if name == operand.value else replace(operand, value=name)

    def _slice(self, value: Value, micro_batch: int) -> Operand:
        """Return the micro-batch's slice of the job's input tensor."""
        size = self.job.batch // self.parts
        if self.parts == 1 or not value.shape or value.shape[0] != size:
            return value.operand()
        view = ViewStep("aten.slice.Tensor", json.dumps([0, micro_batch * size, (micro_batch + 1) * size]))
        return replace(value.operand(), views=(view,))

    def _carried(self, tensor: str, kind: str) -> Value:
        """Return the value of a parameter or buffer of the job on this device."""
        name = self._own(tensor)
        if name not in self._values:
            value = self.graph.values[tensor]
            source, storage = Operand(tensor, value.shape, value.strides, value.dtype), self._own(value.storage)
            self._values[name] = replace(value, name=name, device=self.device, storage=storage, source=source, kind=kind)
            self._storages.setdefault(storage, Storage(storage, self.graph.storage_bytes[value.storage], self.device))
        return self._values[name]

    def _state(self, name: str, tensor: str, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...]) -> Operand:
        if name not in self._values:
            strides = strides if shape else ()
            operand = Operand(name, shape, strides, dtype)
            source = replace(operand, value=tensor)
            self._values[name] = Value(name, shape, strides, dtype, self.device, OPTIMIZER_STATE, name, source)
            self._storages[name] = Storage(name, operand.elements * DTYPE_BYTES[dtype], self.device)
        return self._values[name].operand()


def insert(tasks: Sequence[Task], additions: Iterable[tuple[int, Task]]) -> list[Task]:
    """Return `tasks` with each addition inserted before the task at its position; additions at one position keep their order."""
    by_position: dict[int, list[Task]] = {}
    for position, task in additions:
        by_position.setdefault(position, []).append(task)
    result: list[Task] = []
    for index in range(len(tasks) + 1):
        result += by_position.get(index, ())
        result += tasks[index : index + 1]
    return result


def _clip_steps(gradients: tuple[Operand, ...], largest: float, suffix: str) -> tuple[Step, ...]:
    """Return the ops of torch.nn.utils.clip_grad_norm_ (2-norm, foreach). `suffix` makes the names of their results unique."""
    dtype = gradients[0].dtype
    all_inputs = [{"$": i} for i in range(len(gradients))]

    def scalar(name: str) -> Operand:
        return Operand(f"clip:{name}{suffix}", (), (), dtype)

    def step(target: str, args: list, reads: tuple[Operand, ...], write: Operand) -> Step:
        return Step(OpCall(f"aten.{target}", json.dumps(args, separators=(",", ":"))), reads, (write,))

    norms = tuple(scalar(f"norm{i}") for i in range(len(gradients)))
    stacked = Operand(f"clip:norms{suffix}", (len(gradients),), (1,), dtype)
    total, shifted, inverse, ratio, factor = map(scalar, ("total", "shifted", "inverse", "ratio", "factor"))
    args = json.dumps([all_inputs, 2], separators=(",", ":"))
    scale = json.dumps([[{"$": i + 1} for i in range(len(gradients))], {"$": 0}], separators=(",", ":"))
    return (
        Step(OpCall("aten._foreach_norm.Scalar", args, outputs=tuple(range(len(norms)))), gradients, norms),
        step("stack.default", [all_inputs], norms, stacked),
        step("linalg_vector_norm.default", [{"$": 0}, 2.0], (stacked,), total),
        step("add.Tensor", [{"$": 0}, 1e-6], (total,), shifted),
        step("reciprocal.default", [{"$": 0}], (shifted,), inverse),
        step("mul.Tensor", [{"$": 0}, largest], (inverse,), ratio),
        step("clamp.default", [{"$": 0}, None, 1.0], (ratio,), factor),
        Step(OpCall("aten._foreach_mul_.Tensor", scale, outputs=()), (factor,), (), gradients),
    )
