"""Whether the executors compute attention as plain PyTorch does, with each kernel that the GPU has for it."""

from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from calibrate.preflight.probe import UNCERTAIN, WRONG, Context, Order, Probe, ProbeTestbed
from executors.kernels.lowering.attention import BACKWARD, FORWARD, FUSED, KERNELS, Call, choice
from simulator.plan import task
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, INPUT, Storage, Task, Value

#: The largest relative difference.
_LIMIT = {"float32": 1e-3, "bfloat16": 5e-2}
_INPUTS = ("query", "key", "value")
_RESULTS = ("out", "grad_query", "grad_key", "grad_value")


def _attention(context: Context) -> str:
    """Compare plans with the kernel that PyTorch chooses, and with each other fused one that can run: a job of other sizes may get it.

    The strides of a plan are those of the CPU's kernel, with which it was captured. A result with other strides is copied, which plain
    PyTorch does not do.
    """
    chosen: dict[str, str] = {}
    for dtype in _LIMIT:
        for causal in (False, True):
            for only in (None, *FUSED):
                name = ", ".join([dtype, *(["causal"] if causal else []), *([f"{FUSED[only]} alone"] if only else [])])
                figures = context.attempt(name, partial(_case, context, dtype, causal, only), f"attention must run ({name})")
                if not figures or not figures["kernel"]:
                    continue
                if not figures["difference"] <= _LIMIT[dtype]:
                    differ = f"they differ by {figures['difference']:.2g}"
                    context.fault(WRONG, f"plans must compute attention ({name}) as PyTorch does: {differ}")
                if only is not None:
                    continue
                chosen[name] = figures["kernel"]
                other = [result for result in _RESULTS if figures["strides"][result] != figures["planned_strides"][result]]
                if other:
                    copied = f"{', '.join(other)} have other strides"
                    context.fault(UNCERTAIN, f"expect copies of attention's results ({name}) in plans: {copied}")
    kernels = ", ".join(f"{kernel} for {name}" for name, kernel in chosen.items())
    return f"plans compute attention as PyTorch does, with the kernels {kernels}"


def _case(context: Context, dtype: str, causal: bool, only: SDPBackend | None) -> dict:
    """The figures of the kernel that PyTorch chooses, or of the kernel `only`; no kernel if that cannot run here."""
    testbed, driver = ProbeTestbed(context, "eager", "fp32"), context.driver
    machine = testbed.machine(None)
    testbed.open(machine)
    driver.use(driver.stream())
    driver.seed(0)
    batch, heads, length, width = context.scale.sequence
    shape = (batch, length, heads, width)  # the layout in which nn.MultiheadAttention has its heads
    q, k, v, grad = (torch.randn(shape, device=driver.device).to(getattr(torch, dtype)).transpose(1, 2) for _ in range(4))
    call = Call(q, k, v, None, causal, None)
    with nullcontext() if only is None else sdpa_kernel([only, SDPBackend.MATH]):
        kernel = choice(call)
        if only is not None and kernel != FUSED[only]:
            return {"kernel": ""}
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        plain = functional.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=causal)
        plain.backward(grad)
        launched, strides = _launched(context, kernel, call, grad, only is None)
        driver.synchronize()  # the program has separate streams
        plan = _plan(machine.devices[0].name, call, grad)
        program = testbed.backend.load(plan, {"query": q, "key": k, "value": v, "grad": grad}, keep=_RESULTS)
        program.run(2)
        program.sync()
    expected = dict(zip(_RESULTS, (plain.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)), strict=True))
    return {
        "kernel": kernel,
        "kernels": launched,
        "difference": max(float((program.kept[name] - b).abs().max() / b.abs().max()) for name, b in expected.items()),
        "strides": strides,
        "planned_strides": {name: list(plan.values[name].strides) for name in _RESULTS},
    }


def _launched(context: Context, kernel: str, call: Call, grad: Tensor, profile: bool) -> tuple[list[str], dict[str, list[int]]]:
    """The kernels that forward and backward launch, shortened, none without a profile; and the strides of their results."""
    strides: dict[str, list[int]] = {}

    def attend() -> None:
        out, logsumexp, saved = KERNELS[kernel].forward(call)
        results = (out, *KERNELS[kernel].backward(grad, call, out, logsumexp, saved))
        strides.update({name: list(result.stride()) for name, result in zip(_RESULTS, results, strict=True)})

    profiled = context.driver.kernels([attend]) if profile else None
    if not strides:
        attend()
    return [launched.name[:100] for launched in (profiled or [[]])[0]], strides


def _plan(device: str, call: Call, grad: Tensor) -> Plan:
    """An attention and its backward op. Their results have the strides of the CPU's kernel, as in a captured graph."""
    on_meta = call._replace(query=call.query.to("meta"), key=call.key.to("meta"), value=call.value.to("meta"))
    out, logsumexp, _ = KERNELS["cpu"].forward(on_meta)
    gradients = KERNELS["cpu"].backward(grad.to("meta"), on_meta, out, logsumexp, ())
    inputs = dict(zip(("grad", *_INPUTS), (grad, *call[:3]), strict=True))
    results = dict(zip(("logsumexp", *_RESULTS), (logsumexp, out, *gradients), strict=True))
    values = {}
    for name, tensor in (inputs | results).items():
        dtype, kind = str(tensor.dtype).removeprefix("torch."), INPUT if name in inputs else ACTIVATION
        values[name] = Value(name, tuple(tensor.shape), tensor.stride(), dtype=dtype, device=device, kind=kind)

    def op(name: str, target: str, reads: tuple[str, ...], writes: tuple[str, ...], phase: str) -> Task:
        slots = "".join(f'{{"$":{position}}},' for position in range(len(reads)))
        body = OpCall(target, f"[{slots}0.0,{str(call.causal).lower()}]", outputs=tuple(range(len(writes))))
        read, write = (tuple(values[value].operand() for value in names) for names in (reads, writes))
        return Task(name, body, device, reads=read, writes=write, phase=phase)

    tasks = (
        op("attention", FORWARD, _INPUTS, ("out", "logsumexp"), task.FORWARD),
        op("attention.backward", BACKWARD, ("grad", *_INPUTS, "out", "logsumexp"), _RESULTS[1:], task.BACKWARD),
    )
    return Plan("attention", tasks, values, {name: Storage(name, v.operand().bytes, device) for name, v in values.items()})


PROBES = (
    Probe("attention", "Do plans compute attention as PyTorch does, and with which kernels and strides?", _attention, Order.GRAPHS, 75.0),
)
