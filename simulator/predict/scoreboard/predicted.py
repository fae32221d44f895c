"""The plan and the forecast of a row of a table, and what is stored of it, so that a stopped scoreboard resumes."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from simulator.engine.memory.over_time import beside_bytes, carried_bytes
from simulator.engine.scenario import GRAPH, Scenario
from simulator.machine.machine import HOST, Machine
from simulator.plan.plan import Plan
from simulator.plan.task import INPUT, UPDATE
from simulator.predict.forecast import Forecast, forecast
from simulator.predict.forecast import plan_of as planned
from simulator.predict.scoreboard.rows import Row
from simulator.predict.search.setup import Setup
from simulator.predict.search.workers import Workers
from simulator.predict.target import Target, preset_target
from traces.cache import cache_folder, cached, store
from traces.documents.base import Data
from traces.documents.comparison import PYTORCH_GRAPH
from traces.documents.scoreboard import ScoredStep
from traces.documents.step import Step
from traces.errors import SchedcastError

#: A step of less time per launch may wait for the host; and one that copies its batch and waits for the GPU before the next begins.
HOST_S, SYNCHRONIZED_S = 45e-6, 100e-6
#: Copies of pageable memory reach half the rate of pinned copies.
_PAGEABLE = 0.5


def target_of(row: Row) -> Target:
    """The row's preset, or one GPU of it for plain PyTorch, with its costs. Raises SchedcastError for a machine that is no preset."""
    return preset_target(row.job, row.machine, 1 if row.strategy == "pytorch" else None, mode=row.mode)


def plan_of(row: Row, target: Target, compact: bool = False) -> Plan:
    """The plan of a row. `compact`: as in `Job`."""
    plan = planned(row.job, row.strategy, target, compact=compact)
    if row.mode == GRAPH:
        plan = replace(plan, strategy=PYTORCH_GRAPH)  # the kernels of the same loop, its counts of steps on the host included
    if not row.updates:
        plan = plan.each(lambda own: replace(own, tasks=tuple(t for t in own.tasks if t.phase != UPDATE)))
    return plan


def predicted(row: Row, target: Target | None = None) -> Forecast:
    """The forecast of a row. Raises SchedcastError if the model cannot be captured, or the step does not suit the machine."""
    chosen = target or target_of(row)
    return forecast(plan_of(row, chosen, compact=True), chosen)


def family_of(plan: Plan) -> str:
    """The family of a plan's model: what most of its FLOPs are, and whether convolutions have few channels in each of their groups."""
    flops: dict[str, float] = {}
    counts, tasks = Counter(plan.body_keys), dict(zip(plan.body_keys, plan.tasks, strict=True))
    for key, task in tasks.items():
        work = task.body.work(task)
        flops[work.op_class.partition(".")[0]] = flops.get(work.op_class.partition(".")[0], 0.0) + counts[key] * work.flops
    if flops.get("recurrent"):
        return "recurrent"
    if flops.get("matmul", 0.0) > flops.get("conv", 0.0) + flops.get("grouped-conv", 0.0):
        return "transformers"
    return "narrow convolutions" if flops.get("grouped-conv") else "convolutions"


class Kept(Data):
    """What is stored of a row's forecast, or why there is none.

    `allocated_bytes`: the peak of the device with the most allocated. `reserved_bytes`: what PyTorch's allocator reserves of a GPU's memory
    for it; 0 for a row without a published peak that does not fit.
    """

    step: Step | None = None
    family: str = ""
    launches: int = 0
    why: str = ""
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    fits: bool = True


def outcomes(rows: Sequence[Row], targets: Sequence[Target | None], run: Workers) -> Iterator[ScoredStep | str]:
    """For each row, in order, the measured step with its prediction, or why there is none.

    Rows that were predicted before are not predicted again.
    """
    for row, kept in zip(rows, kept_forecasts(rows, targets, run), strict=True):
        yield scored(row, kept)


