"""The tables of the optimizer-fusion paper, with published and predicted figures."""

from simulator.reproduce.fusion_cases import (
    BF,
    BF2,
    CALLED,
    PHASES_MS,
    SHORT,
    TABLE_2_MS,
    TABLE_2_SPEEDUPS,
    TRANSFORMER_SPEEDUPS,
    Scope,
    StepsByStrategy,
    Sweeps,
    first_missing,
    optimizer_share,
)
from simulator.reproduce.predicting import BASELINE, Missing, Step
from traces.reproduction import Figure, Row, Table


def phases_table(scope: Scope, steps: StepsByStrategy) -> Table:
    """Figure 3."""
    model, batch = scope.phases
    rows = []
    for text, name in CALLED.items():
        published = PHASES_MS[BF if text == BF2 else text]
        for phase in published:
            step = steps[text]
            seconds, interval = (None, None) if isinstance(step, Missing) else (_phase_s(step, phase), step.interval_s)
            time = Figure(name="time", unit="s", predicted=seconds, published=published[phase] / 1e3)
            if phase == "total":
                time = time.model_copy(update={"interval": interval})
            rows.append(Row(labels={"schedule": name, "phase": phase}, figures=(time,), status=step.status))
    about = "Published: figure 3. A phase ends with its last task; updates count with the phase that they are fused into."
    return Table(name="phases", title=f"One step of {model}, batch {batch}, phase by phase", about=about, rows=tuple(rows))


def _phase_s(step: Step, phase: str) -> float:
    parts = step.stretches
    scale = step.step_s / sum(parts.values())  # the phases' sum and the steady step differ by a rounding error at most
    return (
        scale
        * {
            "forward": parts["forward"],
            "forward + update": parts["forward"],
            "backward": parts["backward"],
            "backward + update": parts["backward"] + parts["update"],
            "optimizer": parts["update"],
            "total": sum(parts.values()),
        }[phase]
    )


def step_table(scope: Scope, steps: StepsByStrategy) -> Table:
    """Table 2."""
    model, batch = scope.phases
    rows = [_speedup_row({"schedule": name}, text, steps, TABLE_2_MS, TABLE_2_SPEEDUPS) for text, name in CALLED.items()]
    about = "Published: table 2, means of 100 iterations."
    return Table(name="step", title=f"One step of {model}, batch {batch}, and its speed-ups", about=about, rows=tuple(rows))


def origins_table(scope: Scope, steps: StepsByStrategy, free: StepsByStrategy) -> Table:
    """The gains that remain when launches cost nothing: locality and, on a stream of its own, overlap."""
    model, batch = scope.phases
    rows = []
    for text in SHORT:
        missing = next((each[key] for each in (steps, free) for key in (BASELINE, text) if isinstance(each[key], Missing)), None)
        both = (None, None) if missing else (each[BASELINE].step_s / each[text].step_s for each in (steps, free))
        names = ("speed-up", "speed-up, free launches")
        figures = tuple(Figure(name=what, unit="x", predicted=value) for what, value in zip(names, both, strict=True))
        rows.append(Row(labels={"schedule": CALLED[text]}, figures=figures, status=missing.status if missing else steps[text].status))
    about = "With a host that issues in no time, gains come from the cache and, on an own stream, from running during backward."
    return Table(name="origins", title=f"Where the gains come from: {model}, batch {batch}", about=about, rows=tuple(rows))


def transformer_table(scope: Scope, by_length: dict[int, StepsByStrategy]) -> Table:
    """Section C.4."""
    model, batch, _ = scope.transformer
    rows = [
        _speedup_row({"tokens": str(length), "schedule": name}, text, steps, {}, TRANSFORMER_SPEEDUPS)
        for length, steps in by_length.items()
        for text, name in CALLED.items()
    ]
    about = "Published: section C.4, which states neither the times nor the length of the sentences."
    return Table(name="transformer", title=f"{model}, batch {batch}", about=about, rows=tuple(rows))


def _speedup_row(
    labels: dict[str, str], text: str, steps: StepsByStrategy, published_ms: dict[str, float], speedups: dict[str, float]
) -> Row:
    """A schedule's step and its speed-up over the baseline. Both readings of backward-fusion show the one published figure."""
    step, base = steps[text], steps[BASELINE]
    missing = next((each for each in (step, base) if isinstance(each, Missing)), None)
    seconds, interval, over = (None, None, None) if missing else (step.step_s, step.interval_s, base.step_s / step.step_s)
    key = BF if text == BF2 else text
    published_s = published_ms[key] / 1e3 if key in published_ms else None
    time = Figure(name="step", unit="s", predicted=seconds, published=published_s, interval=interval)
    gain = Figure(name="speed-up", unit="x", predicted=over, published=speedups.get(key))
    return Row(labels=labels, figures=(time,) if text == BASELINE else (time, gain), status=(missing or step).status)


def sweeps_table(sweeps: Sweeps) -> Table:
    """Figure 5."""
    rows = tuple(
        _gains_row({"model": model, "batch": str(batch)}, steps) for model, batches in sweeps.items() for batch, steps in batches.items()
    )
    about = "The models and the largest batches of figure 5. A step that does not fit on the card is predicted nevertheless."
    return Table(name="sweeps", title="Speed-ups over the batch", about=about, rows=rows)


def optimizers_table(scope: Scope, optimizers: dict[str, StepsByStrategy]) -> Table:
    """Figure 7."""
    model, batch = scope.phases
    rows = []
    for name, steps in optimizers.items():
        base = steps[BASELINE]
        share = () if isinstance(base, Missing) else (Figure(name="update share", unit="share", predicted=optimizer_share(base)),)
        rows.append(_gains_row({"optimizer": name}, steps, *share))
    about = "The optimizers of figure 7. Share: the part of the baseline's step after its last backward task. All but sgd use weight decay."
    return Table(name="optimizers", title=f"Optimizers on {model}, batch {batch}", about=about, rows=tuple(rows))


def _gains_row(labels: dict[str, str], steps: StepsByStrategy, *more: Figure) -> Row:
    """The baseline's step, each schedule's gain, and the largest memory that one of them needs."""
    missing = first_missing(steps)
    if missing is not None:
        return Row(labels=labels, figures=(), status=missing.status)
    base = steps[BASELINE]
    gains = [Figure(name=f"{short} speed-up", unit="x", predicted=base.step_s / steps[text].step_s) for text, short in SHORT.items()]
    saved = [Figure(name=f"{short} saved", unit="s", predicted=base.step_s - steps[text].step_s) for text, short in SHORT.items()]
    largest = max(steps.values(), key=lambda step: step.peak_bytes)
    memory = Figure(name="memory", unit="bytes", predicted=largest.peak_bytes)
    step = Figure(name="baseline", unit="s", predicted=base.step_s)
    return Row(labels=labels, figures=(*more, step, *gains, *saved, memory), status=largest.status)
