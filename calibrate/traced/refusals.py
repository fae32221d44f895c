"""Why a trace is no evidence for a job: each in one line, with the share of its kernel time that belongs to the job."""

import re
from collections import Counter
from functools import partial

from calibrate.traced.recorded_ops import RecordedRun, is_aten
from calibrate.traced.steps import Steps
from simulator.engine.costs.model import CostModel
from simulator.model.graph import TrainingGraph
from simulator.model.job import Job
from simulator.plan.ops import row
from traces.errors import SchedcastError
from traces.units import percent

#: The least share of the recorded kernel time that must belong to the plan, and of the plan's predicted time that must be recorded.
#: Unmatched work is missing from every forecast, or its cost comes from a model: beyond a fifth, the forecast would describe a different
#: program. A network of the same family is 68 % (ResNet-152 in place of 101) to 73 % (VGG-16 in place of 13) of the said one.
LEAST_SHARE = 0.8
#: The least share of the model's parameters whose gradients must be recorded with their shapes, if shapes of gradients were recorded.
LEAST_PARAMETERS = 0.95
#: The share of kernel time from which on a trace counts as compiled, as launched by CUDA graphs, or as computed in another precision.
_MUCH = 0.2
_COMPILED = re.compile(r"^triton_|CompiledFunction|Torch-Compiled Region|^inductor|^## Call CompiledFxGraph", re.IGNORECASE)
_HALF = re.compile(
    r"bf16|f16f16|fp16|h884|h1688|h16816|s884|s1688gemm_fp16|s16816|16816gemm|hgemm|hcudnn|__half|c10::Half|BFloat16", re.IGNORECASE
)
_TF32 = re.compile(r"tf32", re.IGNORECASE)
_percent = partial(percent, signed=False)
#: Classes of the optimizer, as the profiler names them, by ours.
_OPTIMIZERS = {"sgd": "SGD", "momentum": "SGD", "nesterov": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad",
               "rmsprop": "RMSprop", "adadelta": "Adadelta"}  # fmt: skip


def check_kind(run: RecordedRun) -> None:
    """Refuse a trace without ops or shapes, one of compiled code or CUDA graphs, and one without training."""
    recording, operators = run.recording, run.operators
    name = f"trace {recording.source}"
    if not any(is_aten(operator.name) for operator in operators.all):
        raise SchedcastError(f"{name} has no ops of PyTorch on the host; record with ProfilerActivity.CPU as well as CUDA")
    total_s = sum(work.duration_s for work in recording.works) or 1.0
    graphs = [w for w in recording.works if w.call >= 0 and "Graph" in recording.calls[w.call].name]
    graph_share = sum(work.duration_s for work in graphs) / total_s
    compiled_s = sum(work.duration_s for work in recording.works if _COMPILED.search(work.name))
    compiled = any(_COMPILED.search(operator.name) for operator in operators.all)
    if graph_share >= _MUCH:
        raise SchedcastError(
            f"{name}: {_percent(graph_share)} of its kernel time was launched by CUDA graphs, which name no ops (matched: 0 % of it);"
            " record an eager step"
        )
    if compiled or compiled_s / total_s >= _MUCH:
        raise SchedcastError(
            f"{name} was recorded under torch.compile: {_percent(compiled_s / total_s)} of its kernel time is in generated kernels, which"
            " belong to no single op; record an eager step"
        )


def check_shares(run: RecordedRun, steps: Steps, named: Steps, job: Job, model: CostModel) -> None:
    """Refuse a trace of which too little belongs to the job. `named`: aligned by order and names alone."""
    recording = run.recording
    name, words = f"trace {recording.source}", f"matched: {_percent(steps.share)} of its kernel time"
    if not run.has_shapes:
        share = min(named.share, _plan_share(named, model))
        raise SchedcastError(
            f"{name} was recorded without shapes, so that neither model nor batch can be checked (matched by order and names alone:"
            f" {_percent(share)} of {job.model}); record with record_shapes=True"
        )
    if not any(op.phase == "backward" for op in run.ops):
        raise SchedcastError(f"{name} has no backward pass: inference only ({words} with {job.model}); record training steps")
    _check_parameters(run, job, len(steps.by_iteration), words)
    recorded_share, plan_share = steps.share, _plan_share(steps, model)
    if min(recorded_share, plan_share) >= LEAST_SHARE:
        return
    both = f"matched: {_percent(recorded_share)} of its kernel time, {_percent(plan_share)} of the expected time of {job.model}"
    if named.share >= LEAST_SHARE and _plan_share(named, model) >= LEAST_SHARE and _same_weights(named):
        recorded_shape, expected_shape = _first_shapes(named)
        raise SchedcastError(
            f"{name} is of another batch or image size than --batch {job.batch}: its first op takes {recorded_shape}, that of the job"
            f" {expected_shape} ({both})"
        )
    if plan_share >= LEAST_SHARE:
        others = ", ".join(f"{count} {op}" for op, count, _ in steps.others_by_name()[:3]) or "unnamed work"
        raise SchedcastError(
            f"{name} has another model or other work beside {job.model}: most of it is {others} ({both}, expected at least"
            f" {_percent(LEAST_SHARE)}); record {job.model} alone"
        )
    raise SchedcastError(
        f"{name} is not a training step of {job.model} with batch {job.batch} ({both}, expected at least {_percent(LEAST_SHARE)} of each);"
        " give the model, batch and image size that were recorded"
    )


