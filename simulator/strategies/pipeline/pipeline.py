"""A pipeline's tasks: what each stage does with a microbatch, and what it sends to the others."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simulator.engine.collectives.tasks import COMPUTE, Sender, means
from simulator.machine.machine import HOST, Machine
from simulator.model.graph import Op, TrainingGraph
from simulator.model.job import Job
from simulator.plan.bodies.copy import LINK, Copy
from simulator.plan.bodies.host import Synchronize
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import BACKWARD as BACKWARD_PHASE
from simulator.plan.task import BUFFER, INPUT, PARAMETER, TRANSFER, Operand, Task
from simulator.plan.task import FORWARD as FORWARD_PHASE
from simulator.strategies.builder import Placement, PlanBuilder, Share
from simulator.strategies.pipeline.partition import Unit, stages_of, units
from simulator.strategies.pipeline.schedule import BACKWARD, BY_INPUT, BY_WEIGHT, FORWARD, Action
from traces.errors import Code, SchedcastError

# A captured graph cut into stages: the ops of each stage's work, and the values that go from one place to another.
# Stages are successive units (`units`). A backward op belongs to the stage of the forward op that it serves, or to an earlier one if what
# it needs comes from there: so gradients only ever go down the stages. One that reads an opaque result belongs to the stage of the op that
# made it, wherever its layer is: attention's backward op may count to the linear layer after it.


@dataclass(frozen=True)
class Sent:
    """A value of the graph that another device needs.

    It is called `held` on the source (its own name, or that of a copy which was changed there), and `copy` on the target. Op `after`
    completes it; -1 for a parameter, which is sent as it is before op `before` reads it. `changed`: it is changed in place later, on one of
    the two devices, so that both cannot share one memory.
    """

    value: str
    held: str
    copy: str
    source: str
    target: str
    after: int
    before: int
    changed: bool


class Cut:
    """A graph in stages. `placement` has the number of units before each cut, in increasing order."""

    def __init__(self, graph: TrainingGraph, placement: Sequence[int]):
        """Raises SchedcastError for cuts out of range or order."""
        self.graph, self.placement = graph, tuple(placement)
        self.units = units(graph)
        spans = stages_of(self.placement, len(self.units))
        self.stages = len(spans)
        self.stage_of = self._stages([self.units[span.start : span.stop] for span in spans])

    def _stages(self, stages: Sequence[Sequence[Unit]]) -> list[int]:
        """The stage of each op."""
        graph, stage_of = self.graph, [0] * len(self.graph.ops)
        for stage, own in enumerate(stages):
            for unit in own:
                for index in (*unit.forward, *unit.backward):
                    stage_of[index] = stage
        for producer, consumer in graph.edges:
            if graph.ops[producer].phase == BACKWARD_PHASE or _opaque(graph.ops[producer]) & {o.value for o in graph.ops[consumer].inputs}:
                stage_of[consumer] = min(stage_of[consumer], stage_of[producer])
        return stage_of

    @cached_property
    def parameters(self) -> list[list[str]]:
        """The parameters of each stage: it makes their last gradient, and updates them."""
        owned: list[list[str]] = [[] for _ in range(self.stages)]
        for parameter in self.graph.parameters:
            owned[self.stage_of[self.graph.gradient_ops[parameter]]].append(parameter)
        return owned

    @cached_property
    def chunks(self) -> dict[tuple[int, str], list[int]]:
        """The ops of each stage's work: its forward, its backward, and the two halves of its backward.

        The half by input has what the stage before waits for, and whatever that needs; in the first stage, the ops that carry the gradient
        down. The half by weight has the rest.
        """
        chunks: dict[tuple[int, str], list[int]] = {
            (stage, kind): [] for stage in range(self.stages) for kind in (FORWARD, BACKWARD, BY_INPUT, BY_WEIGHT)
        }
        urgent = self._urgent
        for index, op in enumerate(self.graph.ops):
            stage = self.stage_of[index]
            if op.phase != BACKWARD_PHASE:
                chunks[stage, FORWARD].append(index)
            else:
                chunks[stage, BACKWARD].append(index)
                chunks[stage, BY_INPUT if index in urgent else BY_WEIGHT].append(index)
        return chunks

    @cached_property
    def _urgent(self) -> set[int]:
        """The backward ops that an earlier stage waits for, and in the first stage those of role dX with all that they need."""
        graph = self.graph
        before: dict[int, list[int]] = {}
        for producer, consumer in graph.edges:
            before.setdefault(consumer, []).append(producer)
        wanted = {index for index, op in enumerate(graph.ops) if op.gradient == "dX" and self.stage_of[index] == 0}
        for producer, consumer in graph.edges:
            if graph.ops[producer].phase == BACKWARD_PHASE and self.stage_of[producer] != self.stage_of[consumer]:
                wanted.add(producer)
        for index in range(len(graph.ops) - 1, -1, -1):
            if index in wanted:
                wanted |= {p for p in before.get(index, ()) if graph.ops[p].phase == BACKWARD_PHASE}
        return wanted

    def placed(self, forward: Sequence[str], backward: Sequence[str]) -> tuple[Placement, list[Sent]]:
        """Put the stages on devices, which by stage run its forward and its backward with the update, and find what is sent between them.

        Raises SchedcastError if memory that an op shares with another is changed on the other side of a cut.
        """
        devices = tuple(
            (backward if op.phase == BACKWARD_PHASE else forward)[self.stage_of[index]] for index, op in enumerate(self.graph.ops)
        )
        homes = {parameter: backward[stage] for stage, owned in enumerate(self.parameters) for parameter in owned}
        return _Tracking(self.graph, devices, homes).result()


def _opaque(op: Op) -> set[str]:
    """The values of an op's opaque results."""
    return {write.value for position, write in zip(op.body.outputs, op.writes, strict=True) if position in op.body.opaque}


