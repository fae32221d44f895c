"""Whether the GPU is usable after a capture that failed: by an error, by a stream that was not joined, by an illegal call."""

import torch

from calibrate.preflight.check import WRONG, Check, CheckContext, Finding
from executors.cuda.driver import Driver
from executors.cuda.issue import fork
from simulator.models.user_code import brief


def _run(context: CheckContext) -> Finding:
    faults, answers = [], {}
    for fault in ("error", "unjoined", "illegal"):
        answers[fault] = _after(context.driver, fault) or "ok"
        context.figure("after", dict(answers))
        if answers[fault] != "ok":
            faults.append((WRONG, f"a capture that fails ({fault}) must leave the GPU usable: {answers[fault]}"))
    return Finding.of(faults, "after a failed capture the next one works")


def _after(driver: Driver, fault: str) -> str | None:
    """Let a capture fail, then use the GPU. Returns None if that works, else what went wrong."""
    lane, side = driver.stream(), driver.stream()
    driver.use(lane)
    x = torch.ones(8, device=driver.device)
    driver.synchronize()
    try:
        with driver.capture(lane):
            x.add_(1)
            if fault == "unjoined":
                fork(driver, lane, [side])
                driver.use(side)
                x.add_(1)
            elif fault == "illegal":
                x.sum().item()
            else:
                raise ZeroDivisionError
    except (ZeroDivisionError, RuntimeError) as error:
        if isinstance(error, ZeroDivisionError) != (fault == "error"):
            return f"it was reported as {brief(error)}"
    else:
        return "it did not fail"
    try:
        return _use(driver, side, x)
    except Exception as error:
        return brief(error)


def _use(driver: Driver, stream, x: torch.Tensor) -> str | None:
    driver.use(stream)
    torch.rand(4, device=driver.device)
    driver.seed(3)
    driver.synchronize()
    with driver.capture(stream) as graph:
        y = x + 1
    driver.use(stream)
    graph.replay()
    driver.synchronize()
    return None if float(y[0]) == float(x[0]) + 1 else "the next graph computed something else"


CHECK = Check("captures", "Is the GPU usable after a capture that failed?", 60.0, _run)
