"""Optimizer fusion (Jiang et al., 2021): forward-fusion and backward-fusion on a TITAN Xp, with PyTorch's for-loop optimizers.

The paper used PyTorch 1.6 in eager mode, whose optimizers launch every parameter's update separately, and fused them with hooks in Python:
what is predicted is that loop, not a schedule of ours. Figure 3's phases add up to the step, so the host waited for the GPU after each.
The paper calls backward-fusion parallel but mentions no second stream, and PyTorch's hooks run on one stream: both readings are predicted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.papers import fusion_claims as claims
from simulator.papers import predicting, registry
from simulator.papers.predicting import (
    BASELINE,
    PredictedStep,
    Steps,
    StepsByStrategy,
    figure,
    first_refusal,
    ratio,
    status_of,
    unless_refused,
)
from simulator.papers.registry import EQUAL, Measurement, gain_words, line
from traces.documents.base import Data
from traces.documents.comparison import PYTORCH
from traces.documents.reproduction import Chart, Check, Panel, Paper
from traces.errors import Refusal, SchedcastError

PAPER = registry.get("fusion")
_WAITS = ",sync=phase"
#: Without the waits, which the paper does not mention.
FREE = {each: f"pytorch-hooks:release=1.6,fusion={each}" for each in ("none", "forward", "backward", "backward,update_stream=on")}
LOOP, FF, BF, BF2 = (f"{text}{_WAITS}" for text in FREE.values())
#: The name of each strategy in tables.
CALLED = {LOOP: "baseline", FF: "forward-fusion", BF: "backward-fusion, one stream", BF2: "backward-fusion, own stream"}
#: The names of figures that the paper prints.
_PRINTED = {LOOP: "baseline", FF: "forward-fusion", BF: "backward-fusion", BF2: "backward-fusion"}
SHORT = {FF: "FF", BF: "BF one stream", BF2: "BF own stream"}
#: A batch counts as bound by the GPU's work if the baseline takes at least this many times its step at the smallest batch.
GROWN = 2.0
#: Gains have converged if their difference at the largest batch is at most this share of their difference at the small batch.
CONVERGED = 0.5
#: The small batch of the second claim is the smallest of a sweep that is not below this; below, control overhead counts (third claim).
SMALL = 8

#: Predicted steps by batch and strategy text.
ByBatch = Mapping[int, Mapping[str, PredictedStep]]
#: By batch, the step with a host that takes no time as a share of the step; None if one of them cannot be predicted.
GpuBound = Mapping[int, float | None]
#: Seconds of a step of the baseline, forward-fusion and backward-fusion, by batch.
Points = Mapping[int, tuple[float, float, float]]


class FusionScope(Data):
    """The scope of the predictions. The paper prints sweeps and optimizers as curves without numbers; sweeps end at its largest batches.

    `phases`: model and batch of figure 3 and table 2, and of the optimizers in figure 7. `transformer`: model, batch and lengths of
    sentences, which section C.4 does not state. `sweeps`: model and batches of figure 5. `same_batch`: where figure 6 compares models.
    `cards`: other cards, for table 2's model. `replicas`: a machine of several of the paper's cards, and the batch of all.
    """

    phases: tuple[str, int]
    transformer: tuple[str, int, tuple[int, ...]]
    sweeps: tuple[tuple[str, tuple[int, ...]], ...]
    same_batch: int
    optimizers: tuple[str, ...]
    cards: tuple[str, ...]
    replicas: tuple[str, int]


SCOPE = PAPER.scope(FusionScope)


def predictions() -> int:
    """Return the number of jobs that `reproduce` predicts."""
    host_bound = sum(len(_small(batches)) for _, batches in SCOPE.sweeps)
    in_both = len(SCOPE.transformer[2]) + sum(len(batches) for _, batches in SCOPE.sweeps) + len(SCOPE.optimizers)
    return 3 + 2 * in_both + host_bound + 4 * len(SCOPE.cards) + 4


def job(model: str, batch: int, size: int | None = None, optimizer: str = "adam") -> Job:
    """Return a job as the paper trains it: the update of every parameter is launched separately."""
    return Job(model, batch, size, optimizer, "for")


def reproduce(steps: Steps) -> Paper:
    """Predict the paper's figures. A step that does not fit on the card, or cannot be predicted, retains its row with that status."""
    model, batch, lengths = SCOPE.transformer
    idle_host, uncached = steps.under(free_launches=True), steps.under(cache=False)

    def predict(job: Job, of: Steps = steps, texts: Iterable[str] = CALLED) -> StepsByStrategy:
        return of.predict(job, texts, LOOP)

    one, free = predict(job(*SCOPE.phases), texts=(*CALLED, *FREE.values(), PYTORCH)), predict(job(*SCOPE.phases), idle_host)
    one_off = predict(job(*SCOPE.phases), uncached)
    by_length, by_length_off = ({length: predict(job(model, batch, length), of) for length in lengths} for of in (steps, uncached))
    sweeps, sweeps_off = (
        {name: {each: predict(job(name, each), of) for each in batches} for name, batches in SCOPE.sweeps} for of in (steps, uncached)
    )
    optimizers, optimizers_off = (
        {name: predict(job(*SCOPE.phases, optimizer=name), of) for name in SCOPE.optimizers} for of in (steps, uncached)
    )
    idle = {name: {each: predict(job(name, each), idle_host) for each in _small(batches)} for name, batches in SCOPE.sweeps}
    gpu_bound = {
        name: {each: ratio(figure(own[LOOP]), figure(sweeps[name][each][LOOP])) for each, own in by.items()} for name, by in idle.items()
    }
    cards = {card: _gains_on(steps.on(card), idle_host.on(card), uncached.on(card)) for card in SCOPE.cards}

    def asked(job: Job) -> dict[str, tuple[str, ...]]:
        return steps.asks(job, *CALLED)

    transformer = (
        (*row, asked(job(model, batch, length)))
        for length, own in by_length.items()
        for row in step_rows(own, "transformer", tokens=length)
    )
    steps_of = ((*row, asked(job(*SCOPE.phases))) for row in step_rows(one, "speed-ups", _published("step, ms")))
    gains = ((*_gains({"model": m, "batch": b}, own), (), asked(job(m, b))) for m, by in sweeps.items() for b, own in by.items())
    of_optimizers = (
        (*_gains({"optimizer": name}, own, _share), (), asked(job(*SCOPE.phases, optimizer=name))) for name, own in optimizers.items()
    )
    words = dict(zip(("model", "batch"), SCOPE.phases, strict=True))
    tables = (
        PAPER.table("phases", phase_rows(one), **words),
        PAPER.table("step", steps_of, **words),
        PAPER.table("origins", _origin_rows(one, free), **words),
        PAPER.table("transformer", transformer, model=model, batch=batch),
        PAPER.table("sweeps", gains),
        PAPER.table("optimizers", of_optimizers, **words),
    )
    predicted, predicted_off, predicted_idle = map(_known, (sweeps, sweeps_off, idle))
    sizes = {name: parameters_per_layer(job(name, batches[0])) for name, batches in SCOPE.sweeps}
    same, same_off = (
        {name: (sizes[name], by[SCOPE.same_batch]) for name, by in own.items() if SCOPE.same_batch in by}
        for own in (predicted, predicted_off)
    )
    shares, shares_off = (
        {name: (_share(known[LOOP]), known) for name, own in each.items() if not isinstance(known := unless_refused(own), Refusal)}
        for each in (optimizers, optimizers_off)
    )
    usual, off = Figures(predicted, same, shares), Figures(predicted_off, same_off, shares_off)
    of_one = _gains_of(one, one_off, one, free)
    by_length_gains = {length: _gains_of(own, by_length_off[length], own, own) for length, own in by_length.items()}
    headlines = (
        *claims.of_table_2(of_one),
        *claims.faster_backward(of_one),
        *claims.little_longer_backward({SHORT[text]: _longer(one, text) for text in (BF, BF2)}, _longer(one_off, BF)),
        claims.greatest(usual.gains((FF, BF)), off.gains((FF, BF))),
        *(claims.by_model(usual.by_model(text), off.by_model(BF), SHORT[text]) for text in (BF, BF2)),
        claims.of_transformer(by_length_gains),
        claims.locality_gains({steps.machine_name: of_one, **cards}, _bounds(steps, one, SCOPE.cards)),
        claims.parallelism_gains(of_one),
        claims.on_cards(cards),
        _with_replicas(steps),
        _of_global_information(steps),
        claims.shallower(depths := claims.depths(steps.machine_name)),
    )
    more = (
        PAPER.table("cards", _card_rows({steps.machine_name: of_one, **cards})),
        PAPER.table("depth", _depth_rows(depths)),
    )
    checks = (*headlines, *_checks(usual, off, gpu_bound, predicted_idle))
    return PAPER.paper(steps, (*tables, *more), checks, _charts(predicted, same, shares), finding=_finding(of_one, one))