def _unread(op: Op) -> set[str]:
    """The values that an op takes and does not read: the running statistics, in the backward of a batch-norm that trains."""
    if not isinstance(op.body, OpCall) or op.body.target != "aten.native_batch_norm_backward.default":
        return set()
    _, _, _, mean, variance, _, _, training, *_ = json.loads(op.body.args)
    return {op.reads[each["$"]].value for each in (mean, variance) if each} if training else set()


class _Tracking:
    """Goes through the ops in order, and keeps where the newest content of each storage is."""

    def __init__(self, graph: TrainingGraph, devices: Sequence[str], homes: Mapping[str, str]):
        self.graph, self.devices = graph, devices
        self.homes = dict(homes)
        self.copies: dict[tuple[int, str], str] = {}
        self.sent: list[Sent] = []
        self._names: set[str] = set()
        #: By storage: device -> value -> the name of its newest content there; the op that made it; how often it was changed.
        self._newest: dict[str, dict[str, dict[str, str]]] = {}
        self._made_by: dict[str, int] = {}
        self._version: dict[str, int] = {}
        self._version_when_sent: list[int] = []
        self._changed = {graph.values[o.value].storage for op in graph.ops for o in op.mutates}

    def result(self) -> tuple[Placement, list[Sent]]:
        """The placement of all ops, and everything that is sent, in order of the ops that need it."""
        for index, op in enumerate(self.graph.ops):
            for operand in op.inputs:
                self._read(index, operand.value)
            for operand in op.mutates:
                self._change(index, operand.value)
            for operand in op.writes:
                self._write(index, operand.value)
        sent = [
            replace(s, changed=s.changed or self._version[self._storage(s.value)] > version)
            for s, version in zip(self.sent, self._version_when_sent, strict=True)
        ]
        return Placement(self.devices, self.homes, self.copies), sent

    def _storage(self, value: str) -> str:
        return self.graph.values[value].storage

    def _read(self, index: int, value: str) -> None:
        device, kind, storage = self.devices[index], self.graph.values[value].kind, self._storage(value)
        places = self._newest.setdefault(storage, {})
        self._version.setdefault(storage, 0)
        if not places:  # read before any op writes it: fed or carried
            home = self.homes.setdefault(value, device)
            places[home] = {value: value}
        own = places.setdefault(device, {})
        if value not in own:
            own[value] = self._brought(index, value, places, kind)
        if own[value] != value:
            self.copies[index, value] = own[value]

    def _brought(self, index: int, value: str, places: dict[str, dict[str, str]], kind: str) -> str:
        """The name that a value gets on the device of op `index`, which reads it."""
        device, storage = self.devices[index], self._storage(value)
        if device in places and self.homes.get(value) == device and not self._version[storage]:
            return value  # another value of a storage that is here
        if kind == INPUT or (kind == BUFFER and (storage not in self._changed or value in _unread(self.graph.ops[index]))):
            return f"{value}@{device}"  # fed to, or carried by, both
        source = next((place for place, names in places.items() if value in names), None)
        if kind == BUFFER or source is None:
            layer = self.graph.ops[index].layer
            raise SchedcastError(
                f"the stages cannot be cut before layer {layer!r}: {value} shares memory with what another stage changes; cut elsewhere",
                Code.MODEL,
            )
        copy, number = f"{value}@{device}", 2
        while copy in self._names:
            copy, number = f"{value}@{device}#{number}", number + 1
        self._names.add(copy)
        after = -1 if kind == PARAMETER else self._made_by[storage]
        self.sent.append(Sent(value, places[source][value], copy, source, device, after, index, kind == PARAMETER))
        self._version_when_sent.append(self._version[storage])
        return copy

    def _change(self, index: int, value: str) -> None:
        device, storage = self.devices[index], self._storage(value)
        self._newest[storage] = {device: self._newest[storage][device]}
        self._version[storage] += 1
        self._made_by[storage] = index

    def _write(self, index: int, value: str) -> None:
        device, storage = self.devices[index], self._storage(value)
        self.homes.setdefault(value, device)
        names = self._newest.get(storage, {}).get(device, {})
        self._newest[storage] = {device: {**names, value: value}}
        self._version[storage] = self._version.get(storage, -1) + 1
        self._made_by[storage] = index


