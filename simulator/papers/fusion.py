"""Optimizer fusion (Jiang et al., 2021): forward-fusion and backward-fusion on a TITAN Xp, with PyTorch's for-loop optimizers.

The paper used PyTorch 1.6 in eager mode, which had no other form: its gains are over an update that is launched separately for every
parameter. The paper calls backward-fusion parallel but mentions no second stream, and PyTorch's hooks run on one stream: both readings are
predicted.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from simulator.model.job import Job
from simulator.papers import registry
from simulator.papers.predicting import (
    BASELINE,
    PredictedStep,
    Steps,
    StepsByStrategy,
    figure,
    first_refusal,
    speedup,
    status_of,
    unless_refused,
)
from simulator.papers.registry import EQUAL, Measurement, line
from traces.documents.base import Data
from traces.documents.reproduction import Chart, Check, Panel, Paper
from traces.errors import Refusal, SchedcastError

PAPER = registry.get("fusion")
FF, BF, BF2 = "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on"
#: The name of each strategy in tables.
CALLED = {BASELINE: "baseline", FF: "forward-fusion", BF: "backward-fusion, one stream", BF2: "backward-fusion, own stream"}
SHORT = {FF: "FF", BF: "BF one stream", BF2: "BF own stream"}
#: A batch counts as bound by the GPU's work if the baseline takes at least this many times its step at the smallest batch.
GROWN = 2.0
#: Gains have converged if their difference at the largest batch is at most this share of their difference at the small batch.
CONVERGED = 0.5
#: The small batch of the second claim is the smallest of a sweep that is not below this; below, control overhead counts (third claim).
SMALL = 8

#: Predicted steps by batch and strategy text.
ByBatch = Mapping[int, Mapping[str, PredictedStep]]
#: Seconds of a step of the baseline, forward-fusion and backward-fusion, by batch.
Points = Mapping[int, tuple[float, float, float]]


class FusionScope(Data):
    """The scope of the predictions. The paper prints sweeps and optimizers as curves without numbers; sweeps end at its largest batches.

    `phases`: model and batch of figure 3 and table 2, and of the optimizers in figure 7. `transformer`: model, batch and lengths of
    sentences, which section C.4 does not state. `sweeps`: model and batches of figure 5. `same_batch`: where figure 6 compares models.
    """

    phases: tuple[str, int]
    transformer: tuple[str, int, tuple[int, ...]]
    sweeps: tuple[tuple[str, tuple[int, ...]], ...]
    same_batch: int
    optimizers: tuple[str, ...]


SCOPE = PAPER.scope(FusionScope)


def predictions() -> int:
    """Return the number of jobs that `reproduce` predicts."""
    return 2 + len(SCOPE.transformer[2]) + sum(len(batches) for _, batches in SCOPE.sweeps) + len(SCOPE.optimizers)


def job(model: str, batch: int, size: int | None = None, optimizer: str = "adam") -> Job:
    """Return a job as the paper trains it: the update of every parameter is launched separately."""
    return Job(model, batch, size, optimizer, "for")


def reproduce(steps: Steps) -> Paper:
    """Predict the paper's figures. A step that does not fit on the card, or cannot be predicted, keeps its row with that status."""
    model, batch, lengths = SCOPE.transformer
    one = steps.predict(job(*SCOPE.phases), SHORT)
    free = steps.without_launches().predict(job(*SCOPE.phases), SHORT)
    by_length = {length: steps.predict(job(model, batch, length), SHORT) for length in lengths}
    sweeps = {name: {each: steps.predict(job(name, each), SHORT) for each in batches} for name, batches in SCOPE.sweeps}
    optimizers = {name: steps.predict(job(*SCOPE.phases, optimizer=name), SHORT) for name in SCOPE.optimizers}
    transformer = (row for length, own in by_length.items() for row in step_rows(own, "transformer", tokens=length))
    words = dict(zip(("model", "batch"), SCOPE.phases, strict=True))
    tables = (
        PAPER.table("phases", phase_rows(one), **words),
        PAPER.table("step", step_rows(one, "speed-ups", _published("step, ms")), **words),
        PAPER.table("origins", _origin_rows(one, free), **words),
        PAPER.table("transformer", transformer, model=model, batch=batch),
        PAPER.table("sweeps", (_gains({"model": m, "batch": b}, own) for m, by in sweeps.items() for b, own in by.items())),
        PAPER.table("optimizers", (_gains({"optimizer": name}, own, _share) for name, own in optimizers.items()), **words),
    )
    predicted = {
        name: {batch: known for batch, own in by.items() if not isinstance(known := unless_refused(own), Refusal)}
        for name, by in sweeps.items()
    }
    sizes = {name: parameters_per_layer(job(name, batches[0])) for name, batches in SCOPE.sweeps}
    same = {name: (sizes[name], by[SCOPE.same_batch]) for name, by in predicted.items() if SCOPE.same_batch in by}
    shares = {
        name: (_share(known[BASELINE]), known) for name, own in optimizers.items() if not isinstance(known := unless_refused(own), Refusal)
    }
    return PAPER.paper(steps, tables, _checks(predicted, same, shares), _charts(predicted, same, shares))


