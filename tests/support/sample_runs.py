"""Synthetic predicted and measured timelines for figures: a two-stream step and a pipeline, simulated lane by lane."""

import random
from dataclasses import dataclass
from pathlib import Path

from tests.support.page_samples import result, skipped, validation
from traces.documents.comparison import Comparison, Shares
from traces.documents.timeline import Cause, CriticalSpan, DeviceUse, HeldByKind, Span, Timeline, busy_seconds
from ui.present.report import write_report


@dataclass(frozen=True)
class Work:
    """A task of one period. `needs`: the tasks that it waits for, as (task, periods earlier)."""

    name: str
    device: str
    lane: str
    seconds: float
    needs: tuple[tuple[str, int], ...]
    phase: str
    layer: str = ""
    microbatch: int = 0


def play(kind, works, periods=4, spread=0.0, seed=1):
    """Simulate `periods` periods. A task starts when its lane is free and its needs are done.

    `spread`: mean excess of the durations, which are drawn with `seed`.
    """
    rng = random.Random(seed)
    ends, free, last, spans, why = {}, {}, {}, [], {}
    for period in range(periods):
        for work in works:
            place = (work.device, work.lane)
            waits = [(ends[name, period - back], (name, period - back)) for name, back in work.needs if (name, period - back) in ends]
            ready, source = max(waits, default=(0.0, None))
            if free.get(place, 0.0) > ready:
                why[work.name, period] = (last[place], Cause.LANE)
            else:
                why[work.name, period] = (source, Cause.DEPENDENCY if source else Cause.START)
            start = max(free.get(place, 0.0), ready)
            end = start + work.seconds * max(0.3, rng.gauss(1 + spread, abs(spread) * 2))
            ends[work.name, period] = free[place] = end
            last[place] = (work.name, period)
            spans.append(Span(work.name, *place, start, end, work.phase, work.layer, work.microbatch, period, period))
    makespans = [max(s.end_s for s in spans if s.period <= period) for period in range(periods)]
    window = (makespans[1], makespans[2])
    return _timeline(kind, spans, window, why)


def _timeline(kind, spans, window, why):
    by_key = {(s.task, s.period): s for s in spans}
    at = max((s for s in spans if s.end_s <= window[1]), key=lambda s: s.end_s)
    path = []
    while at is not None and at.end_s > window[0]:
        source, cause = why[at.task, at.period]
        path.append(CriticalSpan(at.task, at.start_s, at.end_s, cause, at.phase, at.layer))
        at = by_key.get(source)
    step = window[1] - window[0]
    inside = [s for s in spans if s.end_s > window[0] and s.start_s < window[1]]
    devices = [d for d in dict.fromkeys(s.device for s in spans) if d != "link"]
    busy = {d: busy_seconds([s for s in inside if s.device == d], *window) / step for d in devices}
    memory = {d: _memory([s for s in spans if s.device == d]) for d in devices}
    uses = tuple(DeviceUse(d, busy[d], max(b for _, b in memory[d])) for d in devices)
    bubble = 1 - sum(busy.values()) / len(busy)
    kinds = {d: _kinds(memory[d], window) for d in devices}
    limits = dict.fromkeys(devices, 900_000_000) if kind == "predicted" else {}
    return Timeline(
        kind, tuple(spans), step, window, "eager", uses, tuple(reversed(path)), memory, bubble, memory_kinds=kinds, limits_bytes=limits
    )


def _memory(spans):
    held, steps = 400_000_000, []
    for span in sorted(spans, key=lambda s: s.end_s):
        held += {"forward": 12_000_000, "backward": -6_000_000}.get(span.phase, 0)
        steps.append((span.end_s, max(held, 300_000_000)))
    return tuple(steps)


def _kinds(steps, window):
    """200 MB of parameters, half as much optimizer state, the rest activations."""
    start, end = window
    inside = [(start, max((s for s in steps if s[0] <= start), default=steps[0])[1]), *(s for s in steps if start < s[0] < end)]
    carried = {"parameter": 200_000_000, "optimizer-state": 100_000_000}
    held = {kind: (size,) * len(inside) for kind, size in carried.items()}
    return HeldByKind(tuple(t for t, _ in inside), {**held, "activation": tuple(b - 300_000_000 for _, b in inside)})


def two_streams(layers=24, fused=True):
    """A step on one GPU: dX on stream 0, dW and updates on stream 1, or all on stream 0 unless `fused`."""
    side = "stream 1" if fused else "stream 0"
    rng = random.Random(7)
    cost = [rng.uniform(0.3e-3, 0.9e-3) for _ in range(layers)]
    works = []
    for i in range(layers):
        needs = [(f"forward conv{i - 1}", 0)] if i else []
        works.append(
            Work(f"forward conv{i}", "gpu0", "stream 0", cost[i], (*needs, (f"update conv{i}", 1)), "forward", f"block{i // 4}.conv{i}")
        )
    for i in reversed(range(layers)):
        layer = f"block{i // 4}.conv{i}"
        above = (f"dX conv{i + 1}" if i < layers - 1 else f"forward conv{i}", 0)
        if i:
            works.append(Work(f"dX conv{i}", "gpu0", "stream 0", cost[i] * 1.05, (above,), "backward", layer))
        works.append(Work(f"dW conv{i}", "gpu0", side, cost[i] * 0.9, (above,), "backward", layer))
        works.append(Work(f"update conv{i}", "gpu0", side, cost[i] * 0.25, ((f"dW conv{i}", 0), (f"dX conv{i}", 0)), "update", layer))
    return works