def kept_forecasts(rows: Sequence[Row], targets: Sequence[Target | None], run: Workers) -> Iterable[Kept]:
    """For each row, in order, what is stored of its forecast. Rows that were predicted before are not predicted again."""
    return run([(kept_forecast, call) for call in zip(rows, targets, strict=True)])


def kept_forecast(row: Row, target: Target | None = None) -> Kept:
    """The forecast of a row from the cache, or made and put there."""
    try:
        path = _place(row, target or target_of(row))
        kept = _stored(path)
        if kept is None:
            result = predicted(row, target)
            launches = round(sum(runs * task.body.launches for task, runs in zip(result.plan.tasks, result.plan.runs, strict=True)))
            reserved = result.reserved_bytes
            if row.peaks and not reserved:
                reserved = Scenario(result.plan, result.machine).reserved_bytes
            copied_s = copy_s(result.plan, result.machine) if row.synchronized else 0.0
            step_s, low_s, high_s = (seconds + copied_s for seconds in (result.timeline.step_s, *result.interval_s))
            kept = Kept(
                step=Step(step_s=step_s, interval_s=(low_s, high_s)),
                family=family_of(result.plan),
                launches=launches,
                allocated_bytes=max(result.peak_bytes.values()),
                reserved_bytes=max(reserved.values(), default=0),
                fits=result.fits,
            )
            store(path, kept.model_dump(mode="json"), "the forecast is not kept")
        return kept
    except SchedcastError as error:
        return Kept(why=_brief(str(error)))


def room(row: Row) -> Kept:
    """Whether the plan of a row fits into its GPUs' memory, without predicting when its tasks run."""
    target = target_of(row)
    plan, machine = plan_of(row, target), target.machine
    device = plan.devices[0]
    size = machine.memory(device).size_bytes
    if carried_bytes(plan)[device] > size:
        return Kept(fits=False)
    reserved = max(Scenario(plan, machine).reserved_bytes.values())
    return Kept(fits=reserved + beside_bytes(size) <= size, reserved_bytes=reserved)


def copy_s(plan: Plan, machine: Machine) -> float:
    """Seconds for which a step's batch is copied to the GPU from pageable memory, before the step begins; 0 on a CPU."""
    link = next((link for link in machine.links if (link.source, link.target) == (HOST, plan.devices[0])), None)
    sizes = [value.operand().bytes for value in plan.values.values() if value.kind == INPUT]
    return sum(link.latency_s + size / (_PAGEABLE * link.bandwidth_bytes_per_s) for size in sizes) if link else 0.0


def waits_for_host(row: Row, launches: int) -> bool:
    """Whether a measured step is short for its launches."""
    return row.mode == "eager" and row.published_s < launches * (SYNCHRONIZED_S if row.synchronized else HOST_S)


def scored(row: Row, kept: Kept) -> ScoredStep | str:
    """The measured step of a row with its prediction, or why there is none."""
    if kept.step is None:
        return kept.why
    assert kept.step.interval_s is not None, "only older documents hold steps without one"
    return ScoredStep(
        file=row.file,
        row=row.number,
        source=row.source,
        gpu=row.gpu,
        machine=row.machine,
        model=row.workload,
        family=kept.family,
        batch=row.job.batch,
        precision=row.job.precision,
        layout=row.job.layout,
        measured_s=row.published_s,
        predicted_s=kept.step.step_s,
        interval_s=kept.step.interval_s,
        waits_for_host=waits_for_host(row, kept.launches),
    )


def _brief(message: str) -> str:
    """The first clause of an error, without what is special to one row."""
    return re.split(r"[;(]", message)[0].strip()[:160]


def _place(row: Row, target: Target) -> Path:
    timed = {"updates": str(row.updates), "synchronized": str(row.synchronized), "strategy": row.strategy}
    digest = Setup(row.job.on(target.machine.devices[0].kind), target, timed).digest
    return cache_folder("scoreboard") / f"{hashlib.blake2b(digest.encode(), digest_size=16).hexdigest()}.json"


def _stored(path: Path) -> Kept | None:
    document = cached(path, "forecast")
    try:
        return Kept.model_validate(document) if document is not None else None
    except ValidationError:
        return None