def parameters_per_layer(job: Job) -> float:
    """Return the average number of parameters of the layers that have any; 0 for an unknown model."""
    try:
        graph = job.graph()
    except SchedcastError:
        return 0.0
    layers = {graph.layers[name] for name in graph.parameters}
    return sum(graph.values[name].operand().elements for name in graph.parameters) / len(layers)


def _share(step: PredictedStep) -> float:
    """Return the share of a step's time after its last backward task."""
    return step.stretches["update"] / sum(step.stretches.values())


def _published(name: str) -> dict:
    """Return published figures by strategy text. Both readings of backward-fusion have the one that is printed."""
    values = PAPER.values(name)
    return {**values, BF2: values[BF]}


def phase_rows(steps: StepsByStrategy) -> Iterator[tuple]:
    """Yield figure 3."""
    for text, phases in _published("phases, ms").items():
        step = steps[text]
        for phase, ms in phases.items():
            intervals = [figure(step, "interval_s")] if phase == "total" else []
            yield {"schedule": CALLED[text], "phase": phase}, [_phase_s(step, phase)], [ms / 1e3], status_of(step), intervals


def _phase_s(step: PredictedStep | Refusal, phase: str) -> float | None:
    if isinstance(step, Refusal):
        return None
    forward, backward, update = (step.stretches[name] for name in ("forward", "backward", "update"))
    total = sum(step.stretches.values())
    seconds = {"forward": forward, "forward + update": forward, "backward": backward, "backward + update": backward + update}
    scale = step.step_s / total  # the phases' sum and the steady step differ by a rounding error at most
    return scale * {**seconds, "optimizer": update, "total": total}[phase]


def step_rows(steps: StepsByStrategy, speedups: str, ms: Mapping[str, float] = MappingProxyType({}), **labels: int) -> Iterator[tuple]:
    """Yield table 2, or section C.4: each schedule's step and its speed-up over the baseline. `ms`: published steps."""
    for text, name in CALLED.items():
        step = steps[text]
        values = (figure(step),) if text == BASELINE else (figure(step), speedup(steps, text))
        printed = (ms[text] / 1e3 if text in ms else None, _published(speedups).get(text))
        yield (
            {**labels, "schedule": name},
            values,
            printed,
            status_of(first_refusal(step, steps[BASELINE]) or step),
            [figure(step, "interval_s")],
        )


def _origin_rows(steps: StepsByStrategy, free: StepsByStrategy) -> Iterator[tuple]:
    """Yield the gains that remain when launches cost nothing: locality and, on a stream of its own, overlap."""
    for text in SHORT:
        refusal = first_refusal(*(each[key] for each in (steps, free) for key in (BASELINE, text)))
        gains = [speedup(each, text) for each in (steps, free)]
        yield {"schedule": CALLED[text]}, gains, (), status_of(refusal or steps[text])


def _gains(labels: Mapping[str, object], steps: StepsByStrategy, *more: Callable) -> tuple:
    """Return a row of the baseline's step, each schedule's gain, and the largest memory of one. `more`: functions of the baseline."""
    known = unless_refused(steps)
    if isinstance(known, Refusal):
        return labels, (), (), status_of(known)
    base, largest = known[BASELINE], max(known.values(), key=lambda step: step.peak_bytes)
    gains, saved = [speedup(steps, text) for text in SHORT], [base.step_s - known[text].step_s for text in SHORT]
    return labels, [*(value(base) for value in more), base.step_s, *gains, *saved, largest.peak_bytes], (), largest.status


def _checks(predicted: Mapping[str, ByBatch], same: Mapping[str, tuple], shares: Mapping[str, tuple]) -> Iterator[Check]:
    """Every claim for both readings of backward-fusion. Steps beyond the card's memory count too: a trend is no matter of memory."""
    for text in (BF, BF2):
        points = {
            model: {batch: (steps[BASELINE].step_s, steps[FF].step_s, steps[text].step_s) for batch, steps in batches.items()}
            for model, batches in predicted.items()
            if batches
        }
        by_size, by_share = ([(x, speedup(steps, text)) for x, steps in shown.values()] for shown in (same, shares))
        for check in (
            saved_is_independent(points.get(SCOPE.phases[0], {})),
            parallelism_helps_small_batches(points),
            control_costs_at_tiny_batch(points),
            PAPER.claim("layer-size").trend(by_size),
            PAPER.claim("optimizer-share").trend(by_share),
        ):
            name = f"{check.name}, {SHORT[text].removeprefix('BF ')}"
            yield check.model_copy(update={"name": name, "claim": f"{check.claim} ({SHORT[text]})"})


