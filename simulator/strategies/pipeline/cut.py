"""A captured graph in stages, and what is sent between devices once the stages have devices."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simulator.model.graph import Op, TrainingGraph
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import AGAIN, BUFFER, INPUT, PARAMETER, Operand
from simulator.plan.task import BACKWARD as BACKWARD_PHASE
from simulator.strategies.copy_values import Placement
from simulator.strategies.pipeline.partition import Unit, stages_of, units
from simulator.strategies.pipeline.schedule import BACKWARD, BY_INPUT, BY_WEIGHT, FORWARD
from traces.errors import Code, SchedcastError

# A captured graph cut into stages: the ops of each stage's work, and the values that go from one place to another.
# Stages are successive units (`units`). A backward op belongs to the stage of the forward op that it serves, or to an earlier one if what
# it needs comes from there: so gradients only ever go down the stages. One that reads an opaque result belongs to the stage of the op that
# made it, wherever its layer is: attention's backward op may count to the linear layer after it.


@dataclass(frozen=True)
class Sent:
    """A value of the graph that another device needs.

    Its name is `held` on the source (its own name, or that of a copy which was changed there), and `copy` on the target. Op `after`
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
        self.placement = tuple(placement)
        self.stages = len(self.placement) + 1
        self.graph = graph
        self.units, self.stage_of = self._divided()
        if graph.repeats:
            self.graph = _without_crossing(graph, self.stage_of)
            self.units, self.stage_of = self._divided()

    def _divided(self) -> tuple[list[Unit], list[int]]:
        """The units of the graph, and the stage of each op."""
        graph, stage_of = self.graph, [0] * len(self.graph.ops)
        all_units = units(graph)
        for stage, span in enumerate(stages_of(self.placement, len(all_units))):
            for unit in all_units[span.start : span.stop]:
                for index in (*unit.forward, *unit.backward):
                    stage_of[index] = stage
        opaque = {index: _opaque(op) for index, op in enumerate(graph.ops) if op.body.opaque}
        for producer, consumer in graph.edges:
            carries = graph.ops[producer].phase == BACKWARD_PHASE and producer not in graph.repeats
            if carries or (producer in opaque and opaque[producer] & {o.value for o in graph.ops[consumer].inputs}):
                stage_of[consumer] = min(stage_of[consumer], stage_of[producer])
        return all_units, stage_of

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


def _without_crossing(graph: TrainingGraph, stage_of: Sequence[int]) -> TrainingGraph:
    """The graph in which no op reads what another stage repeats: it reads what that stage has sent or saved. Unread values are omitted.

    Raises SchedcastError if an op changes in place what another stage repeats.
    """
    made = {o.value: index for index in graph.repeats for o in graph.ops[index].writes}

    def crosses(index: int, operand: Operand) -> bool:
        return operand.value in made and stage_of[made[operand.value]] != stage_of[index]

    def own(index: int, operand: Operand) -> Operand:
        return replace(operand, value=operand.value.replace(AGAIN, "")) if crosses(index, operand) else operand

    for index, op in enumerate(graph.ops):
        if any(crosses(index, operand) for operand in op.mutates):
            raise SchedcastError(
                f"the stages cannot be cut before layer {op.layer!r}: it changes in place what another stage repeats; cut elsewhere, or"
                " drop --checkpoint",
                Code.MODEL,
            )

    ops = [
        replace(op, reads=tuple(own(index, o) for o in op.reads)) if any(o.value in made for o in op.reads) else op
        for index, op in enumerate(graph.ops)
    ]
    read: set[str] = set()
    left = []
    for index in range(len(ops) - 1, -1, -1):
        changed = {graph.values[o.value].storage for o in (*ops[index].writes, *ops[index].mutates)}
        if index not in graph.repeats or not read.isdisjoint(changed):
            read |= {graph.values[o.value].storage for o in ops[index].inputs}
            left.append(ops[index])
    return replace(graph, ops=tuple(left[::-1]))


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
    """Goes through the ops in order, and tracks where the newest content of each storage is."""

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
        unchanged = kind == BUFFER and (storage not in self._changed or value in _unread(self.graph.ops[index]))
        if kind == INPUT or value in self.graph.counts or unchanged:
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
        self.sent.append(
            Sent(
                value,
                held=places[source][value],
                copy=copy,
                source=source,
                target=device,
                after=after,
                before=index,
                changed=kind == PARAMETER,
            )
        )
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