def _finding(gains: claims.Gains, one: StepsByStrategy) -> Iterator[str]:
    """Yield the figures of the finding."""
    for which in (gains.unwaiting, gains.free):
        yield from (gain_words(which[name]) for name in ("FF", "BF one stream"))
    yield gain_words(gains.free["BF own stream"])
    plain, *fused = (figure(one[text]) for text in (PYTORCH, FF, BF))
    yield "not predicted" if plain is None else f"{1e3 * plain:.1f} ms"
    yield "less" if None not in (plain, *fused) and plain < min(fused) else "no less"


def _known(sweeps: Mapping[str, Mapping[int, StepsByStrategy]]) -> dict[str, ByBatch]:
    """The batches whose steps could all be predicted."""
    return {
        name: {batch: known for batch, own in by.items() if not isinstance(known := unless_refused(own), Refusal)}
        for name, by in sweeps.items()
    }


@dataclass(frozen=True)
class Figures:
    """The predictions of the paper's figures. `sweeps`: by model and batch. `same`: by model, the parameters of a layer, and steps at one
    batch. `shares`: by optimizer, its share of a step, and steps.
    """

    sweeps: Mapping[str, ByBatch]
    same: Mapping[str, tuple[float, Mapping[str, PredictedStep]]]
    shares: Mapping[str, tuple[float, Mapping[str, PredictedStep]]]

    def points(self, text: str) -> dict[str, Points]:
        """By model, seconds of the baseline, forward-fusion and the backward-fusion `text`."""
        return {
            model: {batch: (steps[LOOP].step_s, steps[FF].step_s, steps[text].step_s) for batch, steps in batches.items()}
            for model, batches in self.sweeps.items()
            if batches
        }

    def by_model(self, text: str) -> dict[str, float]:
        """The gains of figure 6 by model."""
        return {model: own[LOOP].step_s / own[text].step_s for model, (_, own) in self.same.items()}

    def gains(self, texts: Sequence[str]) -> list[float]:
        """All gains of figures 5 and 7."""
        steps = [own for by in self.sweeps.values() for own in by.values()] + [own for _, own in self.shares.values()]
        return [own[LOOP].step_s / own[text].step_s for own in steps for text in texts]