def saved_is_independent(points: Points) -> Check:
    """Judge (1): in the roofline regime the saved time does not depend on the batch. `points`: one model's sweep."""
    claim = PAPER.claim("saved-time")
    if not points:
        return claim.unjudged()
    large = {batch: times for batch, times in sorted(points.items()) if times[0] >= GROWN * points[min(points)][0]}
    if len(large) < 2:
        return claim.unjudged(f"{len(large)} batches of at least 2 have a step {GROWN:g} times that of the smallest batch")
    cases = {}
    for short, position in (("FF", 1), ("BF", 2)):
        saved = [times[0] - times[position] for times in large.values()]
        mean = sum(saved) / len(saved)
        stray = max(abs(value - mean) for value in saved) / abs(mean) if mean else float(len(saved))
        cases[short] = (stray, ", ".join(f"{value * 1e3:.2f}" for value in saved))
    return claim.each(cases, batches=", ".join(map(str, large)), most=max(stray for stray, _ in cases.values()))


def parallelism_helps_small_batches(sweeps: Mapping[str, Points]) -> Check:
    """Judge (2): in every model, at a small batch backward-fusion beats forward-fusion, and at a large batch they converge."""
    cases, bounds = {}, {}
    for model, points in sweeps.items():
        gaps = {batch: points[batch][0] / points[batch][2] - points[batch][0] / points[batch][1] for batch in points if batch >= SMALL}
        if len(gaps) >= 2:
            small, large = min(gaps), max(gaps)
            cases[model] = (gaps[small], gaps[large], small, large)
            bounds[model] = ((EQUAL, None), (-CONVERGED * gaps[small], CONVERGED * gaps[small]))
    return PAPER.claim("converging").each(cases, bounds)


def control_costs_at_tiny_batch(sweeps: Mapping[str, Points]) -> Check:
    """Judge (3): at the smallest batch, control overhead makes both slower than the baseline in every model."""
    smallest = {model: (min(points), *points[min(points)]) for model, points in sweeps.items()}
    return PAPER.claim("tiny-batch").each({model: (base / ff, base / bf, batch) for model, (batch, base, ff, bf) in smallest.items()})


def _charts(predicted: Mapping[str, ByBatch], same: Mapping[str, tuple], shares: Mapping[str, tuple]) -> Iterator[Chart]:
    """Figures 4 to 7, without numbers in the paper: gains over the batch, and speed-ups over the layer size and the optimizer's share."""
    (model, batch), saved_ms = SCOPE.phases, lambda steps, text: 1e3 * (steps[BASELINE].step_s - steps[text].step_s)
    yield PAPER.chart("sweeps", [Panel(title=name, series=_lines(by, speedup)) for name, by in predicted.items() if by])
    yield PAPER.chart("saved", [Panel(title="", series=_lines(predicted.get(model, {}), saved_ms))], model=model)
    yield PAPER.chart("layers", [_points(same)], batch=SCOPE.same_batch)
    yield PAPER.chart("optimizers", [_points(shares)], model=model, batch=batch)


def _lines(batches: ByBatch, value) -> tuple:
    return tuple(line(CALLED[text], ((batch, value(steps, text)) for batch, steps in batches.items())) for text in SHORT)


def _points(shown: Mapping[str, tuple[float, StepsByStrategy]]) -> Panel:
    """Return a panel of named points in the order of x, with one series per schedule."""
    named = sorted(shown.items(), key=lambda item: item[1][0])
    series = (
        line(CALLED[text], [(x, speedup(steps, text)) for _, (x, steps) in named], names=[name for name, _ in named]) for text in SHORT
    )
    return Panel(title="", series=tuple(series))


def measurements(gpu: bool) -> list[Measurement]:
    """Return the paper's own job on a GPU, or a smaller job on a CPU, which does not tell about the paper's card but runs its schedules."""
    full = job(*SCOPE.phases)
    if gpu:
        return [Measurement(full, (FF, BF, BF2), "the paper's job on another card")]
    return [Measurement(replace(full, batch=8, image_size=64), (FF, BF), "a smaller job, on a CPU: no launches to hide, and another cache")]
