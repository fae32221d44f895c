"""Whether calibration can measure every op, and whether the times are right."""

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from calibrate.cuda.bench import Bench, Cold, flusher, in_turn, results_kept
from calibrate.cuda.sampler import MEMORY_SHARE, CudaSampler
from calibrate.cuda.testbed import GpuTestbed
from calibrate.preflight.probe import WRONG, Context, Order, Probe
from calibrate.tiny_model import tiny_job, tiny_plan
from executors.cuda.driver import Driver
from executors.kernels.lowering.batch_norm import BACKWARD
from simulator.model.factory import Factory
from simulator.model.job import Job
from simulator.strategies import registry as strategies

_VARIANTS: dict[str, dict[str, Any]] = {"fp32": {}, "bf16": {"precision": "bf16"}, "tf32, nhwc": {"precision": "tf32", "layout": "nhwc"}}
#: More outputs of 25 MB than fit into any GPU's cache.
_OUTPUTS = 8
#: A calibrated time may differ from the op's by this share.
_CLOSE = 0.1
Shape = tuple[int, int, int]


def _keys(context: Context) -> str:
    """Calibration can measure every op of a small model that has many kinds of them, in several precisions and layouts."""
    driver = context.driver
    machine = GpuTestbed(driver, effort=context.scale.effort).machine(None)
    measured: dict[str, int] = {}
    for name, fields in _VARIANTS.items():
        driver.set_precision(fields.get("precision", "fp32"))
        job = replace(tiny_job(), **fields)
        job.__dict__["factory"] = tiny_job().factory
        plan = tiny_plan(job, machine)
        sampler = CudaSampler(driver, effort=context.scale.effort)
        sampler.measure(plan, plan.keys(machine))
        measured[name] = len(sampler.samples) - len(sampler.failures)
        context.figure("measured", measured)
        context.figure(f"failures, {name}", sampler.failures)
        context.figure(f"notes, {name}", sampler.notes)
        for key, why in sampler.failures.items():
            context.fault(WRONG, f"calibration must measure {key.partition('|')[0]} ({name}): {why}")
        for note in sampler.notes:
            context.fault(WRONG, f"ops must be captured in graphs ({name}): {note}")
    return f"calibration measures all {sum(measured.values())} cost keys of a small model in {', '.join(_VARIANTS)}"