def _gains_of(usual: StepsByStrategy, uncached: StepsByStrategy, unwaiting: StepsByStrategy, free: StepsByStrategy) -> claims.Gains:
    """The gains of a job whose steps were predicted under these conditions; `unwaiting` also without waits."""
    by_name = [{name: speedup(steps, text) for text, name in SHORT.items()} for steps in (usual, uncached, free)]
    texts = {name: text.removesuffix(_WAITS) for text, name in SHORT.items()}
    no_waits = {name: speedup(unwaiting, text) if text in unwaiting else None for name, text in texts.items()}
    return claims.Gains(by_name[0], by_name[1], no_waits, by_name[2])


def _gains_on(usual: Steps, idle: Steps, uncached: Steps) -> claims.Gains:
    """The gains of table 2's job on another card."""
    own = job(*SCOPE.phases)
    steps = usual.predict(own, (*CALLED, *FREE.values()), LOOP)
    return _gains_of(steps, uncached.predict(own, CALLED, LOOP), steps, idle.predict(own, CALLED, LOOP))


def _longer(steps: StepsByStrategy, text: str) -> tuple[float | None, float | None]:
    """Seconds by which fused updates lengthen backward, and those that they take alone."""
    base, fused = steps[LOOP], steps[text]
    fused_s, backward_s = _phase_s(fused, "backward + update"), _phase_s(base, "backward")
    return None if fused_s is None or backward_s is None else fused_s - backward_s, _phase_s(base, "optimizer")


