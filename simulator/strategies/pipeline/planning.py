"""What pipeline strategies have in common: their options, the cut into stages, and plans of synchronous schedules."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Literal, NamedTuple

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.division.divide import UNDIVIDED, Division
from simulator.model.division.local import COLLECTIVES
from simulator.model.graph import TrainingGraph
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.repeat import with_omitted
from simulator.plan.task import Task
from simulator.strategies.builder import MOST_TASKS, PlanBuilder, Share, kept_by
from simulator.strategies.compact import folds, omits
from simulator.strategies.layout import Layout
from simulator.strategies.options import Count, Fold, Gradients, Portion, SequenceParallel, TensorDegree, Update, Updating
from simulator.strategies.pipeline import grid_csv
from simulator.strategies.pipeline.alike import PLANNED, may_copy, planned, with_copies
from simulator.strategies.pipeline.cut import Cut
from simulator.strategies.pipeline.granularity import by_action
from simulator.strategies.pipeline.orders import repeated, with_few
from simulator.strategies.pipeline.partition import balanced, begun, between_blocks, units
from simulator.strategies.pipeline.pipeline import Pipeline, at_once
from simulator.strategies.pipeline.replicas import Replicas
from simulator.strategies.pipeline.schedule import AGAIN, FORWARD, Action, Schedule, linear
from traces.errors import Code, SchedcastError
from traces.process import gc_paused

#: Microbatches per device by default, if the batch allows it: bubbles are then at most a third of the work.
_PER_DEVICE = 2
#: Microbatches of a step at most; plans have tasks for each.
MOST_MICROBATCHES = 4096
#: The fewest samples of a microbatch by default: batch-norm cannot train on one.
_SAMPLES = 2
#: What a search tries with pipelines that drain: backward-fusion.
FUSED = ("update=backward-fusion",)
#: And of language models: stages, and devices that divide their layers.
_STAGES, _DEGREES = (2, 4, 8, 16), (1, 2, 4, 8)
#: The placement with equally many blocks, or units, in each stage.
EVEN = "even"


@dataclass(frozen=True)
class StageOptions:
    """The options that all pipelines have."""

    stages: int = 0
    """Stages; 0: one for each device (of interleaved schedules: as many as each device takes)."""
    microbatches: int = 0
    """Microbatches of a step, of each replica; 0: up to two for each device, of at least two samples; with --accumulate k, k."""
    placement: str = ""
    """Layers before each cut, such as 3-5-7 for four stages; even: equally many blocks of a transformer, or layers, in each stage, as in
    Megatron-LM; empty: cuts that balance the predicted times, in a transformer between its blocks."""

    def __post_init__(self):
        """Raise SchedcastError for negative numbers, or a placement that is neither a list of numbers nor `even`."""
        for name in ("stages", "microbatches"):
            if getattr(self, name) < 0:
                raise SchedcastError(f"{name} is {getattr(self, name)}; expected at least 1, or 0 for the default")
        if not re.fullmatch(rf"(\d{{1,9}}([-, ]\d{{1,9}})*|{EVEN})?", self.placement):
            raise SchedcastError(f"placement is {self.placement!r}; expected the layers before each cut, such as 3-5-7, or {EVEN}")

    @property
    def cuts(self) -> tuple[int, ...]:
        """The numbers of `placement`."""
        return tuple(map(int, re.findall(r"\d+", self.placement)))


@dataclass(frozen=True)
class DrainingOptions(StageOptions, Updating):
    """The options of pipelines that drain in every step."""

    update: Update = "baseline"
    """A stage updates after its last backward in the step; with backward-fusion, each layer during it."""
    replicas: Count = 1
    """The number of devices with each stage, each in a separate pipeline for its part of the batch; gradients are summed over them."""
    tp: TensorDegree = 1
    sp: SequenceParallel = True
    fold: Fold = "auto"
    shard: Literal["0", "1"] = "0"
    """The stage of ZeRO over a stage's replicas: 1 shards optimizer state; parameters are gathered at the start of the step."""
    gradients: Gradients = "freed"


