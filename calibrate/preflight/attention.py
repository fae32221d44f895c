"""Which kernel PyTorch chooses for attention, whether plans compute the same with it, and whether its results have the strides planned.

Plans are captured on the CPU, so their strides are those of the CPU's kernel. A result with other strides is copied, which plain PyTorch
does not do.
"""

from functools import partial

import torch
from torch.nn import functional

from calibrate.preflight.check import UNCERTAIN, WRONG, Check, CheckContext, Finding
from executors.cuda.driver import Driver
from executors.kernels.lowering.attention import KERNELS, Call, choice

_TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}
_RESULTS = ("out", "grad_query", "grad_key", "grad_value")


def _run(context: CheckContext) -> Finding:
    faults: list[tuple[int, str]] = []
    chosen: dict[str, str] = {}
    for dtype in ("float32", "bfloat16"):
        for causal in (False, True):
            name = f"{dtype}, causal" if causal else dtype
            figures = context.attempt(name, partial(_case, context, dtype, causal), faults, f"attention must run ({name})")
            if figures is None:
                continue
            chosen[name] = figures["kernel"]
            if not figures["difference"] <= _TOLERANCE[dtype]:
                faults.append((WRONG, f"plans must compute attention ({name}) as PyTorch does: they differ by {figures['difference']:.2g}"))
            other = [result for result in _RESULTS if figures["strides"][result] != figures["planned_strides"][result]]
            if other:
                faults.append((UNCERTAIN, f"expect copies of attention's results ({name}) in plans: {', '.join(other)} have other strides"))
    kernels = ", ".join(f"{kernel} for {name}" for name, kernel in chosen.items())
    return Finding.of(faults, f"plans compute attention as PyTorch does, with the kernels {kernels}")


def _case(context: CheckContext, dtype: str, causal: bool) -> dict:
    driver = context.driver
    driver.set_precision("fp32")
    driver.use(driver.stream())
    driver.seed(0)
    batch, heads, length, width = context.scale.sequence
    shape = (batch, length, heads, width)  # the layout in which nn.MultiheadAttention has its heads
    q, k, v, grad = (torch.randn(shape, device=driver.device).to(getattr(torch, dtype)).transpose(1, 2) for _ in range(4))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    plain = functional.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=causal)
    plain.backward(grad)
    call = Call(q, k, v, None, causal, None)
    kernel = choice(call)
    results = _results(kernel, call, grad)
    expected = [plain.detach(), *(leaf.grad for leaf in leaves)]
    driver.synchronize()
    on_cpu = Call(q.cpu(), k.cpu(), v.cpu(), None, causal, None)
    return {
        "kernel": kernel,
        "kernels": _kernel_names(driver, kernel, call, grad),
        "difference": max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(results, expected, strict=True)),
        "strides": {name: list(tensor.stride()) for name, tensor in zip(_RESULTS, results, strict=True)},
        "planned_strides": {
            name: list(tensor.stride()) for name, tensor in zip(_RESULTS, _results("cpu", on_cpu, grad.cpu()), strict=True)
        },
    }


def _results(kernel: str, call: Call, grad: torch.Tensor) -> list[torch.Tensor]:
    """The output, and the gradients of query, key and value."""
    out, logsumexp, saved = KERNELS[kernel].forward(call)
    return [out, *KERNELS[kernel].backward(grad, call, out, logsumexp, saved)]


def _kernel_names(driver: Driver, kernel: str, call: Call, grad: torch.Tensor) -> list[str]:
    """The kernels that forward and backward launch, shortened; none if the profiler is refused."""
    profiled = driver.kernels([lambda: _results(kernel, call, grad)]) or [[]]
    return [launched.name[:100] for launched in profiled[0]]


CHECK = Check("attention", "Which kernel computes attention, with which strides, and equal numbers?", 75.0, _run)