def _bounds(steps: Steps, one: StepsByStrategy, cards: Sequence[str]) -> dict[str, tuple[int, float]]:
    """By card, the size of the cache, and what updates would save of a step if it held all that they read."""
    own = job(*SCOPE.phases)
    loops = {steps.machine_name: one[LOOP]} | {
        card: steps.on(card).under(free_launches=True).predict(own, (), LOOP)[LOOP] for card in cards
    }
    return {
        card: (load_machine(card).memories[0].cache_bytes, step.by_cache_s / step.step_s)
        for card, step in loops.items()
        if not isinstance(step, Refusal)
    }


def _with_replicas(steps: Steps) -> Check:
    """Predict schedules of ours with and without replicas."""
    machine, batch = SCOPE.replicas
    several, (model, own_batch) = steps.on(machine), SCOPE.phases
    texts = {
        "FF": ("forward-fusion", "data-parallel:update=forward-fusion,bucket=0"),
        "BF own stream": ("backward-fusion:update_stream=on", "data-parallel:update=backward-fusion,bucket=0"),
    }
    on_one, on_several = ([pair[place] for pair in texts.values()] for place in (0, 1))
    one = steps.predict(job(model, own_batch), on_one)
    replicas = several.predict(job(model, batch), on_several, "data-parallel:bucket=0")
    bucketed = several.predict(job(model, batch), ["data-parallel:update=backward-fusion"], "data-parallel")
    return claims.with_replicas(one, replicas, bucketed, texts)


def _of_global_information(steps: Steps) -> Check:
    clipped = replace(job(*SCOPE.phases), clip_norm=1.0)
    predicted = steps.predict(clipped, ("forward-fusion", "backward-fusion"))
    return claims.of_global_information({name: step for name, step in predicted.items() if name != BASELINE})


def _card_rows(cards: Mapping[str, claims.Gains]) -> Iterator[tuple]:
    """Yield table 2's job on the paper's card and on others, with and without what may cause a gain."""
    for card, own in cards.items():
        for name in SHORT.values():
            values = (own.usual[name], own.uncached[name], own.unwaiting[name], own.free[name])
            yield {"card": card, "L2": f"{load_machine(card).memories[0].cache_bytes / 2**20:g} MB", "schedule": name}, values


def _depth_rows(depths: Mapping[str, Mapping[int, float]]) -> Iterator[tuple]:
    """Yield section 3's depths."""
    for name, own in depths.items():
        for layers, seconds in own.items():
            printed = 2 * layers + 1 if name.startswith("BF") else 3 * layers
            yield {"schedule": name, "layers": layers}, (round(seconds, 6),), (printed,)


def _small(batches: Sequence[int]) -> list[int]:
    """The batches that claims look at as tiny and as small."""
    return sorted({min(batches), min((each for each in batches if each >= SMALL), default=min(batches))})


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
    return {text: values[printed] for text, printed in _PRINTED.items() if printed in values}