def pipeline(stages=4, microbatches=4):
    """1F1B over several GPUs, with transfers between neighbors."""
    works = []
    orders = []
    for stage in range(stages):
        warm = min(stages - 1 - stage, microbatches)
        order = [("F", m) for m in range(warm)]
        for m in range(microbatches - warm):
            order += [("F", warm + m), ("B", m)]
        order += [("B", m) for m in range(microbatches - warm, microbatches)]
        orders.append(order)
    done, cursor = set(), [0] * stages
    while any(cursor[s] < len(orders[s]) for s in range(stages)):
        for stage in range(stages):
            while cursor[stage] < len(orders[stage]):
                kind, m = orders[stage][cursor[stage]]
                needs = _stage_needs(kind, m, stage, stages)
                if not all(need in done for need, _ in needs if not need.startswith("update")):
                    break
                works += _stage_works(kind, m, stage, stages, needs)
                done |= {w.name for w in works}
                cursor[stage] += 1
    for stage in range(stages):
        works.append(Work(f"update stage{stage}", f"gpu{stage}", "stream 0", 0.7e-3, (), "update", f"stage{stage}"))
    return works


def _stage_needs(kind, m, stage, stages):
    if kind == "F":
        return (*([(f"send F{m} {stage - 1}>{stage}", 0)] if stage else []), (f"update stage{stage}", 1))
    return (*([(f"send B{m} {stage + 1}>{stage}", 0)] if stage < stages - 1 else []), (f"F{m} stage{stage}", 0))


def _stage_works(kind, m, stage, stages, needs):
    seconds = (2.0e-3 if kind == "F" else 4.1e-3) * (1 + 0.06 * stage)
    phase = "forward" if kind == "F" else "backward"
    works = [Work(f"{kind}{m} stage{stage}", f"gpu{stage}", "stream 0", seconds, needs, phase, f"stage{stage}", m)]
    other = stage + (1 if kind == "F" else -1)
    if 0 <= other < stages:
        name = f"send {kind}{m} {stage}>{other}"
        works.append(Work(name, f"gpu{stage}", f"to gpu{other}", 0.35e-3, ((works[0].name, 0),), "transfer", f"stage{stage}", m))
    return works


CASES = {"baseline": two_streams(fused=False), "turbodl": two_streams(), "1f1b": pipeline()}


def comparisons():
    """One comparison per case. Measured runs are noisy and 1 to 3 % slower than predicted."""
    timelines = {}
    for number, (strategy, works) in enumerate(CASES.items()):
        predicted, measured = play("predicted", works), play("measured", works, spread=0.012 + 0.006 * number, seed=number)
        timelines[strategy] = (predicted, measured)
    base = timelines["baseline"]
    return [Comparison(p, m, _row(s, p, m, base)) for s, (p, m) in timelines.items()]


def _row(strategy, predicted, measured, base):
    p, m = predicted.step_s, measured.step_s
    of_device = {kind: {d.name: d.peak_bytes for d in run.devices} for kind, run in (("predicted", predicted), ("measured", measured))}
    return result(
        strategy, p, m, (base[0].step_s, base[1].step_s), 1.0,
        options={"microbatches": 4} if strategy == "1f1b" else {},
        predicted_interval_s=(p * 0.97, p * 1.035), measured_runs_s=(m * 0.994, m, m * 1.011), max_param_error=2.4e-7,
        semantics={"batch_norm": "statistics per microbatch"} if strategy == "1f1b" else {},
        **{f"{kind}_peak_bytes": max(peaks.values()) for kind, peaks in of_device.items()},
        **{f"{kind}_peak_bytes_by_device": peaks for kind, peaks in of_device.items()},
        shares=Shares(measured=0.94, fitted=0.06, guessed=0.0), calibration="interleaved",
    )  # fmt: skip


def sample_validation(rows):
    """A validation with these rows."""
    job = {"model": "resnet50", "batch_size": 32, "device": {"name": "NVIDIA H200", "kind": "cuda"}}
    step_s = rows[0].measured_step_s * 0.98
    return validation(*rows, aa_spread=0.006, anchor_drift=1.004, reference_step_s=step_s, comparisons=1, **job)


def write_sample_report(folder: Path) -> Path:
    """Write the report of the comparisons and of a strategy that did not run, and return its folder."""
    runs = comparisons()
    write_report(folder, [sample_validation([*(run.result for run in runs), skipped()])], runs)
    return folder
