"""Build the tasks of a job from its graph: the part that all strategies have in common.

A strategy asks for the forward and backward tasks of its microbatches and for updates of parameters, puts them in its own order, and calls
`plan`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from simulator.engine.collectives.tasks import fetches
from simulator.machine.machine import Machine
from simulator.model.division.divide import UNDIVIDED, Division
from simulator.model.gradients import GROWTH, SCALE, clip_steps, unscale_steps
from simulator.model.graph import Op, TrainingGraph
from simulator.model.job import Job
from simulator.model.whole_mean import noted
from simulator.plan.bodies.op_class import ADDED_PRODUCT, GROUPED_PRODUCT, PRODUCT
from simulator.plan.bodies.opcall import ATTENTION, CAST, ListedOp, OpCall, OpList, drawn_part
from simulator.plan.bodies.update import STATE, Update, state_shape
from simulator.plan.plan import Plan
from simulator.plan.repeat import with_omitted
from simulator.plan.task import (
    BACKWARD,
    BUFFER,
    FORWARD,
    PARAMETER,
    UPDATE,
    DeviceClass,
    Operand,
    Task,
    Value,
)
from simulator.plan.tensors import PlanTensors, contiguous, merged
from simulator.strategies.compact import omitted
from simulator.strategies.copy_values import CopyValues, Placement
from simulator.strategies.options import AnyOptions, Gradients, option_values
from traces.errors import Code, SchedcastError

#: The most tasks of a step, so that planning and simulating it takes less than a minute; checked from this number of microbatches on.
MOST_TASKS, FEW_PARTS = 100_000, 256
#: Adds what a task reads to what it changes.
ADD = OpCall("aten.add_.Tensor", '[{"$":1},{"$":0}]', outputs=())
#: Copies what a task reads to what it changes.
COPY = OpCall("aten.copy_.default", '[{"$":1},{"$":0}]', outputs=())
#: The arguments of a product of what a task reads; and those of one that is added to what it changes.
_OF_READS, _ADDED = '[{"$":0},{"$":1}]', '[{"$":2},{"$":0},{"$":1}]'
#: What a builder does with gradients: that of an option, or it adds those of each microbatch from buckets.
Kept = Gradients | Literal["bucketed"]


def kept_by(gradients: Gradients, replicas: int, sharded: bool) -> Kept:
    """What replicas' builders do with gradients: DistributedDataParallel, which has buckets, sums `held` ones if nothing is sharded."""
    return "bucketed" if gradients == "held" and replicas > 1 and not sharded else gradients


def _in_a_row(read: Operand, calls: Sequence[OpCall], write: Operand) -> list[ListedOp]:
    """Calls, each of which uses the result of the previous one."""
    made = [replace(read, value=f"{read.value}:{number}") for number in range(1, len(calls))]
    return [ListedOp(call, (a,), (b,)) for call, a, b in zip(calls, [read, *made], [*made, write], strict=True)]


def _added(parts: Sequence[Operand], write: Operand) -> list[ListedOp]:
    """The sum of some scalars."""
    stacked = Operand(f"{write.value}:all", (len(parts),), (1,), write.dtype)
    every = json.dumps([[{"$": number} for number in range(len(parts))]], separators=(",", ":"))
    return [
        ListedOp(OpCall("aten.stack.default", every), tuple(parts), (stacked,)),
        ListedOp(OpCall("aten.sum.default", '[{"$":0}]'), (stacked,), (write,)),
    ]


@dataclass(frozen=True)
class Share:
    """The samples of a step that tasks work on: the microbatches `numbers` of `parts` equal parts of the batch.

    `omitted`: how many more microbatches the copy of the model works on, which its plan omits (`strategies.compact`).
    """

    parts: int
    numbers: range
    omitted: int = 0


