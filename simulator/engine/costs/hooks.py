"""The host's time for the hooks of PyTorch's parallel loops, DistributedDataParallel and FSDP2 (`bodies.host.Hook`).

`hooks.json` has the times measured under gloo on a core of an EPYC with PyTorch 2.13, by `python -m tools.parallel_loops --write`:
seconds per call, and additional seconds per parameter. Hooks are Python code that launches few kernels. So a GPU's host of 2023 is assumed
to be as fast as that core, and any other host is slower by the ratio of their `loop_s` (the time of an op of plain PyTorch's loop), in
addition to the time of kernel launches. A CPU is assumed to be as fast as that core, too.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from simulator.engine.costs.cost import DATASHEET, FITTED, Cost
from simulator.machine.machine import HostLane
from simulator.plan.task import Task

RECORD = Path(__file__).with_name("hooks.json")
#: `loop_s` of the host of 2023 in machines.json.
LOOP_S = 2e-5
#: One standard deviation of the logarithm of a hook's time on a CPU that nobody measured hooks on: a factor of two either way.
_ERROR = 0.7


@cache
def record() -> Mapping[str, tuple[float, float]]:
    """By hook, the committed seconds of a call and of a parameter."""
    return {name: (call_s, parameter_s) for name, (call_s, parameter_s) in json.loads(RECORD.read_text()).items()}


def cost(task: Task, key: str, host: HostLane | None) -> Cost:
    """The cost of a hook: time of its `host`, or of the CPU itself (None)."""
    call_s, parameter_s = record()[task.body.runs]
    seconds = call_s + parameter_s * task.body.parameters
    if host is None:
        return Cost(key, seconds, seconds, FITTED, launches=0, op_class="host", error=_ERROR, common="hooks")
    own_s, error = seconds * host.loop_s / LOOP_S, host.errors.get("loop_s", 0.0)
    return Cost(key, 0.0, 0.0, DATASHEET, launches=0, op_class="host", issue_s=own_s, issue_error=error)