def check_settings(run: RecordedRun, steps: Steps, job: Job) -> None:
    """Refuse a trace whose optimizer, its form, or its precision differ from the job's."""
    name = f"trace {run.recording.source}"
    classes = {operator.name.split("#")[1].split(".")[0] for operator in run.operators.all if operator.name.startswith("Optimizer.step#")}
    known = classes & set(_OPTIMIZERS.values())
    if known and _OPTIMIZERS[job.optimizer] not in known:
        raise SchedcastError(f"{name} trains with {', '.join(sorted(known))}; give its optimizer, as in --optimizer {min(known).lower()}")
    form = _form(run)
    if form and form != job.form:
        option = {"for": ":for", "foreach": ":foreach", "fused": ":fused"}[form]
        raise SchedcastError(f"{name} updates in the {form} form; give --optimizer {job.optimizer}{option}")
    dense = [run.recording.works[i] for step in steps.complete for _, op in step.pairs if _is_dense(op.name) for i in op.works]
    total_s = sum(work.duration_s for work in dense) or 1.0
    half, tf32 = (sum(w.duration_s for w in dense if pattern.search(w.name)) / total_s for pattern in (_HALF, _TF32))
    if half >= _MUCH and job.precision in ("default", "fp32", "tf32", "fp64"):
        raise SchedcastError(
            f"{name} computes in 16 bits: {_percent(half)} of the time of its convolutions and matrix products; give its --precision"
        )
    if tf32 >= _MUCH and job.precision == "fp32":
        raise SchedcastError(
            f"{name} computes in TF32: {_percent(tf32)} of the time of its convolutions and matrix products; give --precision tf32"
        )


def _is_dense(name: str) -> bool:
    return row(name).multiplies or row(name).weight is not None


def _form(run: RecordedRun) -> str:
    """The form in which the trace updates parameters; "" if it has no update."""
    names = [op.name for op in run.ops if op.phase == "update"]
    if not names:
        return ""
    if any("_fused_" in name for name in names):
        return "fused"
    return "foreach" if any("_foreach_" in name for name in names) else "for"


def _check_parameters(run: RecordedRun, job: Job, iterations: int, words: str) -> None:
    """Refuse a trace whose gradients have other shapes than the model's parameters."""
    graph: TrainingGraph = job.graph()
    expected = Counter(graph.values[name].shape for name in graph.parameters)
    recorded: Counter = Counter()
    shapes = [operator.shapes for operator in run.operators.all if operator.name.endswith("AccumulateGrad") and operator.shapes]
    recorded.update(own[0] for own in shapes if own[0])
    if not recorded:
        return
    backwards = max(1, iterations * job.accumulate)
    per_step = Counter({shape: round(count / backwards) or 1 for shape, count in recorded.items()})
    share = (expected & per_step).total() / max(expected.total(), per_step.total())
    if share < LEAST_PARAMETERS:
        raise SchedcastError(
            f"trace {run.recording.source} is of another model than {job.model}: it computes gradients of {per_step.total()} parameters,"
            f" of which {(expected & per_step).total()} have the shapes of the model's {expected.total()} ({words})"
        )


def _same_weights(named: Steps) -> bool:
    """Whether ops that were aligned by name alone have the same weights, whatever their batch and image size."""
    pairs = [
        (named.plan.tasks[index], op) for step in named.complete[:1] for index, op in step.pairs if op.name in ("convolution", "addmm")
    ]
    same = [bool({operand.shape for operand in task.inputs if operand.shape} & set(op.shapes)) for task, op in pairs]
    return bool(same) and sum(same) / len(same) >= LEAST_SHARE


def _plan_share(steps: Steps, model: CostModel) -> float:
    """The share of the plan's time, as priced without the trace, that was recorded."""
    costs = model.resolve(steps.plan)
    missing = {id(task) for task in steps.missing}
    counted = [(task, cost.cold_s) for task, cost in zip(steps.plan.tasks, costs, strict=True) if not task.body.is_update]
    total_s = sum(seconds for _, seconds in counted)
    return sum(seconds for task, seconds in counted if id(task) not in missing) / total_s if total_s else 0.0


def _first_shapes(steps: Steps) -> list[str]:
    """The shape that the first op with tensors takes, as recorded and as the plan has it."""
    first = next(((index, op) for step in steps.complete for index, op in step.pairs if op.shapes), None)
    planned = [o.shape for o in steps.plan.tasks[first[0]].inputs if o.shape] if first else []
    return [f"[{', '.join(map(str, shapes[0]))}]" if shapes else "no tensor" for shapes in (first[1].shapes if first else (), planned)]