class PlanBuilder(CopyValues):
    """Makes the tasks of one copy of a job's model, and the values that they use (`CopyValues`).

    The copy is on one device, or is spread over several by a `Placement`. It works on all microbatches of a step, or on a `Share` of
    them if other copies work on the others. Names of carried values, and of tasks that belong to no microbatch, end in `suffix`.
    """

    def __init__(
        self,
        job: Job,
        place: str | Placement,
        graph: TrainingGraph | None = None,
        share: Share | None = None,
        suffix: str = "",
        kept: Kept = "freed",
        division: Division = UNDIVIDED,
    ):
        """`graph`: a changed graph that computes the same as the graph of the job's microbatch; default: that graph, of `division`.

        `kept`: gradients that are not freed are carried from step to step; `zero_gradients` sets them to zero, and all microbatches add to
        them. If fused, the products that compute them do, even if a cast follows. If held, `additions` adds them; if bucketed, this is true
        of all microbatches but the last, whose gradients are copied to separate memory and added immediately, as DistributedDataParallel
        does.
        """
        parts = share.parts if share is not None else job.accumulate
        graph = graph or job.graph(job.batch // parts, parts, division=division)
        without = omitted(job, len(graph.ops)) if share is None else 0
        self.share = share = share or Share(parts, range(parts - without), without)
        if len(share.numbers) > FEW_PARTS and len(share.numbers) * len(graph.ops) > MOST_TASKS:
            raise SchedcastError(
                f"{len(share.numbers):,} microbatches make more than {MOST_TASKS:,} tasks in a step; choose fewer, larger ones"
            )
        placement = Placement((place,) * len(graph.ops)) if isinstance(place, str) else place
        of_rank = f"~{division.number}" if division.number else ""
        super().__init__(graph, placement, job.batch, parts, suffix, of_rank)
        self.job, self.microbatches = job, share.numbers
        #: The microbatch whose gradient of a parameter is complete first, if it is not the first one: the others are added to it.
        self.first_of: dict[str, int] = {}
        #: Task name -> index of the op that it runs, or whose result it accumulates, and its role (dX, dW, dB; "" in forward).
        self.served: dict[str, tuple[int, str]] = {}
        self._kept, self._keeps_gradients = kept, kept != "freed"
        self._held: list[Task] = []

    @cached_property
    def layers(self) -> dict[str, list[str]]:
        """Trainable parameters by the layer that owns them, in module order."""
        layers: dict[str, list[str]] = {}
        for parameter in self.graph.parameters:
            layers.setdefault(self.graph.layers[parameter], []).append(parameter)
        return layers

    def step(self) -> list[Task]:
        """Return forward and backward of all microbatches, one after another, and what is done to all gradients before the update."""
        return self.passes() + self.finish_gradients()

    def passes(self) -> list[Task]:
        """Return forward and backward of all microbatches, one after another, and before them what counts the targets (`counts`)."""
        return self.counts() + [task for m in self.microbatches for task in (*self.forward(m), *self.backward(m))]

    def counts(self) -> list[Task]:
        """Return the tasks that make the numbers that losses are divided by (`TrainingGraph.counts`); none for most graphs.

        The first makes what counts in this copy's part of the batch (`counted`), which several copies sum; the second, what follows from
        it. Raises SchedcastError if they need what earlier stages have.
        """
        if not self.graph.counts:
            return []
        home = self.place.home(next(iter(self.graph.counts)))
        counting: list[ListedOp] = []
        dividing: list[ListedOp] = []
        given: dict[Operand, None] = {}
        writes = []
        for (name, count), total in zip(self.graph.counts.items(), self.counted, strict=True):
            parts = [self._counted(name, m, given, counting, total.dtype) for m in self.microbatches]
            counting += _added(parts, total)
            write = self._operand(self.graph.values[name].operand(), 0)
            cast = [OpCall.cast(write.dtype)] if write.dtype != total.dtype else []
            dividing += _in_a_row(total, [*count.of_batch, *cast], write)
            writes.append(write)
        own = self._own
        if any(self.tensors.values[operand.value].device != home for operand in given):
            raise SchedcastError(
                "the last stage cannot count the targets of the batch, since another stage has what tells which ones count; use"
                " --loss-mean parts",
                Code.MODEL,
            )
        first = Task(own("count targets"), OpList(tuple(counting), "count"), home, reads=tuple(given), writes=self.counted, phase=FORWARD)
        last = Task(own("divide targets"), OpList(tuple(dividing), "count"), home, reads=self.counted, writes=tuple(writes), phase=FORWARD)
        return [replace(task, layer="loss") for task in (first, last)]

    @cached_property
    def counted(self) -> tuple[Operand, ...]:
        """What counts in this copy's part of the batch, which becomes the sum over several copies."""
        values, homes = self.graph.values, self.place.home
        return tuple(
            self.tensors.scratch(self._own(f"{name}:sum"), (), "float64" if values[name].dtype == "float64" else "float32", homes(name))
            for name in self.graph.counts
        )

    def _counted(self, name: str, microbatch: int, given: dict[Operand, None], steps: list[ListedOp], dtype: str) -> Operand:
        """Add the ops that count in a microbatch to `steps`, and what they read of the plan's values to `given`. Returns their result."""
        count = self.graph.counts[name]
        number_of = {op.name: index for index, op in enumerate(self.graph.ops)}
        made: set[str] = set()

        def own(operand: Operand, op: Op) -> Operand:
            if operand.value in made:
                return replace(operand, value=self._own(f"{operand.value}@{microbatch} of {name}"))
            placed = self._operand(operand, microbatch, number_of.get(op.name, -1))
            given.setdefault(placed)
            return placed

        for op in count.ops:
            made |= {operand.value for operand in op.writes}
            operands = [tuple(own(operand, op) for operand in role) for role in (op.reads, op.writes, op.mutates)]
            steps.append(ListedOp(op.body, *operands))
        result = own(count.counted, count.ops[-1])
        counted = replace(result, value=f"{result.value}:number", dtype=dtype)
        steps.append(ListedOp(OpCall.cast(dtype), (result,), (counted,)))
        return counted

    def forward(self, microbatch: int = 0, stream: int = 0) -> list[Task]:
        """Return forward and loss of one microbatch."""
        return self.ops([index for index, op in enumerate(self.graph.ops) if op.phase == FORWARD], microbatch, stream)

    def backward(self, microbatch: int = 0, stream: int = 0) -> list[Task]:
        """Return the backward of one microbatch. In all but the first, each complete gradient is added to that of the first."""
        return self.ops([index for index, op in enumerate(self.graph.ops) if op.phase == BACKWARD], microbatch, stream) + self.additions()

    def additions(self) -> list[Task]:
        """Return the tasks that add the `held` gradients of the ops that `ops` has returned so far."""
        held, self._held = self._held, []
        return held

    def ops(
        self,
        indices: Sequence[int],
        microbatch: int = 0,
        stream: int = 0,
        instead: "Mapping[str, str | Operand] | None" = None,
        lag: int = 0,
        action: str = "",
    ) -> list[Task]:
        """Return the tasks of some ops of the graph for one microbatch, in order, each on its own device.

        A complete gradient is added to that of the first microbatch, or left for `additions`. `instead`: values to use in place of others,
        or operands of the same geometry, which views of those others then view.
        """
        tasks = []
        for index in indices:
            if index not in self._needless:
                tasks.append(self._task(index, microbatch, stream, instead or {}, lag, action))
            added = (
                parameter
                for parameter in self._completed.get(index, ())
                if parameter not in self._added_by_products and microbatch != self._first(parameter)
            )
            sums = [task for parameter in added for task in self._accumulate(parameter, index, microbatch, stream, lag, action)]
            (self._held if self._holds(microbatch) else tasks).extend(sums)
        return tasks

    def _holds(self, microbatch: int) -> bool:
        """Whether the gradients of a microbatch are added after its backward."""
        return self._kept == "held" or (self._kept == "bucketed" and microbatch != self.microbatches[-1])

    @cached_property
    def _completed(self) -> dict[int, list[str]]:
        """The parameters whose gradient an op completes, by op."""
        completed: dict[int, list[str]] = {}
        for parameter, index in self.graph.gradient_ops.items():
            completed.setdefault(index, []).append(parameter)
        return completed

    @cached_property
    def _needless(self) -> frozenset[int]:
        """The last casts of gradients that are not run, since a carried gradient adds what they read: no copy is made."""
        ops, gradients = self.graph.ops, self.graph.gradients
        readers = Counter(operand.value for op in ops for operand in op.inputs)
        completing = self.graph.gradient_ops.items() if self._keeps_gradients else ()
        casts = [index for parameter, index in completing if ops[index].body.target == CAST and not gradients[parameter].views]
        return frozenset(index for index in casts if readers[ops[index].reads[0].value] == 1)

    def _addend(self, parameter: str, op: int) -> Operand:
        """What is added to a parameter's gradient, which an op completes."""
        return self.graph.ops[op].reads[0] if op in self._needless else self.graph.gradients[parameter]

    @cached_property
    def _adding(self) -> dict[int, str]:
        """The parameter to whose gradient an op's product is added, by op."""
        adding: dict[int, str] = {}
        ops = self.graph.ops
        if self._kept != "fused":
            return adding
        makers = {operand.value: index for index, op in enumerate(ops) for operand in op.writes}
        for parameter, last in self.graph.gradient_ops.items():
            made = self._addend(parameter, last)
            maker = makers.get(made.value, last) if last in self._needless else last
            body = ops[maker].body
            if body.target == PRODUCT and body.args == _OF_READS and not made.views:
                adding[maker] = parameter
        return adding

    @cached_property
    def _added_by_products(self) -> frozenset[str]:
        """The parameters whose gradients need no separate sum."""
        return frozenset(self._adding.values())

    def _first(self, parameter: str) -> int:
        """The microbatch whose gradient the others are added to; -1 if all are added to a carried one."""
        return -1 if self._keeps_gradients else self.first_of.get(parameter, self.microbatches[0])

    def zero_gradients(self, parameters: Sequence[str] = (), name: str = "zero gradients") -> Task:
        """Return the task that sets carried gradients to zero, as torch.optim's `zero_grad(set_to_none=False)` does.

        `parameters`: those of one device (default: all).
        """
        gradients = tuple(self.gradient(parameter) for parameter in parameters or self.graph.parameters)
        args = json.dumps([[{"$": i} for i in range(len(gradients))]], separators=(",", ":"))
        body = OpCall("aten._foreach_zero_.default", args, outputs=())
        device = self.tensors.values[gradients[0].value].device
        return Task(self._own(name), body, device, mutates=gradients, phase=UPDATE, layer="optimizer")

    def finish_gradients(self, lag: int = 0) -> list[Task]:
        """Return the tasks that change all gradients before the update.

        With a gradient scaler, one divides them by the loss's scale, as torch.amp.GradScaler does. With --clip-norm, one scales them to the
        largest global norm, as torch.nn.utils.clip_grad_norm_ does.
        """
        tasks = []
        gradients = tuple(self.gradient(parameter) for parameter in self.graph.parameters)
        if self.job.scales_loss:
            scale, growth = (self._carried(name, BUFFER).operand() for name in (SCALE, GROWTH))
            steps, overflow = unscale_steps(gradients, scale, growth, self._overflow), (self._overflow,)
            mutates = (*gradients, scale, growth)
            body = OpList(steps, "unscale")
            tasks.append(Task(self._own("unscale"), body, self.device, writes=overflow, mutates=mutates, phase=UPDATE, lag=lag))
        if self.job.clip_norm is not None:
            body = OpList(clip_steps(gradients, self.job.clip_norm, self._suffix), "clip")
            tasks.append(Task(self._own("clip"), body, self.device, mutates=gradients, phase=UPDATE, layer="clip", lag=lag))
        return tasks

    @property
    def _overflow(self) -> Operand:
        """The scalar that is 1 if a gradient of the step is not finite."""
        name = self._own("overflow")
        return self.tensors.values[name].operand() if name in self.tensors.values else self.scratch(name, (), "float32")

    def update(self, parameters: Sequence[str], name: str, layer: str = "", lag: int = 0, stream: int = 0, priority: int = 0) -> Task:
        """Return one optimizer update of `parameters`."""
        job = self.job
        mutates = []
        for parameter in parameters:
            value = self._carried(parameter, PARAMETER)
            mutates.append(value.operand())
            for state in STATE[job.optimizer]:
                shape, dtype = state_shape(job.optimizer, state, value.shape, value.dtype)
                mutates.append(self._state(f"{parameter}::{state}", shape, dtype, value))
        body = Update(job.optimizer, job.form, tuple(parameters), job.hyper, job.rates, may_skip=job.scales_loss)
        reads = tuple(self.gradient(parameter) for parameter in parameters) + ((self._overflow,) if job.scales_loss else ())
        name, device = self._own(name), self.place.home(parameters[0])
        return Task(
            name, body, device, stream=stream, priority=priority, reads=reads, mutates=tuple(mutates), phase=UPDATE, layer=layer, lag=lag
        )

    def updates(self, lag: int = 0) -> list[Task]:
        """Return the updates of plain training: one update of all parameters, or one per parameter in the for-loop form."""
        if self.job.form != "for":
            return [self.update(self.graph.parameters, "update", "optimizer", lag)]
        return [self.update([name], f"{name}/update", layer, lag) for layer, owned in self.layers.items() for name in owned]

    def ready(self, tasks: Sequence[Task]) -> dict[str, int]:
        """Return by layer the index of the last task that uses its gradients or parameters: after this task the layer may be updated.

        Layers are sorted by this index. The rule is the use count and the race rule of "Optimizer Fusion", algorithm 3.
        """
        layer_of: dict[str, str] = {}  # by storage that an update of the layer must wait for
        for layer, owned in self.layers.items():
            for parameter in owned:
                layer_of[self.storage(parameter)] = layer
                layer_of[self.storage(self.gradient(parameter).value)] = layer
        last = {layer_of[s]: index for index, task in enumerate(tasks) for s in self.tensors.touched(task) if s in layer_of}
        return dict(sorted(((layer, last[layer]) for layer in self.layers), key=lambda item: item[1]))

    def updates_of_layers(self, stream: int = 0, lag: int = 0) -> list[Task]:
        """Return one update per layer. A layer whose parameters lie on several devices has an update on each of them."""
        updates = []
        for layer, parameters in self.layers.items():
            owned: dict[str, list[str]] = {}  # by device
            for parameter in parameters:
                owned.setdefault(self.place.home(parameter), []).append(parameter)
            for number, own in enumerate(owned.values()):
                name = f"{layer}/update/{number}" if number else f"{layer}/update"
                updates.append(self.update(own, name, layer, lag, stream))
        return updates

    def first_use(self, tasks: Sequence[Task]) -> dict[str, int]:
        """Return by layer the index of the first task that reads its parameters. Layers are sorted by this index."""
        layer_of = {self.storage(parameter): layer for layer, owned in self.layers.items() for parameter in owned}
        first: dict[str, int] = {}
        for index, task in enumerate(tasks):
            for storage in self.tensors.touched(task) & layer_of.keys():
                first.setdefault(layer_of[storage], index)
        return dict(sorted(((layer, first[layer]) for layer in self.layers), key=lambda item: item[1]))

    def complete(self, tasks: Sequence[Task]) -> dict[str, int]:
        """Return by storage of a gradient the index of the last task that uses it: after this task it may be changed in place.

        Storages are sorted by this index.
        """
        gradients = {self.storage(self.gradient(parameter).value) for parameter in self.graph.parameters}
        last = {storage: index for index, task in enumerate(tasks) for storage in self.tensors.touched(task) & gradients}
        return dict(sorted(last.items(), key=lambda item: (item[1], item[0])))

    def fetches(self, machine: Machine) -> list[Task]:
        """Return copies of the inputs from the host to the device, for the microbatches whose tasks have been made.

        From then on, the inputs are values on the host.
        """
        return fetches(machine, self.tensors, self.device)

    def refuse_clipping(self, strategy: str, instead: str) -> None:
        """Raise SchedcastError if the job needs all gradients before an update, for a strategy that updates before they are known."""
        if self.job.needs_all_gradients:
            raise SchedcastError(
                f"{strategy} cannot {self.job.needs_all_gradients}: it updates before all gradients are known; use {instead}", Code.MODEL
            )

    def gradient(self, parameter: str) -> Operand:
        """Return the operand with the parameter's gradient, which is complete after the last microbatch."""
        if self._keeps_gradients:
            name, made = self._own(f"{parameter}::gradient"), self.graph.gradients[parameter]
            if name not in self.tensors.values:
                strides, device = self.graph.values[parameter].strides, self.place.home(self.graph.gradients[parameter].value)
                self.tensors.add(Value(name, made.shape, strides, dtype=made.dtype, device=device, kind=BUFFER))
            return self.tensors.values[name].operand()
        return self._operand(self.graph.gradients[parameter], self._first(parameter))

    @property
    def gradients(self) -> dict[str, Operand]:
        """By name of this copy of a parameter, the operand with its gradient."""
        return {self._own(parameter): self.gradient(parameter) for parameter in self.graph.parameters}

    def whole_gradients(self, parameters: Sequence[str]) -> tuple[Operand, ...]:
        """Return the largest values on the storages of the parameters' gradients, which lie on one device, as whole operands."""
        gradients = [self.tensors.values[self.gradient(parameter).value] for parameter in parameters]
        holders = self.tensors.holders(gradients[0].device)
        return tuple(holders[storage] for storage in dict.fromkeys(value.storage for value in gradients))

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses of its microbatches."""
        return tuple(self._name(self.graph.loss, m) for m in self.microbatches)

    def graph_notes(self, several: bool) -> dict[str, object]:
        """What the semantics of a plan say about the graph. `several`: whether several devices have a copy of the model."""
        notes: dict[str, object] = {}
        if self.parts > 1 and any("batch_norm" in op.name for op in self.graph.ops):
            notes["batch_norm"] = "statistics per device and microbatch" if several else "statistics per microbatch"
        notes |= noted(self.graph, self.parts, self.job.factory.repeats)
        if self.graph.assumptions:
            notes["assumed"] = self.graph.assumptions[0]
        if self.graph.taken:
            notes["taken"] = "; ".join(self.graph.taken)
        if any(op.body.target == GROUPED_PRODUCT for op in self.graph.ops):
            notes["experts"] = "predicted with as many tokens for each"
        if any(op.body.target == ATTENTION and drawn_part(op.body.kwargs) is not None for op in self.graph.ops):
            notes["attention_dropout"] = "each device would draw masks of its own for its heads, so that this is predicted only"
        if self.graph.checkpoint:
            notes["checkpoint"] = self.graph.checkpoint
        return notes

    def plan(
        self,
        strategy: str,
        tasks: Iterable[Task],
        options: AnyOptions,
        semantics: dict[str, object] | None = None,
        others: "Sequence[PlanBuilder]" = (),
        shards: Sequence[PlanTensors] = (),
        gradients: Mapping[str, Operand] | None = None,
        classes: tuple[DeviceClass, ...] = (),
    ) -> Plan:
        """Return the finished plan. `others`: the builders of the model's other copies. `classes`: of its devices, if it has one for many.

        `shards`: the pieces of the trained parameters, with their `gradients`, if the copies do not have whole parameters.
        """
        notes: dict[str, object] = {"staleness": 0, **(semantics or {})}
        notes |= self.graph_notes(several=bool(others) or "replicas" in notes)  # one device may represent all
        for builder in (self, *others):
            builder.carry_unused(frozenset(self.graph.parameters if shards else ()))
        tensors = merged([*(builder.tensors for builder in (self, *others)), *shards])
        plan = Plan(
            strategy=strategy,
            tasks=tuple(tasks),
            values=tensors.values,
            storages=tensors.storages,
            losses=tuple(name for builder in (self, *others) for name in builder.losses),
            gradients=gradients or self.gradients,
            options=option_values(options),
            semantics=notes,
            classes=classes,
        )
        return self.with_omitted(plan)

    def with_omitted(self, plan: Plan) -> Plan:
        """The plan with what it says of the omitted microbatches, which repeat the one before the last."""
        if not self.share.omitted:
            return plan
        begins: dict[int, int] = {}
        for position, task in enumerate(plan.tasks):
            if task.phase == FORWARD:
                begins.setdefault(task.microbatch, position)
        before, last = self.microbatches[-2:]
        return with_omitted(plan, plan.tasks[begins[before] : begins[last]], self.share.omitted, len(self.microbatches))

    def _task(self, index: int, microbatch: int, stream: int, instead: Mapping[str, str | Operand], lag: int, action: str) -> Task:
        op: Op = self.graph.ops[index]

        def place(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
            return tuple(self._operand(operand, microbatch, index, instead) for operand in operands)

        body, writes = op.body, op.writes
        name, summed = self._name(op.name, microbatch, task=True), self._adding.get(index)
        if summed:
            body, writes = replace(body, target=ADDED_PRODUCT, args=_ADDED, outputs=()), ()
        self.served[name] = (index, op.gradient)
        return Task(
            name=name,
            body=self._numbered(body, microbatch),
            device=self.place.devices[index],
            stream=stream,
            reads=place(op.reads),
            writes=place(writes),
            mutates=place(op.mutates) if not summed else (self.gradient(summed),),
            phase=op.phase,
            layer=op.layer,
            microbatch=microbatch,
            lag=lag,
            action=action,
        )

    def _numbered(self, body: OpCall, microbatch: int) -> OpCall:
        """The op as a microbatch runs it: the draws of one microbatch come after those of the one before."""
        return replace(body, draw=body.draw + microbatch * self.graph.draws) if microbatch and body.random else body

    def _accumulate(self, parameter: str, op: int, microbatch: int, stream: int, lag: int, action: str) -> list[Task]:
        addend = self._operand(self._addend(parameter, op), microbatch)
        device = self.place.home(self.graph.gradients[parameter].value)
        role = "dB" if self.graph.ops[op].gradient == "dB" else "dW"
        layer, end = self.graph.layers[parameter], f"@{microbatch}{self._of_rank}"

        def made(what: str, body: OpCall, read: Operand, changed: Operand) -> Task:
            name = f"{parameter}/{what}{end}"
            self.served[name] = (op, role)
            own = (device, stream, 0, (read,), (), (changed,))
            return Task(name, body, *own, phase=BACKWARD, layer=layer, microbatch=microbatch, lag=lag, action=action)

        if self._kept != "bucketed" or self._holds(microbatch):
            return [made("accumulate", ADD, addend, self.gradient(parameter))]
        name = self._own(f"{parameter}::bucket")
        bucket = self.tensors.add(
            Value(name, addend.shape, contiguous(addend.shape), dtype=addend.dtype, device=device, kind=BUFFER)
        ).operand()
        return [made("copy", COPY, addend, bucket), made("accumulate", ADD, bucket, self.gradient(parameter))]