@dataclass(frozen=True)
class ScheduledOptions(DrainingOptions):
    """The options of pipelines that follow a schedule and drain in every step."""

    schedule: str = ""
    """A CSV file of torch.distributed.pipelining with the order of actions, which also gives stages, devices and microbatches; empty: the
    strategy's own order."""
    rematerialize: bool = False
    """Save only what each stage's forward reads, and repeat the forward before the backward, unless that follows immediately."""
    granularity: Literal["op", "stage"] = "op"
    """A task for each op, or one for each action of a stage (stage), with which large plans are planned and simulated quickly.

    A representative replica or representative microbatches with more than 20,000 ops are always planned by stage.
    """


def devices_of(machine: Machine, count: int, name: str, options: "StageOptions | None" = None) -> tuple[str, ...]:
    """Return the devices of `count` stages (0: of as many as there are devices for). Raises SchedcastError if there are too few.

    `options`: those that say how many devices a stage has (default: one).
    """
    holders = 1 if options is None else holders_of(options)
    devices = tuple(device.name for device in machine.devices)
    needed = max(count * holders, 2)
    if len(devices) < needed:
        gpu = machine.devices[0].kind == "gpu"
        do = f"split the GPU with --partition {needed}, or use a machine with several" if gpu else f"use --devices {needed}"
        there = f"there {'is' if len(devices) == 1 else 'are'} {len(devices)}"
        raise SchedcastError(f"{name} needs {needed} devices, {there}; {do}", Code.DEVICES)
    if options is not None and len(devices) % holders and not count:
        replicas, tp = replicas_of(options), division_of(options).degree
        into = f"{replicas} replicas" if tp == 1 else f"stages of replicas={replicas} x tp={tp} devices"
        raise SchedcastError(f"{name}: {len(devices)} devices do not divide into {into}; give stages", Code.DEVICES)
    return devices[: count * holders] if count else devices


def replicas_of(options: StageOptions) -> int:
    """The number of replicas of each stage."""
    return options.replicas if isinstance(options, DrainingOptions) else 1


def division_of(options: StageOptions) -> Division:
    """How the layers of a stage are divided."""
    return Division(options.tp, sequence=options.sp) if isinstance(options, DrainingOptions) and options.tp > 1 else UNDIVIDED


def holders_of(options: StageOptions) -> int:
    """The number of devices of each stage."""
    return replicas_of(options) * division_of(options).degree


def stages_in(options: StageOptions, name: str) -> int:
    """Return the number of stages that the options ask for, 0 for none. Raises SchedcastError if `stages` and `placement` differ."""
    if options.cuts and options.stages not in (0, len(options.cuts) + 1):
        raise SchedcastError(f"{name}: placement {options.placement} makes {len(options.cuts) + 1} stages, but stages is {options.stages}")
    return len(options.cuts) + 1 if options.cuts else options.stages