def _batch_norm(context: Context) -> str:
    """Calibration gives the right cold time of a batch-norm's backward, although its forward must run once for every set of operands.

    The backward op of a plan that lacks its forward runs the forward at its first call. If that call lies in the shorter of the two
    captured graphs, the difference of their times is too small.
    """
    driver, effort = context.driver, context.scale.effort
    batch, channels, edge = context.scale.image
    driver.set_precision("fp32")
    bench, flush = Bench(driver, effort=effort), flusher(driver)
    size = 2 * 4 * batch * channels * edge * edge
    alone = _set(driver, context.scale.image, False)
    bench.run(alone)
    alone_s = min(bench.between([alone])[0])
    facts = driver.facts
    cold = Cold.for_operands(size, facts.cache_bytes, int(facts.memory_bytes * MEMORY_SHARE), effort.copies(alone_s), effort.most_sets)
    context.figure("sets", cold.sets)
    kept = results_kept(size // 2, facts.cache_bytes)
    seconds: dict[str, float] = {}
    for name, lazy, run_first in (("backward_s", False, True), ("lazy_run_first_s", True, True), ("lazy_not_run_first_s", True, False)):
        sets = [_set(driver, context.scale.image, lazy) for _ in range(cold.sets)]
        for work in sets if run_first else sets[:1]:
            bench.run(work)
        seconds[name] = bench.slope_s(in_turn(sets, flush, kept), cold.copies)
        context.figure(name, seconds[name])
        del sets
    calibrated_s = _calibrated(context)
    context.figure("calibrated_s", calibrated_s)
    if not isinstance(calibrated_s, float):
        context.fault(WRONG, f"calibration must measure a batch-norm's backward: {calibrated_s}")
        return ""
    ratio = calibrated_s / seconds["backward_s"] if seconds["backward_s"] else float("inf")
    context.figure("calibrated_over_actual", ratio)
    if abs(ratio - 1) > _CLOSE:
        context.fault(WRONG, f"run every set of operands once before capture: calibration takes {ratio:.2f} times the op's own time")
    lost = seconds["lazy_not_run_first_s"] / seconds["backward_s"] if seconds["backward_s"] else float("nan")
    return f"a batch-norm's backward is calibrated as {ratio:.2f} of its time; sets not run once first give {lost:.2f}"


def _writes(context: Context) -> str:
    """Calibration gives the right time of an op on outputs in turn that do not fit into the cache. A single output stays in the cache."""
    driver, cache_bytes = context.driver, context.driver.facts.cache_bytes
    bench, flush = Bench(driver, effort=context.scale.effort), flusher(driver)
    x = torch.randn(context.scale.relu_bytes // 4, device=driver.device)
    into = [partial(torch.clamp_min, x, 0.0, out=torch.empty_like(x)) for _ in range(_OUTPUTS)]
    cases = {
        "one_output_s": in_turn(into[:1], flush),
        "outputs_in_turn_s": in_turn(into, flush),
        "calibrated_s": in_turn([lambda: x.clamp_min(0.0)], flush, results_kept(x.nbytes, cache_bytes)),
    }
    bench.run(lambda: [case(_OUTPUTS) for case in cases.values()])
    copies = bench.effort.copies(min(bench.between([into[0]])[0]))
    for name, seconds in zip(cases, bench.slopes([(case, copies) for case in cases.values()]), strict=True):
        context.figure(name, statistics.median(seconds))
    one_s, actual_s, calibrated_s = (context.figures[name] for name in cases)
    context.figure("one_output_over_outputs_in_turn", one_s / actual_s)
    if abs(calibrated_s / actual_s - 1) > _CLOSE:
        context.fault(
            WRONG, f"rotate results: a ReLU on {_OUTPUTS} outputs in turn is calibrated as {calibrated_s / actual_s:.2f} of its time"
        )
    return f"a ReLU takes {one_s * 1e6:.1f} us on one output, {actual_s * 1e6:.1f} us on {_OUTPUTS} in turn; calibration does the latter"


def _set(driver: Driver, shape: Shape, lazy: bool) -> Callable[[], tuple]:
    """A batch-norm's backward on separate operands. If `lazy`, the first call runs the forward."""
    batch, channels, edge = shape
    x, grad = (torch.randn(batch, channels, edge, edge, device=driver.device) for _ in range(2))
    weight, bias = torch.ones(channels, device=driver.device), torch.zeros(channels, device=driver.device)
    saved: list[tuple] = []

    def backward() -> tuple:
        if not saved:
            saved.append(
                torch.ops.aten._batch_norm_impl_index.default(x, weight, bias, None, None, True, 0.1, 1e-5, torch.backends.cudnn.enabled)
            )
        _, mean, deviation, reserve, implementation = saved[0]
        statistics_of = (None, None, mean, deviation)
        mask = [True, True, True]
        return torch.ops.aten._batch_norm_impl_index_backward.default(
            implementation, x, grad, weight, *statistics_of, True, 1e-5, mask, reserve
        )

    if not lazy:
        backward()
    return backward


def _calibrated(context: Context) -> float | str:
    """The cold seconds that calibration finds for the backward op of a plan, or why it finds none."""
    driver, (batch, channels, edge) = context.driver, context.scale.image
    job = Job("normalized", batch)
    job.__dict__["factory"] = Factory("normalized", partial(_make, channels, edge), __file__)
    machine = GpuTestbed(driver, effort=context.scale.effort).machine(None)
    strategy, options = strategies.parse("baseline")
    plan = strategy.plan(job, machine, None, options)
    key, task = next((k, task) for k, task in plan.keys(machine).items() if getattr(task.body, "target", "") == BACKWARD)
    sampler = CudaSampler(driver, effort=context.scale.effort)
    sampler.measure(plan, {key: task})
    return sampler.failures.get(key) or statistics.median(sampler.samples[key].cold_s)


def _make(channels: int, edge: int, batch: int) -> tuple:
    module = nn.Sequential(
        nn.Conv2d(1, channels, 1), nn.BatchNorm2d(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2)
    )
    return module, torch.randn(batch, 1, edge, edge), torch.randint(0, 2, (batch,))


PROBES = (
    Probe("batch-norm", "Is a batch-norm's backward calibrated cold as long as it takes?", _batch_norm, Order.NUMERICS, 75.0),
    Probe(
        "writes",
        "Does calibration count writes to the memory, which a cache may take over from those before them?",
        _writes,
        Order.NUMERICS,
    ),
    Probe("keys", "Can calibration measure every kind of op?", _keys, Order.NUMERICS, 90.0),
)