def speedup(steps: StepsByStrategy, text: str) -> float | None:
    """Return how many times faster a loop with hooks is than the one without; None if one of them is missing."""
    return predicting.speedup(steps, text, LOOP if text in CALLED else FREE["none"])


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
        values = (figure(step),) if text == LOOP else (figure(step), speedup(steps, text))
        printed = (ms[text] / 1e3 if text in ms else None, _published(speedups).get(text))
        yield (
            {**labels, "schedule": name},
            values,
            printed,
            status_of(first_refusal(step, steps[LOOP]) or step),
            [figure(step, "interval_s")],
        )


def _origin_rows(steps: StepsByStrategy, free: StepsByStrategy) -> Iterator[tuple]:
    """Yield the gains that remain if the host never waits, and when it takes no time: locality and, on a separate stream, overlap."""
    for text in SHORT:
        refusal = first_refusal(*(each[key] for each in (steps, free) for key in (LOOP, text)))
        gains = [speedup(steps, text), speedup(steps, text.removesuffix(_WAITS)), speedup(free, text)]
        yield {"schedule": CALLED[text]}, gains, (), status_of(refusal or steps[text])


def _gains(labels: Mapping[str, object], steps: StepsByStrategy, *more: Callable) -> tuple:
    """Return a row of the baseline's step, each schedule's gain, and the largest memory of one. `more`: functions of the baseline."""
    known = unless_refused(steps)
    if isinstance(known, Refusal):
        return labels, (), (), status_of(known)
    base, largest = known[LOOP], max(known.values(), key=lambda step: step.peak_bytes)
    gains, saved = [speedup(steps, text) for text in SHORT], [base.step_s - known[text].step_s for text in SHORT]
    return labels, [*(value(base) for value in more), base.step_s, *gains, *saved, largest.peak_bytes], (), largest.status


def _checks(usual: Figures, off: Figures, gpu_bound: Mapping[str, GpuBound], idle: Mapping[str, ByBatch]) -> Iterator[Check]:
    """Every claim for both readings of backward-fusion. Steps beyond the card's memory count too: a trend does not depend on memory.

    `off`: on a card without a cache, where backward-fusion on one stream lacks what the paper credits. `idle`: with a host that takes no
    time, whose hooks cost nothing.
    """
    free = Figures(idle, {}, {})
    for text in (BF, BF2):
        judged = []
        for each, own in ((usual, text), (off, BF)):
            points = each.points(own)
            by_size, by_share = (
                [(x, steps[LOOP].step_s / steps[own].step_s) for x, steps in of.values()] for of in (each.same, each.shares)
            )
            judged.append((
                saved_is_independent(points.get(SCOPE.phases[0], {})),
                parallelism_helps_small_batches(points, gpu_bound),
                control_costs_at_tiny_batch(points if each is usual else free.points(text), gpu_bound),
                within_axes(points, SCOPE.phases[0], [gain for _, gain in by_share]),
                PAPER.claim("layer-size").trend(by_size),
                PAPER.claim("optimizer-share").trend(by_share),
            ))  # fmt: skip
        for check, without in zip(*judged, strict=True):
            claim = PAPER.claim(check.name)
            name = f"{check.name}, {SHORT[text].removeprefix('BF ')}"
            shown = claim.beside(check, without) if claim.off else check
            yield shown.model_copy(update={"name": name, "claim": f"{check.claim} ({SHORT[text]})"})


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


def parallelism_helps_small_batches(sweeps: Mapping[str, Points], gpu_bound: Mapping[str, GpuBound]) -> Check:
    """Judge (2): in every model, at a small batch backward-fusion beats forward-fusion, and at a large batch they converge."""
    cases, bounds = {}, {}
    for model, points in sweeps.items():
        gaps = {batch: points[batch][0] / points[batch][2] - points[batch][0] / points[batch][1] for batch in points if batch >= SMALL}
        if len(gaps) >= 2:
            small, large = min(gaps), max(gaps)
            cases[model] = (gaps[small], gaps[large], small, large, gpu_bound[model][small])
            bounds[model] = ((EQUAL, None), (-CONVERGED * gaps[small], CONVERGED * gaps[small]))
    return PAPER.claim("converging").each(cases, bounds)


