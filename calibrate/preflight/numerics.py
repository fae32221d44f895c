"""How far plain PyTorch is from itself, plans are from themselves, and plans are from plain PyTorch: eagerly and in graphs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from calibrate.cuda.testbed import GpuTestbed
from calibrate.numerics import TOLERANCE, Expected, steps_to_compare
from calibrate.preflight.check import UNCERTAIN, WRONG, Check, CheckContext, Finding
from executors.binding import apply_views
from executors.tensors import job_tensors
from simulator.costs.model import CostModel
from simulator.job import Job
from simulator.machine.machine import Machine
from simulator.models.built import Built
from simulator.plan.plan import Plan
from simulator.strategies import registry as strategies
from traces.errors import StepcastError

#: The plans: in order on one stream, on several streams, and, for recurrent models, by a scan.
_STRATEGIES = ("baseline", "turbodl", "bppsa")
#: A plan may differ from plain PyTorch by so many times what plain PyTorch differs from itself.
_TIMES = 10.0
Tensors = dict[str, torch.Tensor]


def _run(precision: str, layout: str, context: CheckContext) -> Finding:
    faults: list[tuple[int, str]] = []
    worst = 0.0
    for asked in context.scale.image_jobs if layout == "nhwc" else context.scale.jobs:
        job = replace(asked, precision=precision, layout=layout)
        for mode in ("eager", "graph"):
            name = f"{job.label}, {mode}"
            differences = context.attempt(name, partial(_differences, context, job, mode), faults, f"{name}, {precision} must run")
            if differences is None:
                continue
            own = differences["plain, plain"]
            bound = max(TOLERANCE[precision], _TIMES * own)
            for pair, difference in differences.items():
                if isinstance(difference, float) and pair != "plain, plain":
                    worst = max(worst, difference)
                    if not difference <= bound:
                        faults.append(
                            (WRONG, f"the numbers of {name}, {precision} must agree: {pair} differ by {difference:.2g}, bound {bound:.2g}")
                        )
            if own > TOLERANCE[precision]:
                faults.append((UNCERTAIN, f"judge {name}, {precision} by repeated runs: plain PyTorch differs from itself by {own:.2g}"))
    return Finding.of(faults, f"plans compute what plain PyTorch does: the largest relative difference is {worst:.2g}")


def _differences(context: CheckContext, job: Job, mode: str) -> dict[str, float | str]:
    """The relative differences of gradients by pair; a reason in words for a strategy that does not apply."""
    testbed = GpuTestbed(context.driver, mode, job.precision, context.scale.effort)
    machine = testbed.machine(None)
    testbed.open(machine)
    backend, built = testbed.backend, job.build()
    steps = steps_to_compare(backend)
    expected, again = (Expected.of(job, built, steps, backend).gradients for _ in range(2))
    differences: dict[str, float | str] = {"plain, plain": _difference(again, expected)}
    for name in _STRATEGIES:
        if name == "bppsa" and not job.model.startswith("rnn"):
            continue
        try:
            plan = _plan(job, name, machine)
        except StepcastError as error:
            differences[name] = str(error)
            continue
        first, second = (_gradients(job, built, plan, testbed, steps) for _ in range(2))
        differences[f"{name}, {name}"] = _difference(second, first)
        differences[f"{name}, plain"] = _difference(first, expected)
    return differences


def _plan(job: Job, name: str, machine: Machine) -> Plan:
    strategy, options = strategies.parse(name)
    return strategy.plan(job, machine, CostModel(machine, None), options)


def _gradients(job: Job, built: Built, plan: Plan, testbed: GpuTestbed, steps: int) -> Tensors:
    names = tuple(sorted({operand.value for operand in plan.gradients.values()}))
    program = testbed.backend.load(plan, job_tensors(job, built, job.graph()), job.seed, keep=names)
    program.run(steps)
    program.sync()
    gradients = {name: apply_views(program.kept[operand.value], operand).clone() for name, operand in plan.gradients.items()}
    testbed.driver.synchronize()  # before the program's own tensors are freed
    return gradients


def _difference(actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """max|a - b| / max|b| over all tensors together; infinity is shown as the largest float, since JSON has no infinity."""
    largest = max(float(expected[name].abs().max()) for name in actual)
    ratio = max(float((actual[name] - expected[name]).abs().max()) for name in actual) / (largest or 1.0)
    return ratio if ratio - ratio == 0 else 1e308


def _check(name: str, words: str, precision: str, layout: str = "nchw") -> Check:
    asks = f"Do plans compute what plain PyTorch does, eagerly and in graphs, {words}?"
    return Check(name, asks, 120.0, partial(_run, precision, layout))


FP32 = _check("numerics-fp32", "in fp32", "fp32")
BF16 = _check("numerics-bf16", "in bf16", "bf16")
NHWC = _check("numerics-nhwc", "in fp32 and channels-last", "fp32", "nhwc")