def microbatches_in(job: Job, options: StageOptions, devices: int) -> int:
    """Return the number of microbatches of each replica. Raises SchedcastError if the batch does not divide into them."""
    replicas = replicas_of(options)
    if job.batch % replicas:
        raise SchedcastError(f"--batch {job.batch} does not divide among {replicas} replicas; choose a multiple of them", Code.BATCH)
    batch = job.batch // replicas
    if options.microbatches:
        if job.accumulate not in (1, options.microbatches):
            raise SchedcastError(
                f"microbatches is {options.microbatches} and --accumulate {job.accumulate}: a pipeline accumulates over its microbatches;"
                " give one of the two"
            )
        if batch % options.microbatches:
            divisors = ", ".join(str(d) for d in range(1, min(batch, 64) + 1) if batch % d == 0)
            given = f"--batch {job.batch}" if replicas == 1 else f"--batch {job.batch}, of which each replica has {batch},"
            raise SchedcastError(f"{given} does not divide into {options.microbatches} microbatches; choose one of {divisors}", Code.BATCH)
        return options.microbatches
    if job.accumulate > 1:
        return job.accumulate
    most = min(batch // _SAMPLES or 1, _PER_DEVICE * devices)
    return max(d for d in range(1, most + 1) if batch % d == 0)


def microbatch_texts(job: Job, machine: Machine) -> tuple[str, ...]:
    """The numbers of microbatches that a search tries, as option texts: one, two and four for each device, of at least two samples."""
    if job.accumulate > 1:
        return ()
    counts = (len(machine.devices) * each for each in (1, 2, 4))
    usual = microbatches_in(job, StageOptions(), len(machine.devices))
    return tuple(f"microbatches={n}" for n in counts if n != usual and job.batch % n == 0 and job.batch // n >= _SAMPLES)


def combined(*choices: Iterable[str]) -> tuple[str, ...]:
    """Every combination of one option text from each of `choices` or none, as a search tries them, except the empty one."""
    return tuple(text for texts in product(*(("", *each) for each in choices)) if (text := ",".join(filter(None, texts))))


def of_language_models(job: Job, machine: Machine) -> tuple[str, ...]:
    """What a search tries for a language model, as option texts: stages, how many devices divide their layers, and sharded replicas."""
    texts = []
    for stages, tp in product(_STAGES, _DEGREES):
        replicas, rest = divmod(len(machine.devices), stages * tp)
        if replicas and not rest and machine.node_size % tp == 0:
            own = [f"stages={stages}", *([f"tp={tp}"] if tp > 1 else []), *([f"replicas={replicas}", "shard=1"] if replicas > 1 else [])]
            texts.append(",".join(own))
    return tuple(texts)


def portion(job: Job, machine: Machine, options: DrainingOptions) -> Portion | None:
    """The portion of a device in a pipeline with one stage for each rank; None with a schedule file, or if devices and options differ."""
    stages, rest = divmod(len(machine.devices), holders_of(options))
    stages = len(options.cuts) + 1 if options.cuts else options.stages or stages
    if rest or stages < 1 or (isinstance(options, ScheduledOptions) and options.schedule):
        return None
    held = 1.0 if options.shard == "0" else 1.0 / options.replicas
    keeps = not (isinstance(options, ScheduledOptions) and options.rematerialize)
    count = microbatches_in(job, options, stages)
    even = options.placement == EVEN
    return Portion(
        options.replicas,
        count,
        held=held,
        division=division_of(options),
        stages=stages,
        cuts=options.cuts,
        even=even,
        keeps=keeps,
        gathers=held < 1.0,
    )


#: A folded plan of more ops has one task for each action of a stage.
MOST_OPS = 20_000


@contextmanager
def named(name: str) -> Iterator[None]:
    """Let refusals of the model begin with the strategy's name."""
    try:
        yield
    except SchedcastError as error:
        raise SchedcastError(f"{name}: {error}", error.code) from error


def cut(job: Job, machine: Machine, costs: PlanCosts | None, options: StageOptions, stages: int, microbatches: int) -> Cut:
    """Return the job's graph cut where the options say, or into stages of balanced predicted times."""
    parts = microbatches * replicas_of(options)
    if job.batch % parts:
        raise SchedcastError(f"--batch {job.batch} does not divide into {parts} microbatches; choose a multiple of it", Code.BATCH)
    if microbatches > MOST_MICROBATCHES:
        raise SchedcastError(f"{microbatches} microbatches: expected at most {MOST_MICROBATCHES}; choose larger ones")
    graph = job.graph(job.batch // parts, parts, division=division_of(options))
    return cut_graph_of(graph, options.cuts, stages, options.placement == EVEN, lambda: unit_seconds(job, machine, costs, graph))


def cut_graph_of(graph: TrainingGraph, cuts: Sequence[int], stages: int, even: bool, seconds: Callable[[], Sequence[float]]) -> Cut:
    """Return a graph with these cuts or, without any, in stages of balanced predicted times. `seconds`: makes those of its units.

    A transformer with enough blocks is cut between them. `even`: balance the number of its blocks, or of units, instead.
    """
    if cuts or stages == 1:
        return Cut(graph, cuts)
    chain = units(graph)
    own_s = begun(graph, chain) if even else seconds()
    if even and sum(own_s) < stages:
        raise SchedcastError(f"placement={EVEN} cannot give each of {stages} stages one of {sum(own_s)} blocks; drop it", Code.MODEL)
    joints = [0, *between_blocks(graph, chain), len(chain)]
    if len(joints) <= stages:
        return Cut(graph, balanced(own_s, stages))
    together_s = [sum(own_s[first:last]) for first, last in pairwise(joints)]
    return Cut(graph, [joints[cut] for cut in balanced(together_s, stages)])


def unit_seconds(job: Job, machine: Machine, costs: PlanCosts | None, graph: TrainingGraph) -> list[float]:
    """Return the predicted seconds of each unit: forward and backward of one microbatch."""
    seconds = op_seconds(job, machine, costs, graph)
    return [sum(seconds[index] for index in (*unit.forward, *unit.backward)) for unit in units(graph)]


def op_seconds(job: Job, machine: Machine, costs: PlanCosts | None, graph: TrainingGraph) -> list[float]:
    """Return the predicted seconds of each op of the graph on one of the machine's devices."""
    from simulator.engine.costs.model import CostModel  # here, so that listing and checking strategies does not load numpy

    build = PlanBuilder(job, machine.devices[0].name, graph, share=Share(job.accumulate, range(1)))
    computing = [index for index, op in enumerate(graph.ops) if op.body.target not in COLLECTIVES]
    draft = build.plan("draft", build.ops(computing), StageOptions())
    seconds = [0.0] * len(graph.ops)
    for index, cost in zip(computing, (costs or CostModel(machine)).resolve(draft), strict=True):
        seconds[index] = cost.cold_s
    return seconds


def refuse_clipping(job: Job, name: str) -> None:
    """Raise SchedcastError if the job needs the gradients of all stages before an update."""
    if job.needs_all_gradients:
        without = "drop --clip-norm" if job.clip_norm is not None else "use --precision amp"
        raise SchedcastError(
            f"{name} cannot {job.needs_all_gradients}: that takes the gradients of all stages; use baseline, or {without}", Code.MODEL
        )


def synchronous(
    name: str,
    job: Job,
    machine: Machine,
    costs: PlanCosts | None,
    options: DrainingOptions,
    order: Callable[[int, int], Schedule],
    per_rank: int = 1,
    microbatches: int = 0,
) -> Plan:
    """Plan a pipeline that computes what plain training does: every stage updates when it has the gradients of all microbatches.

    `order(ranks, microbatches)` is the schedule, with `per_rank` stages on each rank, unless the options name a file with another one.
    Raises SchedcastError for unusable options.
    """
    if isinstance(options, ScheduledOptions) and options.schedule:
        return scheduled_by_file(name, job, machine, costs, options)
    refuse_clipping(job, name)
    stages = stages_in(options, name)
    if stages % per_rank:
        raise SchedcastError(
            f"{name}: {stages} stages do not divide among devices that take {per_rank} each; choose a multiple", Code.DEVICES
        )
    devices = devices_of(machine, stages // per_rank, name, options)
    ranks = len(devices) // holders_of(options)
    microbatches = microbatches or microbatches_in(job, options, ranks)
    with named(name):
        cut_graph = cut(job, machine, costs, options, ranks * per_rank, microbatches)
    return scheduled(name, job, machine, options=options, schedule=order(ranks, microbatches), devices=devices, cut_graph=cut_graph)


def scheduled_by_file(name: str, job: Job, machine: Machine, costs: PlanCosts | None, options: ScheduledOptions) -> Plan:
    """Plan the schedule in the file that the options name: its stages, a device for each of its ranks and replicas, its microbatches.

    Raises SchedcastError for an unusable file, or one that contradicts other options.
    """
    refuse_clipping(job, name)
    schedule = grid_csv.read(options.schedule)
    for option, wanted, count in (
        ("stages", stages_in(options, name), schedule.stages),
        ("microbatches", options.microbatches, schedule.microbatches),
        ("--accumulate", job.accumulate if job.accumulate > 1 else 0, schedule.microbatches),
    ):
        if wanted not in (0, count):
            raise SchedcastError(f"{option} is {wanted}, but schedule {options.schedule} has {count}; drop {option}")
    devices = devices_of(machine, len(schedule.ranks), name, options)
    with named(name):
        cut_graph = cut(job, machine, costs, options, schedule.stages, schedule.microbatches)
    return scheduled(name, job, machine, options=options, schedule=schedule, devices=devices, cut_graph=cut_graph)


def scheduled(
    name: str,
    job: Job,
    machine: Machine,
    options: DrainingOptions,
    schedule: Schedule,
    devices: Sequence[str],
    cut_graph: Cut,
    backward: Sequence[str] = (),
) -> Plan:
    """Plan a synchronous schedule of a cut graph on devices, those of its first rank's replicas first (`replicas`).

    `backward`: the devices of the ranks' backwards and updates, if they are others than those of their forwards.
    """
    repeats = isinstance(options, ScheduledOptions) and options.rematerialize
    if repeats and cut_graph.graph.repeats:
        raise SchedcastError(
            f"{name}: rematerialize=on and checkpointing ({cut_graph.graph.checkpoint}) both repeat forwards; give one of the two",
            Code.MODEL,
        )
    with gc_paused():
        extent = _extent(name, job, machine, options, schedule, len(cut_graph.graph.ops))
        left_out, schedule, folded = schedule.microbatches - extent.schedule.microbatches, extent.schedule, extent.folded
        own = PLANNED if extent.alike else schedule.microbatches
        ranks = len(schedule.ranks)
        every = Layout(
            machine,
            tuple(devices)[: ranks * holders_of(options)],
            division_of(options),
            size=replicas_of(options),
            folded=folded,
            priority=1 - machine.priority_levels,
            stages=ranks,
        )
        updating = replace(every, names=tuple(backward or devices)[: len(every.names)])
        with named(name):
            left = left_out + schedule.microbatches - own
            kept = kept_by(options.gradients, options.replicas, sharded=options.shard != "0")
            replicas = Replicas(
                job,
                machine,
                cut=cut_graph,
                microbatches=own,
                forward=[every.stage(schedule.rank_of[stage]) for stage in range(schedule.stages)],
                backward=[updating.stage(schedule.rank_of[stage]) for stage in range(schedule.stages)],
                left_out=left,
                kept=kept,
            )
            begins = replicas.shard(changed=options.update != "baseline") if options.shard != "0" else {}
        everything = linear(schedule)
        actions = planned(everything) if extent.alike else everything
        last = {action.stage: number for number, action in enumerate(actions)}
        tasks = replicas.counts()
        if options.gradients != "freed":
            tasks += [task for stage in range(schedule.stages) for task in replicas.zero_gradients(stage)]
        works = [_works(pipeline, schedule, actions, repeats) for pipeline in replicas.pipelines]
        for number, action in enumerate(actions):
            tasks += begins.pop(action.stage, ())
            tasks += replicas.together([next(work) for work in works])
            if last[action.stage] == number and options.update in ("baseline", "asynchronous"):
                tasks += replicas.updates(action.stage, options.lag)
        if options.update in ("backward-fusion", "forward-fusion"):
            tasks = replicas.with_fused_updates(tasks, forward=options.update == "forward-fusion")
        plan = replicas.plan(name, tasks, options, {"staleness": options.lag, **options.notes})
        if extent.coarse:
            plan = by_action(plan, runs=not (folded or left_out))
        if extent.alike:
            plan = with_copies(plan, everything)
        if left_out and (rounds := repeated(everything, schedule)):
            begin, end = (_begin(plan, actions) for actions in rounds)
            plan = with_omitted(plan, plan.tasks[begin:end], left_out, schedule.microbatches, len(schedule.ranks))
        return plan


def _begin(plan: Plan, actions: Sequence[Action]) -> int:
    """The position of the first task of these actions, of which some may have none. A repeated forward belongs to its backward."""
    own = {str(each) for action in actions for each in (action, *([action._replace(kind=AGAIN)] if action.kind != FORWARD else []))}
    return next(position for position, task in enumerate(plan.tasks) if task.action in own)


class _Extent(NamedTuple):
    """How much of a schedule is planned: all microbatches, or representative ones (`schedule`); all replicas, or a representative one
    (`folded`); a task for each op, or for each action (`coarse`); every microbatch, or two, of which the second is copied (`alike`).
    """

    schedule: Schedule
    folded: bool
    coarse: bool
    alike: bool


def _extent(name: str, job: Job, machine: Machine, options: DrainingOptions, schedule: Schedule, ops: int) -> _Extent:
    """How much of a schedule is planned for a graph with this many ops. Raises SchedcastError if that is too much."""
    count, degree = holders_of(options), division_of(options).degree
    every = count * schedule.microbatches * ops
    folded = count > 1 and folds(options.fold, job, machine, tasks=every)
    by_stage = isinstance(options, ScheduledOptions) and options.granularity == "stage"
    if by_stage and degree > 1 and not folded:
        raise SchedcastError(f"{name}: granularity=stage with tp={degree} goes with fold=on only; give that too")
    whole = schedule
    if (folded or replicas_of(options) == 1) and omits(job, whole.microbatches, every, options.fold):
        schedule = with_few(whole)
    few = schedule.microbatches < whole.microbatches
    shown, most = count * schedule.microbatches * ops, count * MOST_OPS
    coarse = by_stage or (folded and every > most) or (few and degree == 1 and shown > most)
    ops_planned = shown // count if folded else shown
    if ops_planned > MOST_TASKS and not coarse:
        do = "use granularity=stage, or" if isinstance(options, ScheduledOptions) and degree == 1 else "choose"
        raise SchedcastError(
            f"{name}: {ops_planned:,} ops in a step on {count * len(schedule.ranks)} devices, more than the {MOST_TASKS:,} that can be"
            f" planned and simulated in a minute; {do} fewer stages or microbatches"
        )
    once = options.update == "baseline" and not (isinstance(options, ScheduledOptions) and options.rematerialize)
    alike = coarse and (folded or (count == 1 and few)) and once and may_copy(schedule)
    return _Extent(schedule, folded, coarse, alike)


def _works(pipeline: Pipeline, schedule: Schedule, actions: Sequence[Action], repeats: bool) -> Iterator[list[Task]]:
    """The tasks of each action of a schedule in one replica. `repeats`: whether forwards are repeated before their backwards."""
    own = [action._replace(microbatch=pipeline.first + action.microbatch) for action in actions]
    pipeline.begin_with(own)
    instead: dict[tuple[int, int], dict[str, str]] = {(stage, pipeline.first + m): {} for stage, m in at_once(schedule)}
    for action in own:
        again: list[Task] = []
        work = action.stage, action.microbatch
        if repeats and action.kind != FORWARD and work not in instead:
            again, instead[work] = pipeline.forward_again(*work)
        yield again + pipeline.work(action, instead=instead.get(work) if action.kind != FORWARD else None)