def control_costs_at_tiny_batch(sweeps: Mapping[str, Points], gpu_bound: Mapping[str, GpuBound]) -> Check:
    """Judge (3): at the smallest batch, control overhead makes both slower than the baseline in every model."""
    smallest = {model: (min(points), *points[min(points)]) for model, points in sweeps.items()}
    return PAPER.claim("tiny-batch").each(
        {model: (base / ff, base / bf, batch, gpu_bound[model][batch]) for model, (batch, base, ff, bf) in smallest.items()}
    )


def within_axes(sweeps: Mapping[str, Points], model: str, by_optimizer: Sequence[float]) -> Check:
    """Judge that the curves fit on the axes of figures 4, 5 and 7. `model`: that of figure 4. `by_optimizer`: speed-ups."""
    gains = [base / fused for points in sweeps.values() for base, *both in points.values() for fused in both]
    saved_ms = [1e3 * (base - fused) for base, *both in sweeps.get(model, {}).values() for fused in both]
    shown = {"figure 5": gains, "figure 7": by_optimizer, "figure 4, ms": saved_ms}
    axes = {"figure 5": ((0.8, 1.2),), "figure 7": ((0.8, 1.15),), "figure 4, ms": ((-10.0, 20.0),)}
    cases = {name: (min(values), max(values)) for name, values in shown.items() if values}
    return PAPER.claim("axes").each(cases, {name: axes[name] * 2 for name in cases})


def _charts(predicted: Mapping[str, ByBatch], same: Mapping[str, tuple], shares: Mapping[str, tuple]) -> Iterator[Chart]:
    """Figures 4 to 7, without numbers in the paper: gains over the batch, and speed-ups over the layer size and the optimizer's share."""
    (model, batch), saved_ms = SCOPE.phases, lambda steps, text: 1e3 * (steps[LOOP].step_s - steps[text].step_s)
    yield PAPER.chart("sweeps", [Panel(title=name, series=_lines(by, speedup)) for name, by in predicted.items() if by])
    yield PAPER.chart("saved", [Panel(title="", series=_lines(predicted.get(model, {}), saved_ms))], model=model)
    yield PAPER.chart("layers", [_points(same)], batch=SCOPE.same_batch)
    yield PAPER.chart("optimizers", [_points(shares)], model=model, batch=batch)


def _lines(batches: ByBatch, value) -> tuple:
    return tuple(line(CALLED[text], ((batch, value(steps, text)) for batch, steps in batches.items())) for text in SHORT)


def _points(shown: Mapping[str, tuple[float, Mapping[str, PredictedStep]]]) -> Panel:
    """Return a panel of named points in the order of x, with one series per schedule."""
    named = sorted(shown.items(), key=lambda item: item[1][0])
    series = (
        line(CALLED[text], [(x, steps[LOOP].step_s / steps[text].step_s) for _, (x, steps) in named], names=[name for name, _ in named])
        for text in SHORT
    )
    return Panel(title="", series=tuple(series))


def measurements(gpu: bool) -> list[Measurement]:
    """Return the paper's own job on a GPU, or a smaller job on a CPU, which says nothing about the paper's card but runs its schedules.

    The schedules are those of our executors; `calibrate.reproduction` times the loop with hooks too.
    """
    full, fused = job(*SCOPE.phases), ("forward-fusion", "backward-fusion")
    if gpu:
        return [Measurement(full, (*fused, "backward-fusion:update_stream=on"), "the paper's job on another card")]
    return [Measurement(replace(full, batch=8, image_size=64), fused, "a smaller job, on a CPU: no launches to hide, and another cache")]
