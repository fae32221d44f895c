"""A whole training step in shards: any configuration for each layer becomes the tasks of every device."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from simulator.engine.collectives.tasks import COMPUTE, URGENCIES, Sender, fetches, priority_of, urgencies
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.model.whole_mean import noted
from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD, BUFFER, CARRIED_KINDS, FORWARD, INPUT, PARAMETER, Operand, Task, Value
from simulator.plan.tensors import PlanTensors
from simulator.plan.views import NotABoxError, dense
from simulator.strategies.options import option_values
from simulator.strategies.sharding.boxes import Box, cut, overlap, shape_of, whole, without
from simulator.strategies.sharding.configuration import Configuration, StepOptions
from simulator.strategies.sharding.fetching import Distributed, Fetcher, Piece
from simulator.strategies.sharding.local import LocalOp, shard
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.parameters import Pieces
from simulator.strategies.sharding.regions import name_of, rule_of
from simulator.strategies.sharding.synchronized import DIFFERENTIATE, NORMALIZE, Member, Synchronized
from traces.errors import Code, SchedcastError

#: Results that each worker has for itself: statistics of its part, and the loss and its gradient by the mean over its images.
_OWN = frozenset({"nll_loss_forward", "ones_like", "full_like"})

#: By input of an op, an operand with its box, and the same as the op sees it.
_Brought = list[tuple[Operand, Operand]]


@dataclass(frozen=True)
class Placed:
    """The configuration of a layer, and the device of each of its workers."""

    configuration: Configuration
    devices: tuple[str, ...]


class ShardedStep:
    """Builds the plan of a job whose layers are divided as `placed` says."""

    def __init__(self, strategy: str, job: Job, machine: Machine, network: Network, placed: Sequence[Placed], options: StepOptions):
        self.strategy, self.job, self.machine, self.options = strategy, job, machine, options
        self.network, self.graph = network, network.graph
        self.placed = tuple(placed)
        devices = tuple(device.name for device in machine.devices)
        self.tensors = PlanTensors()
        self.tasks: list[Task] = []
        self.sender = Sender(machine, devices)
        self.fetcher = Fetcher(self.sender, self.tensors, self.tasks)
        self.pieces = Pieces(job, self.graph, machine, self.tensors, devices[0], options.server)
        self.values: dict[str, Distributed] = {}
        self._losses: list[str] = []
        #: By value: the last op that changes it in place.
        self._changed = {o.value: index for index, op in enumerate(self.graph.ops) for o in op.mutates}
        self._reduced: list[Task] = []
        self._levels = machine.priority_levels
        #: The first stream that neither computes nor sends: for sums of gradients; then come sums of statistics, and early updates.
        self._sums = self.sender.streams
        after_sums = URGENCIES if options.priorities else options.lag
        # the step waits for statistics, though gradients may still be under way
        lane = (self._sums + after_sums, 1 - self._levels) if options.overlap else (COMPUTE, 0)
        self._synchronized = Synchronized(machine, self.tensors, self.fetcher, *lane)
        self._check_memory()

    def plan(self) -> Plan:
        """The finished plan. Raises SchedcastError if a needed part of a tensor is on no device."""
        try:
            return self._plan()
        except NotABoxError as error:
            raise SchedcastError(
                f"{self.strategy} cannot divide this model: {error}; use data-parallel, or a pipeline", Code.MODEL
            ) from error

    def _plan(self) -> Plan:
        self._hold_all()
        for index, local_ops in self._local_ops:
            if self._synchronizes(index):
                self._run_synchronized(index, local_ops)
            else:
                self._run(index, local_ops)
            self._reduce_after(index)
        self._hold_unused()
        self.tasks += self._reduced
        early = self._sums + URGENCIES + 1 if self.options.overlap else COMPUTE  # where backward does not wait for their sums
        tasks = self.pieces.with_updates(self.tasks, self.options, early)
        if self.options.fetch:
            copies = [fetches(self.machine, self.tensors, device) for device in self.sender.devices]
            tasks = [task for at in range(max(map(len, copies), default=0)) for own in copies for task in own[at : at + 1]] + tasks
        division = {layer.name: str(placed.configuration) for layer, placed in zip(self.network.layers, self.placed, strict=True)}
        return Plan(
            strategy=self.strategy,
            tasks=tuple(tasks),
            values=self.tensors.values,
            storages=self.tensors.storages,
            losses=tuple(self._losses),
            gradients={
                piece.operand.value: self.pieces.gradients[piece.operand.value]
                for parameter in self.graph.parameters
                for piece in {each.box: each for each in reversed(self.pieces.of[parameter])}.values()
            },
            options=option_values(self.options),
            semantics={"staleness": self.options.lag, "divided": division}
            | ({"checkpoint": self.graph.checkpoint} if self.graph.checkpoint else {})
            | self._undivided()
            | self._statistics()
            | self._losses_of_parts()
            | self.options.notes,
        )

    def _check_memory(self) -> None:
        """Refuse values that share memory with others, of which one would have to follow the changes of the other."""
        changed = {self.graph.values[name].storage for name in self._changed}
        seen: dict[str, str] = {}
        for value in self.graph.values.values():
            if seen.setdefault(value.storage, value.name) != value.name and value.storage in changed:
                raise SchedcastError(
                    f"{self.strategy}: {value.name} and {seen[value.storage]} share memory that the step changes, and so cannot be divided",
                    Code.MODEL,
                )

    def _undivided(self) -> dict[str, object]:
        """What to say of the kinds of ops that no rule divides: each runs on one device, on whole tensors."""
        ops = (self.graph.ops[index] for layer in self.network.layers for index in layer.ops)
        kinds = sorted({name_of(op) for op in ops if rule_of(op) is None and not self.network.only_counts(op)})
        return {"on_one_device": kinds} if kinds else {}

    def _statistics(self) -> dict[str, object]:
        """What to say of batch-norms whose workers have separate statistics: their parts along n, h and w."""
        parts: dict[str, list[int]] = {}
        for layer, placed in zip(self.network.layers, self.placed, strict=True):
            n, _, h, w = placed.configuration.degrees
            parts |= {self.graph.ops[index].layer: [n, h, w] for index in layer.ops if n * h * w > 1 and self._normalizes(index)}
        if not parts or self.options.batch_norm == "synchronized":
            return {}
        return {"batch_norm": "statistics per shard", "batch_norm_parts": parts}

    def _losses_of_parts(self) -> dict[str, object]:
        """What to say of a loss that several workers have the mean of: the parts along n."""
        for index in self.graph.uneven_ops:
            parts = self.placed[self.network.layer_of[index]].configuration.n
            if notes := noted(self.graph, parts, self.job.factory.repeats):
                return notes
        return {}

    def _normalizes(self, index: int) -> bool:
        """Whether an op is a batch-norm with the statistics of its input, or its backward."""
        op = self.graph.ops[index]
        training = {NORMALIZE: 5, DIFFERENTIATE: 7}.get(op.body.target)
        return training is not None and json.loads(op.body.args)[training]

    # --- what every worker does

    @cached_property
    def _local_ops(self) -> list[tuple[int, list[tuple[str, LocalOp]]]]:
        """By op of the graph, in order: the device and the local op of each of its layer's workers."""
        by_op: dict[int, list[tuple[str, LocalOp]]] = {}
        for number, placed in enumerate(self.placed):
            for worker, device in enumerate(placed.devices):
                for local in shard(self.network, number, placed.configuration, worker):
                    by_op.setdefault(local.index, []).append((device, local))
        return sorted(by_op.items())

    def _hold_all(self) -> None:
        """Give each piece of a parameter, and of a buffer that changes, to the workers of the first layer that uses it."""
        for index, local_ops in self._local_ops:
            if self.graph.ops[index].phase != FORWARD:
                break
            fresh: set[str] = set()
            for device, local in local_ops:
                for operand, box in zip(local.op.inputs, local.reads, strict=True):
                    name, kind = operand.value, self.graph.values[operand.value].kind
                    held = kind == PARAMETER or (kind == BUFFER and name in self._changed)
                    if held and (name not in self.values or name in fresh):
                        fresh.add(name)
                        self._distributed(name).complete.append(self.pieces.hold(name, device, box))
        self._hold_rest()

    def _hold_rest(self) -> None:
        """Let the first holder of a tensor carry the part that no worker reads, such as positions beyond the sequence: updates change
        it."""
        for name, own in self.values.items():
            rest = [whole(own.value.shape)]
            for piece in own.complete:
                rest = [part for box in rest for part in without(box, piece.box)]
            own.complete += [self.pieces.hold(name, own.complete[0].device, box) for box in rest]

    def _hold_unused(self) -> None:
        """Let the first device carry what no op uses, because it takes memory too."""
        for value in self.graph.values.values():
            if value.kind in (PARAMETER, BUFFER) and value.name not in self.values:
                self._distributed(value.name).complete.append(self.pieces.hold(value.name, self.sender.devices[0], whole(value.shape)))

    def _distributed(self, name: str) -> Distributed:
        return self.values.setdefault(name, Distributed(self.graph.values[name]))

    def _run(self, index: int, local_ops: list[tuple[str, LocalOp]]) -> None:
        """The tasks of an op on all its workers. What all of them read is brought first, because the op may change it."""
        op = self.graph.ops[index]
        self.fetcher.phase, self.fetcher.layer = op.phase, op.layer
        if local_ops[0][1].sums:
            local_ops, bring = self._summing(local_ops)
        else:
            bring = self._bring
        brought = [bring(index, device, local) for device, local in local_ops]
        for (device, local), pairs in zip(local_ops, brought, strict=True):
            operands, count = tuple(seen for _, seen in pairs), len(local.op.reads)
            writes = tuple(self._made(operand, device) for operand in local.op.writes)
            name = self.fetcher.task_name(f"{op.name}{self.pieces.suffix(device)}")
            self.tasks.append(
                Task(
                    name,
                    local.op.body,
                    device,
                    stream=COMPUTE,
                    reads=operands[:count],
                    writes=writes,
                    mutates=operands[count:],
                    phase=op.phase,
                    layer=op.layer,
                )
            )
            self._register(index, device, local, writes)
        for position in range(len(op.reads), len(op.inputs)):
            self._replace(op.inputs[position].value, local_ops, brought)

    def _synchronizes(self, index: int) -> bool:
        """Whether workers have to exchange the statistics of a batch-norm."""
        forward = self.network.served[index].forward if index in self.network.served else index
        replicas = self.placed[self.network.layer_of[forward]].configuration.replicas
        return self.options.batch_norm == "synchronized" and replicas > 1 and self._normalizes(index)

    def _run_synchronized(self, index: int, local_ops: list[tuple[str, LocalOp]]) -> None:
        """The tasks of a batch-norm or its backward on all its workers: those of the same channels share their statistics."""
        op, forward = self.graph.ops[index], index not in self.network.served
        self.fetcher.phase, self.fetcher.layer = op.phase, op.layer
        by_channels: dict[tuple[int, int], list[Member]] = {}
        for device, local in local_ops:
            made = local.op.writes[:1] if forward else local.op.writes  # forward has no separate statistics
            member = Member(
                device,
                [seen for _, seen in self._bring(index, device, local, len(op.inputs) if forward else 3)],
                tuple(self._made(operand, device) for operand in made),
            )
            by_channels.setdefault(local.reads[0][1], []).append(member)
            for of_graph, piece, box in zip(made, member.writes, local.writes, strict=False):
                value, summed = self._distributed(of_graph.value), forward or len(of_graph.shape) == 1
                (value.complete if summed else value.contributions).append(Piece(device, box, piece))
        make = self._synchronized.forward if forward else self._synchronized.backward
        for members in by_channels.values():
            make(op, members)

    def _bring(self, index: int, device: str, local: LocalOp, count: int | None = None) -> _Brought:
        """By input of a local op, or the first `count`, the operand with its box on its device, and the same as the op sees it."""
        operands = []
        for operand, box in list(zip(local.op.inputs, local.reads, strict=True))[:count]:
            value = self._supplied(operand.value, device, box)
            changed = self._changed.get(operand.value, -1) >= index
            base = self.fetcher.fetch(value, device, box, local.fill, changed)
            operands.append((base, self.fetcher.viewed(base, operand, value.value.strides)))
        return operands

    def _supplied(self, name: str, device: str, box: Box) -> Distributed:
        """A value. Of an input, and of a buffer that nothing changes, each device has what it needs from the start."""
        value, own = self.graph.values[name], self._distributed(name)
        if value.kind == BUFFER and name not in self._changed and own.on(device, box) is None:
            own.complete.append(self.pieces.hold(name, device, whole(value.shape)))
        elif value.kind == INPUT:
            inner = overlap(box, whole(value.shape))
            if inner is not None and own.on(device, inner) is None:
                own.complete.append(Piece(device, inner, self._fed(value, device, inner)))
        return own

    def _fed(self, value: Value, device: str, box: Box) -> Operand:
        """A part of an input, as a device is fed with it."""
        source = cut(value.operand(), box)
        name = self.fetcher.value_name(f"{value.name}{self.pieces.suffix(device)}")
        strides = value.strides if box == whole(value.shape) else dense(shape_of(box), value.strides)
        return self.tensors.add(Value(name, shape_of(box), strides, dtype=value.dtype, device=device, kind=INPUT, source=source)).operand()

    def _summing(self, local_ops: list[tuple[str, LocalOp]]):
        """Who sums or copies gradients of a parameter, and how they get what they read.

        If every worker has a contribution to its own box of all of them, and there is no other, each takes its own. Otherwise, one worker
        for each box takes the complete gradients.
        """

        def own(_: int, device: str, local: LocalOp) -> _Brought | None:
            operands = []
            for operand, box in zip(local.op.inputs, local.reads, strict=True):
                piece = self._distributed(operand.value).contribution(device, box)
                if piece is None:
                    return None
                strides = self.graph.values[operand.value].strides
                operands.append((piece.operand, self.fetcher.viewed(piece.operand, operand, strides)))
            return operands

        read = {operand.value for operand in local_ops[0][1].op.inputs}
        alone = all(len(self._distributed(name).contributions) == len(local_ops) for name in read)
        if alone and all(own(0, device, local) is not None for device, local in local_ops):
            return local_ops, own
        first = {local.writes: (device, local) for device, local in reversed(local_ops)}
        return list(first.values()), self._bring

    def _made(self, operand: Operand, device: str) -> Operand:
        """The value that a local op writes."""
        value = self.graph.values[operand.value]
        name = f"{operand.value}{self.pieces.suffix(device)}"
        all_of_it = operand.shape == value.shape and value.storage in self.graph.storage_bytes
        size = self.graph.storage_bytes[value.storage] if all_of_it else None
        return self.tensors.add(
            Value(name, operand.shape, operand.strides, dtype=value.dtype, device=device, kind=value.kind), size
        ).operand()

    def _register(self, index: int, device: str, local: LocalOp, writes: Sequence[Operand]) -> None:
        """Note where the results of a local op are."""
        for of_graph, made, box in zip(local.op.writes, writes, local.writes, strict=True):
            value, piece = self._distributed(of_graph.value), Piece(device, box, made)
            if index in self.network.served and name_of(local.op) not in _OWN:
                value.contributions.append(piece)
            else:
                value.complete.append(piece)
            if of_graph.value == self.graph.loss:
                self._losses.append(made.value)

    def _replace(self, name: str, local_ops: list[tuple[str, LocalOp]], brought: list[_Brought]) -> None:
        """After an op that changes boxes of a value in place, only what its workers have of these boxes is valid."""
        value = self._distributed(name)
        if value.value.kind in CARRIED_KINDS:
            return
        value.change([
            Piece(device, box, base)
            for (device, local), operands in zip(local_ops, brought, strict=True)
            for operand, box, (base, _) in zip(local.op.inputs, local.reads, operands, strict=True)
            if operand.value == name
        ])  # fmt: skip

    # --- gradients

    def _reduce_after(self, index: int) -> None:
        """Sum the replicas' gradients of the parameters of a module, if this op has completed them."""
        done = self._completed_by.get(index)
        if not done:
            return
        self.fetcher.phase = BACKWARD
        for layer, parameters in done.items():
            self.fetcher.layer = layer
            tasks = self.pieces.reduce(parameters, self.values, self.fetcher, f"reduce {layer}", self._sum_lanes[layer])
            (self.tasks if self.options.overlap else self._reduced).extend(tasks)

    @cached_property
    def _sum_lanes(self) -> dict[str, tuple[int, int]]:
        """By layer, the stream and the priority of the sums of its gradients.

        Sums that nothing in their step waits for hold up nothing else. With `priorities`, the layers that come first in the forward do.
        """
        layers = self.graph.layers
        first_use: dict[str, int] = {}
        lanes = {layers[name]: (COMPUTE, 0) for name in self.graph.parameters}  # also of those that have nothing to sum
        replicated = {
            layers[name] for name, own in self.pieces.of.items() if name in layers and len({piece.box for piece in own}) < len(own)
        }
        if not (self.options.overlap or self.options.lag):
            return lanes
        if not self.options.priorities:
            return lanes | dict.fromkeys(replicated, (self._sums, 1 - self._levels))
        for index, op in enumerate(self.graph.ops):
            for layer in (layers.get(operand.value) for operand in op.inputs if op.phase == FORWARD):
                if layer in replicated:
                    first_use.setdefault(layer, index)
        urgency = zip(first_use, urgencies(list(first_use.values()), self._levels), strict=True)
        return lanes | {layer: (self._sums + own, priority_of(own, self._levels)) for layer, own in urgency}

    @cached_property
    def _completed_by(self) -> dict[int, dict[str, list[str]]]:
        """By op, the modules whose gradients are complete with it, and their parameters."""
        last: dict[str, int] = {}
        for parameter, index in self.graph.gradient_ops.items():
            layer = self.graph.layers[parameter]
            last[layer] = max(index, last.get(layer, -1))
        completed: dict[int, dict[str, list[str]]] = {}
        for parameter in self.graph.parameters:
            layer = self.graph.layers[parameter]
            completed.setdefault(last[layer], {}).setdefault(layer, []).append(parameter)
        return completed
