"""A pipeline's tasks: what each stage does with a microbatch, and what it sends to the others."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from simulator.engine.collectives.tasks import COMPUTE, Sender, means
from simulator.machine.machine import HOST, Machine
from simulator.model.checkpoint.repeats import Repeats, without_statistics
from simulator.model.division.divide import Division
from simulator.model.job import Job
from simulator.plan.bodies.copy import LINK, Copy
from simulator.plan.bodies.host import Synchronize
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import AGAIN, TRANSFER, Operand, Task
from simulator.plan.task import BACKWARD as BACKWARD_PHASE
from simulator.plan.task import FORWARD as FORWARD_PHASE
from simulator.strategies.builder import Kept, PlanBuilder, Share
from simulator.strategies.pipeline.cut import Cut, Sent
from simulator.strategies.pipeline.schedule import AGAIN as REPEATED
from simulator.strategies.pipeline.schedule import BACKWARD, BY_INPUT, BY_WEIGHT, FORWARD, Action, Schedule, first_microbatches


class Pipeline:
    """The tasks of a job in stages. `forward` and `backward`: the device of each stage's forward, and of its backward and update.

    `staged`: values go through the host's memory, in two copies that the hosts of their devices wait for, unless they share that memory.
    `replica`: the number of this copy of the pipeline among `replicas`, each of which has `microbatches` microbatches of the step; its own
    are numbered from `replica * microbatches`. `rank`: of a device among those that divide the layers of a replica, whose graph `cut` has.
    `left_out`: microbatches of each replica that are not planned. `kept`: as in `PlanBuilder`.
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
        replica: int = 0,
        replicas: int = 1,
        rank: int = 0,
        left_out: int = 0,
        kept: Kept = "freed",
    ):
        self.machine, self.cut, self.first = machine, cut, replica * microbatches
        self.forward_devices, self.backward_devices = tuple(forward), tuple(backward)
        place, self._sent = cut.placed(forward, backward)
        self._microbatches = microbatches + left_out
        share = Share(self._microbatches * replicas, range(self.first, self.first + microbatches))
        suffix = (f"@replica{replica}" if replica else "") + (f"@rank{rank}" if rank else "")
        self.build = PlanBuilder(job, place, cut.graph, share=share, suffix=suffix, kept=kept, division=Division(1, rank))
        self.sender = Sender(machine, tuple(dict.fromkeys((*forward, *backward))))
        #: By op: what is sent when it has run, and what must have arrived of a parameter before it runs.
        self._sends: dict[int, list[Sent]] = defaultdict(list)
        self._fetches: dict[int, list[Sent]] = defaultdict(list)
        #: By op: what it is the first to read of what was staged.
        self._arrivals: dict[int, list[Sent]] = defaultdict(list)
        self._staged = staged
        #: By stage, what its ops read instead of parameters; and the ops that are omitted, because they would make it.
        self.weights: list[dict[str, Operand]] = [{} for _ in range(cut.stages)]
        self.left_out: set[int] = set()
        for sent in self._sent:
            (self._fetches[sent.before] if sent.after < 0 else self._sends[sent.after]).append(sent)
            if self._is_staged(sent):
                self._arrivals[sent.before].append(sent)

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.cut.stages

    @property
    def notes(self) -> dict[str, object]:
        """What the semantics of a plan say about its stages."""
        return {"stages": self.stages, "microbatches": self._microbatches, "placement": "-".join(map(str, self.cut.placement))}

    def begin_with(self, actions: Sequence[Action]) -> None:
        """Let the first backward of each stage in `actions` make the gradients that other microbatches are added to."""
        first = first_microbatches(actions)
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
        ops = self.ops(action, indices, instead, lag) + self.build.additions()
        after = [task for index in indices for sent in self._sends.get(index, ()) for task in self._send(sent, microbatch)]
        sends = [[replace(task, lag=lag, action=str(action)) for task in tasks] for tasks in (before, after)]
        return [*sends[0], *ops, *sends[1]]

    def ops(self, action: Action, indices: Sequence[int], instead: Mapping[str, str], lag: int = 0) -> list[Task]:
        """The tasks of some ops of an action's stage. `instead`: as in `work`."""
        own = [index for index in indices if index not in self.left_out]
        return self.build.ops(own, action.microbatch, COMPUTE, {**self.weights[action.stage], **instead}, lag, str(action))

    @cached_property
    def _repeated(self) -> list[list[int]]:
        """By stage the ops of its forward that `forward_again` repeats; not random ones, so that masks are the same in a CUDA graph too."""
        ops, chunks, repeats = self.cut.graph.ops, self.cut.chunks, Repeats(self.cut.graph)
        return [
            repeats.needed([index for index in chunks[stage, FORWARD] if not ops[index].body.random], chunks[stage, BACKWARD])
            for stage in range(self.stages)
        ]

    def forward_again(self, stage: int, microbatch: int) -> tuple[list[Task], dict[str, str]]:
        """The tasks that repeat a stage's forward of a microbatch, and by value of the graph the one that the backward then reads.

        This is re-materialization (GPipe, section 2.3): a stage saves what its forward reads, and the results of ops that draw random
        numbers. What else can be repeated is the same as for blocks (`simulator.model.checkpoint`).
        """
        indices = self._repeated[stage]
        instead = {o.value: self.build.again(o.value, microbatch) for index in indices for o in self.build.graph.ops[index].writes}
        tasks = map(without_statistics, self.ops(Action(stage, REPEATED, microbatch), indices, instead))
        return [replace(task, name=f"{task.name}{AGAIN}", phase=BACKWARD_PHASE) for task in tasks], instead

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
        gathered = next((own for own in self.weights if sent.value in own), None)
        source, target = self.build.sent(sent.value, sent.held, sent.copy, sent.target, microbatch, gathered)
        name = f"send {target.value}"
        if self._is_staged(sent):
            return self._waited(name, sent.source, HOST, source, self._on_host(target))
        return [self.sender.send(name, sent.source, sent.target, (source,), (target,), changed=sent.changed, microbatch=microbatch)]

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


def at_once(schedule: Schedule) -> frozenset[tuple[int, int]]:
    """The (stage, microbatch) pairs whose backward directly follows the forward on their rank: repeating it would save nothing."""
    pairs = set()
    for actions in schedule.ranks:
        for first, second in pairwise(actions):
            if first.kind == FORWARD != second.kind and (first.stage, first.microbatch) == (second.stage, second.microbatch):
                pairs.add((first.stage, first.microbatch))
    return frozenset(pairs)
