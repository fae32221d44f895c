"""Turns a trace of a job's training steps into a profile of the GPU that ran them, and checks how well it predicts the recorded step."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.traced.costs import key_costs
from calibrate.traced.host import device_period_s, device_span_s, host_times
from calibrate.traced.recorded_ops import RecordedRun, common_name
from calibrate.traced.refusals import check_kind, check_settings, check_shares
from calibrate.traced.steps import Steps
from executors.cuda.driver import GpuFacts
from simulator.engine.costs.model import CostModel, measurable
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.machine.presets import gpu_machine, one_gpu
from simulator.model.job import Job
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.predict.target import dense_precision
from simulator.strategies import registry as strategies
from traces.documents.comparison import PYTORCH
from traces.documents.profile import Dispatch, Identity, Profile
from traces.errors import SchedcastError
from traces.formats import iterations
from traces.formats.reading import load_trace
from traces.formats.recording import Recording


@dataclass(frozen=True)
class Check:
    """Seconds of one step alone, from its first kernel to its last, with all cost keys and without those of every second layer.

    `step_s` is no evidence, since the costs are those of the step; it says whether launches, gaps and the host were understood.
    `held_out_s` says how good a fitted cost is, as for another batch: half of the layers then have no recorded cost.

    `held_out_kernels`: predicted over recorded seconds of the hidden keys' kernels, minus 1.
    """

    step_s: float
    held_out_s: float
    held_out_kernels: float


def checked(plan: Plan, machine: Machine, profile: Profile, precision: str | None) -> Check:
    """Predict one step of plain PyTorch's `plan` on the profile's `machine`, which starts with an idle GPU, as after data was loaded."""
    hidden = every_second_layer(plan, machine)
    rest = profile.model_copy(update={"costs": {key: cost for key, cost in profile.costs.items() if key not in hidden}})
    model, held_out = (CostModel(machine, each, precision).for_pytorch for each in (profile, rest))
    predicted, recorded = 0.0, 0.0
    for task, fitted, cost in zip(plan.tasks, held_out.resolve(plan), model.resolve(plan), strict=True):
        if cost_key(task, machine) in hidden and cost.source == "measured":
            predicted, recorded = predicted + fitted.cold_s, recorded + cost.cold_s
    return Check(alone_s(plan, model), alone_s(plan, held_out), predicted / recorded - 1 if recorded else 0.0)


def every_second_layer(plan: Plan, machine: Machine) -> Collection[str]:
    """The keys of the ops of every second layer with parameters or activations, in the order of their first op."""
    tasks = [task for task in plan.tasks if task.body.op]
    layers = list(dict.fromkeys(task.layer for task in tasks))[1::2]
    return {cost_key(task, machine) for task in tasks if task.layer in layers}


def alone_s(plan: Plan, model: CostModel) -> float:
    """Seconds from the first kernel of a single step to its last."""
    timeline = simulate(plan, model.machine, model.resolve(plan), iterations=1)
    spans = [span for span in timeline.spans if span.device in plan.devices]
    return max(span.end_s for span in spans) - min(span.start_s for span in spans)


#: The most resident blocks of an SM, by compute capability (CUDA C++ Programming Guide, technical specifications); 32 for others.
_BLOCKS_PER_SM = {(3, 7): 16, (7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24}
#: Baseline's plan has the parts of backward ops that strategies move.
_DIVIDED = "baseline"


@dataclass(frozen=True)
class Traced:
    """What a trace says about a job.

    `share`: of the recorded kernel time that belongs to the job. `steps`: how many recorded steps count. `step_s`: from the first kernel of
    a step to the end of its last, `period_s` from one step's first kernel to the next one's (None: a single step). `outside_s`: time of
    the host between two steps, for data loading and whatever else the job does not contain. `missing`: keys of the plan that no recorded
    op has, with the name of their first task. `others`: (name, ops per step, seconds per step) of recorded ops that are no task. `check`:
    what the profile predicts for the recorded step.
    """

    profile: Profile
    share: float
    steps: int
    step_s: float
    period_s: float | None
    outside_s: float | None
    missing: Mapping[str, str]
    others: tuple[tuple[str, int, float], ...]
    check: Check

    def document(self) -> dict[str, Any]:
        """Everything but the profile as JSON data."""
        return {
            "matched_share": self.share,
            "steps": self.steps,
            "step_s": self.step_s,
            "period_s": self.period_s,
            "outside_s": self.outside_s,
            "predicted_step_s": self.check.step_s,
            "held_out_step_s": self.check.held_out_s,
            "held_out_kernel_error": self.check.held_out_kernels,
            "missing": dict(self.missing),
            "unmatched": [{"op": name, "count": count, "seconds": seconds} for name, count, seconds in self.others],
        }


def profile_from_trace(path: Path, job: Job) -> Traced:
    """Align the trace with the job's step, and return the costs that it recorded.

    Raises SchedcastError if the file cannot be read, if it is of a different kind, model, batch, optimizer or precision than stated, or if
    it names a GPU without a preset.
    """
    recording = load_trace(path)
    profile, facts = _gpu(recording, job)
    machine = gpu_machine(profile)
    plain, divided = _plan(PYTORCH, job, machine.for_pytorch), _plan(_DIVIDED, job, machine)
    run = RecordedRun(recording, iterations.find(recording), {common_name(t.body.target) for t in plain.tasks if t.body.op})
    check_kind(run)
    steps = Steps(run, plain)
    check_shares(run, steps, Steps(run, plain, with_shapes=False), job, CostModel(machine, None, dense_precision(job, None)))
    check_settings(run, steps, job)
    costs = key_costs(steps, [divided], machine, facts)
    host = host_times(steps)
    profile.costs = costs.costs()
    profile.loop = host.loop
    # A recorded kernel's cost includes the gap behind it, as it is when kernels are launched one by one.
    profile.dispatch = Dispatch(node_gap_s=0.0, launch_gap_s=0.0)
    missing = {
        key: task.name
        for plan in (plain, divided)
        for key, task in plan.keys(machine).items()
        if measurable(task) and key not in profile.costs
    }
    profile.notes = _notes(path, job, steps, missing)
    if one_gpu(profile.identity.gpu) is None:
        profile.notes.append("peaks, bandwidth and links are those of a similar GPU")
    return Traced(
        profile, steps.share, steps=len(steps.complete), step_s=device_span_s(steps), period_s=device_period_s(steps),
        outside_s=host.outside_s, missing=missing, others=tuple(steps.others_by_name()),
        check=checked(plain, gpu_machine(profile), profile, dense_precision(job, profile)),
    )  # fmt: skip


def _plan(name: str, job: Job, machine: Machine) -> Plan:
    strategy, options = strategies.parse(name)
    return strategy.plan(job, machine, None, options)


def _gpu(recording: Recording, job: Job) -> tuple[Profile, GpuFacts]:
    """An empty profile of the GPU that did the most work, and its properties. Raises SchedcastError if the trace does not name it."""
    seconds: dict[int, float] = {}
    for work in recording.works:
        seconds[work.device] = seconds.get(work.device, 0.0) + work.duration_s
    properties = recording.operators.properties.get(max(seconds, key=seconds.__getitem__), {})
    name, sms = properties.get("name"), _number(properties, "numSms")
    if not isinstance(name, str) or not name or not sms:
        raise SchedcastError(
            f"trace {recording.source} does not say which GPU it is of (deviceProperties); record it with PyTorch 1.9 or later"
        )
    capability = (_number(properties, "computeMajor"), _number(properties, "computeMinor"))
    memory_bytes = _number(properties, "totalGlobalMem")
    facts = GpuFacts(
        name, sms, memory_bytes, cache_bytes=0, capability=capability, priority_levels=0,
        threads_per_sm=_number(properties, "maxThreadsPerMultiprocessor", 2048), blocks_per_sm=_BLOCKS_PER_SM.get(capability, 32),
        registers_per_sm=_number(properties, "regsPerMultiprocessor", 65536),
        shared_bytes_per_sm=_number(properties, "sharedMemPerMultiprocessor", 65536),
    )  # fmt: skip
    extras: dict[str, Any] = {"capability": f"{capability[0]}.{capability[1]}", "trace": recording.source}
    identity = Identity(
        kind="gpu", gpu=name[:200], sms=sms, tf32=job.precision == "tf32", conv_tf32=job.precision == "default", extras=extras
    )
    return Profile(identity=identity, memory_bytes=memory_bytes or None), facts


def _number(properties: Mapping[str, Any], name: str, default: int = 0) -> int:
    number = properties.get(name)
    return number if isinstance(number, int) and 0 < number < 2**50 else default


def _notes(path: Path, job: Job, steps: Steps, missing: Mapping[str, str]) -> list[str]:
    """Notes for users of the profile."""
    count = len(steps.complete)
    of = f"{count} recorded step{'s' * (count > 1)} of {job.label} in {path.name}"
    notes = [f"costs are from {of}; the host's times are those under a profiler"]
    if missing:
        notes.append(f"{len(missing)} cost keys were not recorded")
    updates = [task for task in steps.plan.tasks if task.body.is_update]
    recorded = [ops for task in updates[:1] for ops in steps.update_ops(steps.complete, task)]
    if recorded and updates[0].body.form == "for":
        shape = updates[0].reads[0].shape
        each = len(recorded[0]) / sum(task.reads[0].shape == shape for task in updates)
        if round(each) != updates[0].body.launches:
            notes.append(f"the recorded optimizer runs {each:g} kernels per parameter, that of the job {updates[0].body.launches}")
    return notes
