"""Optimizer fusion (Jiang et al., 2021): forward-fusion and backward-fusion on a TITAN Xp, with PyTorch's for-loop optimizers.

The paper used PyTorch 1.6 in eager mode, which had no other form: its gains are over an update that is launched separately for every
parameter. The paper calls backward-fusion parallel but mentions no second stream, and PyTorch's hooks run on one stream: both readings are
predicted.
"""

from collections.abc import Iterator
from dataclasses import replace

from simulator.job import Job
from simulator.reproduce.fusion_cases import BF, BF2, FF, SHORT, Scope, StepsByStrategy, Sweeps, first_missing, job, optimizer_share
from simulator.reproduce.fusion_charts import charts
from simulator.reproduce.fusion_tables import optimizers_table, origins_table, phases_table, step_table, sweeps_table, transformer_table
from simulator.reproduce.fusion_trends import Point, trends
from simulator.reproduce.predicting import BASELINE, Steps
from simulator.reproduce.registry import Measurement
from traces.errors import StepcastError
from traces.reproduction import Check, Paper

NAME = "fusion"
ABOUT = "Optimizer fusion: updates fused into forward or backward, on a TITAN Xp"
MACHINE = "titan-xp"
TITLE = "Optimizer Fusion: Efficient Training with Better Locality and Parallelism"
REFERENCE = "Jiang, Gu, Liu, Zhu, Pan 2021, https://arxiv.org/abs/2104.00237"
NOTES = (
    "Costs are from the card's data sheet and from how well ops use newer GPUs (V100 and later) and libraries; none of the paper's"
    " figures was used to choose one.",
    "Backward-fusion is predicted twice: with its updates on the stream of backward, as PyTorch's hooks run them, and on a stream of their"
    " own, which is another reading of the paper's text on parallelism. The one published figure is shown next to both.",
    "The paper prints its sweeps and its optimizers as curves without numbers: those tables have no published figures.",
    "A for-loop update has up to twenty short kernels per parameter, whose time, taken from specifications, hardly depends on the cache:"
    " the locality with which the paper explains its gains is almost absent from these predictions.",
    "Not modeled: the Python time of the hooks.",
)
SCOPE = Scope()


def predictions() -> int:
    """Return the number of jobs that `reproduce` predicts."""
    return 2 + len(SCOPE.transformer[2]) + sum(len(batches) for _, batches in SCOPE.sweeps) + len(SCOPE.optimizers)


def reproduce(steps: Steps) -> Paper:
    """Predict the paper's figures. A step that does not fit on the card, or cannot be predicted, keeps its row with that status."""
    model, batch, lengths = SCOPE.transformer
    one = steps.of(job(*SCOPE.phases), SHORT)
    free = steps.without_launches().of(job(*SCOPE.phases), SHORT)
    by_length = {length: steps.of(job(model, batch, length), SHORT) for length in lengths}
    sweeps = {name: {each: steps.of(job(name, each), SHORT) for each in batches} for name, batches in SCOPE.sweeps}
    optimizers = {name: steps.of(job(*SCOPE.phases, optimizer=name), SHORT) for name in SCOPE.optimizers}
    sizes = {name: parameters_per_layer(job(name, batches[0])) for name, batches in SCOPE.sweeps}
    return Paper(
        name=NAME,
        title=TITLE,
        reference=REFERENCE,
        machine=steps.machine_name,
        setting="Adam with weight decay in its for-loop form unless said otherwise, fp32, eager.",
        shares=steps.shares,
        tables=(
            phases_table(SCOPE, one),
            step_table(SCOPE, one),
            origins_table(SCOPE, one, free),
            transformer_table(SCOPE, by_length),
            sweeps_table(sweeps),
            optimizers_table(SCOPE, optimizers),
        ),
        checks=tuple(_checks(sweeps, sizes, optimizers)),
        charts=tuple(charts(SCOPE, sweeps, sizes, optimizers)),
        notes=NOTES,
    )


def _checks(sweeps: Sweeps, sizes: dict[str, float], optimizers: dict[str, StepsByStrategy]) -> Iterator[Check]:
    """Every trend for both readings of backward-fusion. Steps beyond the card's memory count too: a trend is no matter of memory."""
    predicted = {model: {batch: steps for batch, steps in batches.items() if not first_missing(steps)} for model, batches in sweeps.items()}
    shares = {name: (optimizer_share(steps[BASELINE]), steps) for name, steps in optimizers.items() if not first_missing(steps)}
    for text in (BF, BF2):
        points = {
            model: [Point(batch, *(steps[schedule].step_s for schedule in (BASELINE, FF, text))) for batch, steps in batches.items()]
            for model, batches in predicted.items()
            if batches
        }
        by_size = [(model, sizes[model], p.gains[1]) for model, own in points.items() for p in own if p.batch == SCOPE.same_batch]
        by_share = [(name, share, steps[BASELINE].step_s / steps[text].step_s) for name, (share, steps) in shares.items()]
        reading = SHORT[text].removeprefix("BF ")
        for check in trends(points, SCOPE.phases[0], by_size, by_share):
            yield check.model_copy(update={"name": f"{check.name}, {reading}", "claim": f"{check.claim} ({SHORT[text]})"})


def parameters_per_layer(job: Job) -> float:
    """Return the average number of parameters of the layers that have any; 0 for an unknown model."""
    try:
        graph = job.graph()
    except StepcastError:
        return 0.0
    layers = {graph.layers[name] for name in graph.parameters}
    return sum(graph.values[name].operand().elements for name in graph.parameters) / len(layers)


def measurements(gpu: bool) -> list[Measurement]:
    """Return the paper's own job on a GPU, or a smaller job on a CPU, which does not tell about the paper's card but runs its schedules."""
    full = job(*SCOPE.phases)
    if gpu:
        return [Measurement(full, (FF, BF, BF2), "the paper's job on another card")]
    return [Measurement(replace(full, batch=8, image_size=64), (FF, BF), "a smaller job, on a CPU: no launches to hide, and another cache")]
