"""Whether every optimizer, in every form, computes what torch.optim does, also for channels-last 1x1 weights of ambiguous strides."""

from typing import Any

import torch

from calibrate.preflight.check import WRONG, Check, CheckContext, Finding
from executors.cuda.driver import Driver
from executors.kernels.update import apply_update, initial_state, torch_optimizer
from simulator.bodies.update import STATE, Update, forms
from simulator.models.user_code import brief

_SHAPES, _STEPS = [(7, 5), (3,), (), (2, 3, 3, 3), (8, 4, 1, 1)], 5
#: Relative differences up to this are another order of two roundings.
_TOLERANCE = 1e-6


def _run(context: CheckContext) -> Finding:
    faults = []
    differences: dict[str, Any] = {}
    for optimizer in STATE:
        for form in forms(optimizer):
            name = f"{optimizer}:{form}"
            try:
                differences[name] = _difference(context.driver, optimizer, form)
            except Exception as error:
                differences[name] = brief(error)
            context.figure("differences", dict(differences))
            if not (isinstance(differences[name], float) and differences[name] <= _TOLERANCE):
                faults.append((WRONG, f"the update {name} must equal torch.optim's: {differences[name]}"))
    return Finding.of(faults, "every update equals torch.optim's")


def _difference(driver: Driver, optimizer: str, form: str) -> float:
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


CHECK = Check("updates", "Does every optimizer compute what torch.optim does?", 60.0, _run)