class Pipeline:
    """The tasks of a job in stages. `forward` and `backward`: the device of each stage's forward, and of its backward and update.

    `staged`: values go through the host's memory, in two copies for which the hosts of their devices wait, unless that memory is theirs.
    """

    def __init__(
        self,
        job: Job,
        machine: Machine,
        cut: Cut,
        microbatches: int,
        forward: Sequence[str],
        backward: Sequence[str],
        staged: bool = False,
    ):
        self.machine, self.cut = machine, cut
        self.forward_devices, self.backward_devices = tuple(forward), tuple(backward)
        place, self._sent = cut.placed(forward, backward)
        self.build = PlanBuilder(job, place, cut.graph, Share(microbatches, range(microbatches)))
        self._sender = Sender(machine, tuple(dict.fromkeys((*forward, *backward))))
        #: By op: what is sent when it has run, and what must have arrived of a parameter before it runs.
        self._sends: dict[int, list[Sent]] = defaultdict(list)
        self._fetches: dict[int, list[Sent]] = defaultdict(list)
        #: By op: what it is the first to read of what was staged.
        self._arrivals: dict[int, list[Sent]] = defaultdict(list)
        self._staged = staged
        for sent in self._sent:
            (self._fetches[sent.before] if sent.after < 0 else self._sends[sent.after]).append(sent)
            if self._is_staged(sent):
                self._arrivals[sent.before].append(sent)

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.cut.stages

    def begin_with(self, actions: Sequence[Action]) -> None:
        """Let the first backward of each stage in `actions` make the gradients that those of the other microbatches are added to."""
        first: dict[tuple[int, str], int] = {}  # by stage and half of a backward, which a whole one has both of
        for stage, kind, microbatch in actions:
            for half in (BY_INPUT, BY_WEIGHT) if kind == BACKWARD else (kind,):
                first.setdefault((stage, half), microbatch)
        for stage, owned in enumerate(self.cut.parameters):
            by_input = set(self.cut.chunks[stage, BY_INPUT])
            for parameter in owned:
                half = BY_INPUT if self.build.graph.gradient_ops[parameter] in by_input else BY_WEIGHT
                self.build.first_of[parameter] = first[stage, half]

    def work(self, action: Action, lag: int = 0, instead: Mapping[str, str] | None = None) -> list[Task]:
        """The tasks of an action, with the transfers before and after it. `instead`: values to use in the place of others."""
        stage, kind, microbatch = action
        indices = self.cut.chunks[stage, kind]
        instead = instead or {}
        fetched = [sent for index in indices for sent in self._fetches.get(index, ()) if sent.value not in instead]
        before = [task for sent in fetched for task in self._send(sent, microbatch)]
        arriving = [sent for index in indices for sent in self._arrivals.get(index, ()) if sent.value not in instead]
        before += [task for sent in arriving for task in self._receive(sent, microbatch)]
        ops = self.build.ops(indices, microbatch, COMPUTE, instead, lag, str(action))
        after = [task for index in indices for sent in self._sends.get(index, ()) for task in self._send(sent, microbatch)]
        sends = [[replace(task, lag=lag, action=str(action)) for task in tasks] for tasks in (before, after)]
        return [*sends[0], *ops, *sends[1]]

    def snapshot(self, stage: int, lag: int = 0) -> tuple[list[Task], dict[str, str]]:
        """Copies of the stage's parameters as they are now, for one iteration. Returns the tasks, and the copies by parameter."""
        tasks, copies = [], {}
        for parameter in self.cut.parameters[stage]:
            value = self.build.graph.values[parameter]
            device = self.backward_devices[stage]
            kept = self.build.kept(parameter, device)
            copies[parameter] = kept.value
            read = Operand(parameter, value.shape, value.strides, value.dtype)
            body = OpCall("aten.clone.default", '[{"$":0}]')
            layer = self.build.graph.layers[parameter]
            tasks.append(Task(f"keep {parameter}", body, device, reads=(read,), writes=(kept,), phase=FORWARD_PHASE, layer=layer, lag=lag))
        return tasks, copies

    def updates(self, stage: int, lag: int = 0) -> list[Task]:
        """The optimizer's tasks of a stage."""
        owned = self.cut.parameters[stage]
        if not owned:
            return []
        if self.build.job.form == "for":
            return [self.build.update([name], f"{name}/update", self.build.graph.layers[name], lag) for name in owned]
        return [self.build.update(owned, f"update {stage}" if self.stages > 1 else "update", "optimizer", lag)]

    def _send(self, sent: Sent, microbatch: int) -> list[Task]:
        """The copy of a value from one device to another, on the sender's stream for the receiver; staged, the copy to the host."""
        source, target = self.build.sent(sent.value, sent.held, sent.copy, sent.target, microbatch)
        name = f"send {target.value}"
        if self._is_staged(sent):
            return self._waited(name, sent.source, HOST, source, self._on_host(target))
        return [self._sender.send(name, sent.source, sent.target, (source,), (target,), changed=sent.changed, microbatch=microbatch)]

    def _is_staged(self, sent: Sent) -> bool:
        return self._staged and means(self.machine, sent.source, HOST) == means(self.machine, sent.source, sent.target) == LINK

    def _receive(self, sent: Sent, microbatch: int) -> list[Task]:
        """The copy of a staged value from the host."""
        _, target = self.build.sent(sent.value, sent.held, sent.copy, sent.target, microbatch)
        return self._waited(f"receive {target.value}", HOST, sent.target, self._on_host(target), target)

    def _on_host(self, target: Operand) -> Operand:
        """The value in the host's memory from which `target` is copied."""
        name, values = f"{target.value}@{HOST}", self.build.tensors.values
        return (values.get(name) or self.build.tensors.on_host(name, values[target.value])).operand()

    def _waited(self, name: str, source: str, target: str, read: Operand, write: Operand) -> list[Task]:
        """A copy in the order of the device's computations, and the host's wait for it."""
        device = target if source == HOST else source
        body = Copy(source, target, means=means(self.machine, source, target))
        copy = Task(name, body, device, COMPUTE, reads=(read,), writes=(write,), phase=TRANSFER)
        return [copy, Task(f"{name}/wait", Synchronize(), device, COMPUTE, after=(name,), phase=TRANSFER)]
