"""Whether streams are distinct queues, beyond PyTorch's pool of 32, at all priorities."""

from typing import Any

from calibrate.preflight.check import SUBSTITUTE, WRONG, Check, CheckContext, Finding
from executors.cuda.streams import POOLED
from traces.errors import StepcastError


def _run(context: CheckContext) -> Finding:
    driver, least = context.driver, 1 - context.driver.facts.priority_levels
    streams: list[Any] = []
    faults = []
    try:
        for priority in (0, least - 1):  # beyond the most urgent one, to which it is clipped
            streams += [driver.stream(priority) for _ in range(POOLED + 2)]
    except StepcastError as error:
        faults.append((SUBSTITUTE, f"let plans have more than {POOLED} lanes of one priority: {error}"))
    queues = len({getattr(stream, "cuda_stream", id(stream)) for stream in streams})
    priorities = sorted({stream.priority for stream in streams})
    for name, value in {"streams": len(streams), "queues": queues, "priorities": priorities, "most_urgent": least}.items():
        context.figure(name, value)
    if queues < len(streams):
        faults.append((WRONG, f"streams must not share queues: {len(streams)} streams have {queues}"))
    if not faults and priorities != sorted({0, least}):
        faults.append((WRONG, f"streams have priorities {priorities}; expected 0 and {least}"))
    return Finding.of(faults, f"{queues} streams have queues of their own, at priorities 0 to {least}")


CHECK = Check("streams", "Has every stream a queue of its own, at every priority?", 60.0, _run)
