"""Whether optimizers and plans compute what plain PyTorch does, and how much two runs of plain PyTorch differ."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from calibrate.cuda.testbed import GpuTestbed
from calibrate.numerics import REPEATS_ALLOWED, TOLERANCE, Expected, steps_to_compare, worst_ratio
from calibrate.preflight.probe import SUBSTITUTE, UNCERTAIN, WRONG, Context, Order, Probe
from executors.binding import apply_views
from executors.cuda.driver import Driver
from executors.cuda.partitions import runnable_mode
from executors.kernels.update import apply_update, initial_state, torch_optimizer
from executors.tensors import job_tensors
from simulator.engine.costs.model import CostModel
from simulator.model.built import Built
from simulator.model.job import Job
from simulator.model.user_code import brief
from simulator.plan.bodies.update import STATE, Update, forms
from simulator.plan.plan import Plan
from simulator.strategies import registry as strategies
from traces.errors import SchedcastError

#: Shapes of the parameters that are updated, of which 1x1 weights in channels-last have ambiguous strides, and updates.
_SHAPES, _STEPS = [(7, 5), (3,), (), (2, 3, 3, 3), (8, 4, 1, 1)], 5
#: Relative differences of updates up to this are another order of two roundings.
_ROUNDING = 1e-6
#: The plans: in order on one stream, on several streams, and, for recurrent models, by a scan.
_STRATEGIES = ("baseline", "turbodl", "bppsa")
#: Over several GPUs: sums of gradients, and a pipeline.
_SEVERAL = ("data-parallel", "1f1b")
Tensors = dict[str, torch.Tensor]


def _updates(context: Context) -> str:
    """Every optimizer, in every form, computes what torch.optim does, also for channels-last 1x1 weights of ambiguous strides."""
    differences: dict[str, float | str] = {}
    for name in (f"{optimizer}:{form}" for optimizer in STATE for form in forms(optimizer)):
        difference: float | str
        if refusal := _refusal(context.driver.device, *name.split(":")):
            differences[name] = f"PyTorch refuses it: {refusal}"
            continue
        try:
            difference = _update_difference(context.driver, *name.split(":"))
        except Exception as error:
            difference = brief(error)
        differences[name] = difference
        context.figure("differences", differences)
        if not (isinstance(difference, float) and difference <= _ROUNDING):
            context.fault(WRONG, f"the update {name} must equal torch.optim's: {difference}")
    return "every update equals torch.optim's"


def _refusal(device: torch.device, optimizer: str, form: str) -> str:
    """Why torch.optim of this version does not take the form on this device, such as fused Adagrad on CUDA in 2.11; "" if it does."""
    parameter = torch.zeros(1, device=device, requires_grad=True)
    parameter.grad = torch.zeros_like(parameter)
    try:
        torch_optimizer(optimizer, form, [parameter]).step()
    except RuntimeError as error:
        return brief(error) if "fused=True" in str(error) else ""  # its words; else a kernel is missing
    return ""


def _update_difference(driver: Driver, optimizer: str, form: str) -> float:
    """The largest difference from torch.optim after some steps, relative to the largest parameter."""
    driver.use(driver.stream())
    driver.seed(3)
    initial = [torch.randn(shape, device=driver.device) for shape in _SHAPES]
    initial = [p.to(memory_format=torch.channels_last) if p.dim() == 4 else p for p in initial]
    ours = [p.clone() for p in initial]
    operands = [t for p in ours for t in (p, *initial_state(optimizer, p).values())]
    theirs = [p.clone().requires_grad_() for p in initial]
    plain = torch_optimizer(optimizer, form, theirs)
    body = Update(optimizer, form, tuple(f"p{index}" for index in range(len(ours))))
    for _ in range(_STEPS):
        gradients = [torch.randn_like(p) for p in ours]
        gradients[-1] = gradients[-1].contiguous()  # as a convolution's backward may return it
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        plain.step()
        apply_update(body, gradients, operands, capturable=True)
    driver.synchronize()
    largest = max(float(p.detach().abs().max()) for p in theirs)
    return max(float((a - b.detach()).abs().max()) for a, b in zip(ours, theirs, strict=True)) / largest


def _plans(precision: str, layout: str, context: Context) -> str:
    """How much two runs of plain PyTorch, two runs of a plan, and a plan and plain PyTorch differ: eagerly and in graphs."""
    worst = 0.0
    for asked in context.scale.image_jobs if layout == "nhwc" else context.scale.jobs:
        job = replace(asked, precision=precision, layout=layout)
        for mode in ("eager", "graph"):
            name = f"{job.label}, {mode}"
            worst = max(worst, _judged(context, job, name, partial(_differences, context, job, mode)))
    return f"plans compute what plain PyTorch does: the largest relative difference is {worst:.2g}"


def _several_gpus(context: Context) -> str:
    """The same of plans over two GPUs of this process, if it sees two of a kind."""
    others = context.driver.peers()[:1]
    context.figure("gpus", 1 + len(context.driver.peers()))
    if not others:
        return "this process sees one GPU of its kind"
    worst, job = 0.0, replace(context.scale.jobs[0], precision="fp32")
    for mode in ("eager", "graph"):
        name = f"two GPUs, {mode}"
        worst = max(worst, _judged(context, job, name, partial(_differences, context, job, mode, _SEVERAL, others)))
    _, reason = runnable_mode(context.driver, "graph", 1, others)
    if reason:
        context.fault(SUBSTITUTE, f"let one graph have the work of two GPUs: {reason}")
    return f"plans over two GPUs of one process compute what plain PyTorch does: the largest relative difference is {worst:.2g}"


def _judged(context: Context, job: Job, name: str, compared: Callable[[], dict[str, float | str]]) -> float:
    """Compare, and note what differs. Returns the largest relative difference from plain PyTorch, or between two runs of a plan."""
    worst, precision = 0.0, job.precision
    differences = context.attempt(name, compared, f"{name}, {precision} must run")
    if differences is None:
        return worst
    own = differences["plain, plain"]
    bound = max(TOLERANCE[precision], REPEATS_ALLOWED * own)
    for pair, difference in differences.items():
        if isinstance(difference, float) and pair != "plain, plain":
            worst = max(worst, difference)
            if not difference <= bound:
                differ = f"{pair} differ by {difference:.2g}, bound {bound:.2g}"
                context.fault(WRONG, f"the numbers of {name}, {precision} must agree: {differ}")
    if own > TOLERANCE[precision]:
        context.fault(UNCERTAIN, f"judge {name}, {precision} by repeated runs: two of plain PyTorch differ by {own:.2g}")
    return worst


def _differences(
    context: Context, job: Job, mode: str, texts: Sequence[str] = _STRATEGIES, others: Sequence[Driver] = ()
) -> dict[str, float | str]:
    """The relative differences of gradients by pair; a reason in words for a strategy that does not apply.

    `others`: further GPUs that plans use.
    """
    testbed = GpuTestbed(context.driver, mode, job.precision, context.scale.effort, others=others)
    machine = testbed.machine(None)
    testbed.open(machine)
    backend, built = testbed.backend, job.build()
    steps = steps_to_compare(backend)
    expected, again = (Expected.of(job, built, steps, backend).gradients for _ in range(2))
    differences: dict[str, float | str] = {"plain, plain": _difference(again, expected)}
    for name in texts:
        if name == "bppsa" and not job.model.startswith("rnn"):
            continue
        try:
            strategy, options = strategies.parse(name)
            plan = strategy.plan(job, machine, CostModel(machine, None), options)
            first, second = (_gradients(job, built, plan, testbed, steps) for _ in range(2))
        except SchedcastError as error:  # such as random numbers drawn in an order of its own, which no graph can
            differences[name] = str(error)
            continue
        differences[f"{name}, {name}"] = _difference(second, first)
        differences[f"{name}, plain"] = _difference(first, expected)
    return differences


def _gradients(job: Job, built: Built, plan: Plan, testbed: GpuTestbed, steps: int) -> Tensors:
    names = tuple(sorted({operand.value for operand in plan.gradients.values()}))
    program = testbed.backend.load(plan, job_tensors(job, built, job.graph()), job.seed, keep=names)
    program.run(steps)
    program.sync()
    device = testbed.backend.torch_device
    gradients = {name: apply_views(program.kept[operand.value], operand).to(device, copy=True) for name, operand in plan.gradients.items()}
    testbed.driver.synchronize()  # before the program's own tensors are freed
    return gradients


def _difference(actual: Tensors, expected: Tensors) -> float:
    """The worst ratio; infinity is shown as the largest float, since JSON has no infinity."""
    return min(worst_ratio(actual, expected), 1e308)


def _numerics(name: str, words: str, precision: str, layout: str = "nchw") -> Probe:
    asks = f"Do plans compute what plain PyTorch does, eagerly and in graphs, {words}?"
    return Probe(name, asks, partial(_plans, precision, layout), Order.NUMERICS, 120.0)


PROBES = (
    Probe("updates", "Does every optimizer compute what torch.optim does?", _updates, Order.GRAPHS),
    _numerics("numerics-fp32", "in fp32", "fp32"),
    _numerics("numerics-bf16", "in bf16", "bf16"),
    _numerics("numerics-nhwc", "in fp32 and channels-last", "fp32", "nhwc"),
    Probe("several-gpus", "Does one process run plans over two GPUs, eagerly and in one graph?", _several_gpus, Order.SEVERAL_GPUS, 60.0),
)
