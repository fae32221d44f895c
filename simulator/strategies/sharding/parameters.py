"""The workers' pieces of parameters and buffers: where they are stored, how replicas sum their gradients, and their updates."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count

from simulator.engine.collectives.rounds import ALGORITHM_OF
from simulator.engine.collectives.tasks import COMPUTE, Group
from simulator.machine.machine import HOST, Machine
from simulator.model.graph import TrainingGraph
from simulator.model.job import Job
from simulator.plan.bodies.update import STATE, Update, state_shape
from simulator.plan.fusion import delayed, fused
from simulator.plan.task import OPTIMIZER_STATE, PARAMETER, SCRATCH, UPDATE, Operand, Task, Value
from simulator.plan.tensors import PlanTensors, merged
from simulator.plan.views import dense, with_views
from simulator.strategies.options import Updating
from simulator.strategies.sharding.boxes import Box, behind_views, cut, overlap, shape_of, whole
from simulator.strategies.sharding.fetching import Distributed, Fetcher, Piece


class Pieces:
    """Pieces of the carried tensors of a job on its devices, with the gradients and the optimizer state of those of parameters."""

    def __init__(self, job: Job, graph: TrainingGraph, machine: Machine, tensors: PlanTensors, first_device: str, server: str):
        """`server`: who sums the gradients of replicas (`StepOptions`)."""
        self.job, self.graph, self.machine, self.tensors = job, graph, machine, tensors
        self.first_device, self.server = first_device, server
        #: By parameter, its pieces in the order of the workers.
        self.of: dict[str, list[Piece]] = {}
        #: By name of a piece, the operand with its complete gradient.
        self.gradients: dict[str, Operand] = {}

    def suffix(self, device: str) -> str:
        """The end of names of what lies on a device."""
        return "" if device == self.first_device else f"@{device}"

    def hold(self, tensor: str, device: str, box: Box, of: Value | None = None) -> Piece:
        """Let a device carry a piece of a parameter or buffer for the whole run. `of`: the part of it that the device's graph has."""
        value = of or self.graph.values[tensor]
        all_of_it = box == whole(value.shape)
        name = f"{tensor}{self.suffix(device)}" if all_of_it else self._free(tensor, device)
        strides = value.strides if all_of_it else dense(shape_of(box), value.strides)
        source = cut(value.origin(), box)
        size = self.graph.storage_bytes[value.storage] if all_of_it and value.storage == tensor else None
        held = Value(name, shape_of(box), strides, dtype=value.dtype, device=device, kind=value.kind, source=source)
        piece = Piece(device, box, self.tensors.add(held, size).operand())
        if value.kind == PARAMETER:
            self.of.setdefault(tensor, []).append(piece)
        return piece

    def _free(self, tensor: str, device: str) -> str:
        """A name for another piece of a tensor on a device."""
        names = chain([f"{tensor}@{device}"], (f"{tensor}#{number}@{device}" for number in count(2)))
        return next(name for name in names if name not in self.tensors.values)

    # --- gradients

    def reduce(
        self, parameters: Sequence[str], values: dict[str, Distributed], fetcher: Fetcher, name: str, lane: tuple[int, int]
    ) -> list[Task]:
        """Make the complete gradients of all pieces of some parameters. Returns the tasks that sum those of replicas.

        `lane`: stream and priority of these. Usually each replica has one contribution of exactly its box, there are no others, and they
        are summed in place. Else each holder fetches the gradient, by tasks of `fetcher`.
        """
        tasks: list[Task] = []
        together: dict[tuple[str, ...], list[tuple[Operand, ...]]] = {}
        for parameter in parameters:
            for box in dict.fromkeys(piece.box for piece in self.of[parameter]):
                holders = [piece for piece in self.of[parameter] if piece.box == box]
                value, inner, view = self._gradient(parameter, box, values)
                own = [piece for holder in holders if (piece := value.contribution(holder.device, inner)) is not None]
                overlapping = sum(overlap(piece.box, inner) is not None for piece in value.contributions)
                if value.complete or not overlapping == len(own) == len(holders) or any(piece.operand.views for piece in own):
                    held = [fetcher.fetch(value, piece.device, inner, changed=True) for piece in holders]
                else:
                    held = [piece.operand for piece in own]
                    if len(holders) > 1:
                        together.setdefault(tuple(piece.device for piece in holders), []).append(tuple(held))
                self.gradients |= {piece.operand.value: view(operand) for piece, operand in zip(holders, held, strict=True)}
        for number, (devices, operands) in enumerate(together.items()):
            tasks += self._summed(f"{name}/{number}" if number else name, devices, list(zip(*operands, strict=True)), lane)
        return tasks

    def _gradient(self, parameter: str, box: Box, values: dict[str, Distributed]) -> tuple[Distributed, Box, Callable[[Operand], Operand]]:
        """The value with a parameter's gradient, the box of it that is the gradient of a box, and how to view an operand of that box.

        All of a gradient may be any view of its value.
        """
        operand = self.graph.gradients[parameter]
        own = self.graph.values[operand.value]
        if box != whole(operand.shape):
            inner, steps = behind_views(operand, own.shape, box)
            return values[operand.value], inner, lambda held: with_views(held, steps)

        def viewed(held: Operand) -> Operand:
            if (held.shape, held.strides) != (own.shape, own.strides):
                return with_views(held, operand.views)
            return replace(operand, value=held.value, views=(*held.views, *operand.views))

        return values[operand.value], whole(own.shape), viewed

    def _summed(self, name: str, devices: tuple[str, ...], operands: list[tuple[Operand, ...]], lane: tuple[int, int]) -> list[Task]:
        root = HOST if self.server == "host" else ""
        group = Group(self.machine, devices, ALGORITHM_OF[self.server], root, *lane)
        at_host: tuple[Operand, ...] = ()
        if root and not self.machine.library:
            like = [replace(self.tensors.values[o.value], kind=SCRATCH, source=None) for o in operands[0]]
            at_host = tuple(self.tensors.on_host(f"{name}:{at}", value).operand() for at, value in enumerate(like))
        return group.all_reduce(name, operands, at_host)

    # --- updates

    def with_updates(
        self,
        tasks: Sequence[Task],
        options: Updating,
        early: int,
        late: int = COMPUTE,
        others: Iterable[PlanTensors] = (),
        unit_of: Mapping[str, str] | None = None,
        by_unit: bool = False,
    ) -> list[Task]:
        """The tasks of forward, backward and sums of gradients, with the updates where the option puts them.

        Of two layers with forwards F, backwards B, sums S and updates U, those of the step before in parentheses:

            baseline           F1   F2  B2 S2    B1 S1    U
            asynchronous       F1   F2  B2 S2    B1 S1   (U)
            forward-fusion (U1)F1(U2)F2 B2 S2    B1 S1
            backward-fusion    F1   F2  B2 S2 U2 B1 S1 U1

        `early`, `late`: the streams of the updates of backward-fusion, and of forward-fusion, of which there is one for each unit.
        `others`: the tensors that tasks use beside those of the pieces. `unit_of`: by parameter (default: its layer). `by_unit`: U is not
        one task either, but one for each unit in the order of the next forward.
        """
        forward, units = options.update == "forward-fusion", unit_of or self.graph.layers
        if options.update in ("baseline", "asynchronous"):
            return [*tasks, *(self.updates_of(units, options.lag, COMPUTE) if by_unit else self.updates(options.lag))]
        updates = self.updates_of(units, int(forward), late if forward else early)
        return (delayed if forward else fused)(tasks, updates, merged([*others, self.tensors]))

    def updates(self, lag: int = 0) -> list[Task]:
        """The update of every device's pieces, with the gradients of `lag` steps before; in the for-loop form one task for each piece."""
        by_device: dict[str, list[Piece]] = {}
        for parameter in self.graph.parameters:
            for piece in self.of.get(parameter, ()):
                by_device.setdefault(piece.device, []).append(piece)
        tasks = []
        for device, pieces in by_device.items():
            groups = [pieces] if self.job.form != "for" else [[piece] for piece in pieces]
            for group in groups:
                first = group[0].operand.value
                alone = len(groups) == 1
                name = f"update{self.suffix(device)}" if alone else f"{first}/update"
                layer = "optimizer" if alone else self.graph.layers[self.tensors.values[first].origin().value]
                tasks.append(self._update(group, device, name, layer, lag))
        return tasks

    def updates_of(self, unit_of: Mapping[str, str], lag: int, stream: int) -> list[Task]:
        """Each unit's updates, one for its pieces on each device."""
        of_units: dict[tuple[str, str], list[Piece]] = {}
        for parameter in self.graph.parameters:
            for piece in self.of.get(parameter, ()):
                of_units.setdefault((unit_of[parameter], piece.device), []).append(piece)
        updates = []
        for (unit, device), pieces in of_units.items():
            task = self._update(pieces, device, f"{unit}/update{self.suffix(device)}", unit, lag)
            updates.append(replace(task, stream=stream))
        return updates

    def _update(self, pieces: Sequence[Piece], device: str, name: str, layer: str, lag: int) -> Task:
        job, mutates = self.job, []
        for piece in pieces:
            value = self.tensors.values[piece.operand.value]
            mutates.append(value.operand())
            mutates += [self._state(value, state) for state in STATE[job.optimizer]]
        names = tuple(piece.operand.value for piece in pieces)
        body = Update(job.optimizer, job.form, names, job.hyper, job.rates)
        reads = tuple(self.gradients[each] for each in names)
        return Task(name, body, device, COMPUTE, reads=reads, mutates=tuple(mutates), phase=UPDATE, layer=layer, lag=lag)

    def _state(self, parameter: Value, state: str) -> Operand:
        """An optimizer state of a piece: the same piece of the parameter's state, or its count of steps."""
        optimizer, source = self.job.optimizer, parameter.origin()
        shape, dtype = state_shape(optimizer, state, parameter.shape, parameter.dtype)
        name = f"{source.value}::{state}{parameter.name.removeprefix(source.value)}"
        strides = parameter.strides if shape else ()
        views = source.views if shape else ()
        origin = Operand(f"{source.value}::{state}", shape, source.strides if shape else (), dtype, views)
        return self.tensors.add(
            Value(name, shape, strides, dtype=dtype, device=parameter.device, kind=OPTIMIZER_STATE, source=origin)
        ).operand()
