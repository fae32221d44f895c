"""What the hooks of DistributedDataParallel and FSDP2 take of the host, measured under gloo: `simulator/engine/costs/hooks.json`.

Two processes with a thread each train blocks of tiny linear layers, alone, under DistributedDataParallel and under `fully_shard`. What
counts is the processor time of the thread that issues, without waits for the other process or for other programs: of a step, or of all
calls of one hook in a step, the least of many steps. A call and its parameters are told apart by blocks of one and of
eight layers.

    python -m tools.parallel_loops [--write]
"""

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from simulator.engine.costs.hooks import RECORD

#: Steps of a measurement, and of those before it that do not count.
_STEPS, _WARM_UP = 30, 6
#: Blocks of a model, and the two numbers of layers of each. A layer has two parameters.
_BLOCKS, _FEW, _MANY = 4, 1, 8
#: Ops of a layer: its product, and those of its gradients by input, weight and bias.
_OPS = 4
#: Megabytes below the size of any gradient, so that each has a separate bucket.
_TINY = 1e-5
#: The methods of FSDP2 that are its hooks, by their names here. Those of the model have no parameters.
_HOOKS = {
    "_pre_forward": "fsdp pre-forward", "_post_forward": "fsdp post-forward", "_pre_backward": "fsdp pre-backward",
    "post_backward": "fsdp post-backward", "_root_post_backward_final_callback": "fsdp end",
}  # fmt: skip


def model(layers: int) -> nn.Sequential:
    """Blocks of `layers` layers."""
    return nn.Sequential(*(nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers))) for _ in range(_BLOCKS)))


def low(seconds: list[float]) -> float:
    """The least of the samples: what other programs do to caches and clocks only adds to a time."""
    return min(seconds[_WARM_UP:])


def train(*modules: nn.Module, **form: bool) -> list[tuple[float, float]]:
    """By module, processor seconds of this thread for a forward with its backward, and for an update with Adam in a form.

    The modules train one after another in each step, so that all of them see the machine in the same states.
    """
    optimizers = [torch.optim.Adam(module.parameters(), **(form or {"foreach": True})) for module in modules]
    inputs = torch.randn(2, 8, requires_grad=True)
    passes: list[list[float]] = [[] for _ in modules]
    updates: list[list[float]] = [[] for _ in modules]
    for _ in range(_STEPS):
        for module, optimizer, own_passes, own_updates in zip(modules, optimizers, passes, updates, strict=True):
            begun = time.thread_time()
            module(inputs).sum().backward()
            ended = time.thread_time()
            optimizer.step()
            optimizer.zero_grad()
            own_passes.append(ended - begun)
            own_updates.append(time.thread_time() - ended)
        _STEP.append(dict(_CALLS))
        _CALLS.clear()
    return [(low(own_passes), low(own_updates)) for own_passes, own_updates in zip(passes, updates, strict=True)]


#: Seconds of each hook in the step so far, and of the steps before. A hook that others call counts for itself alone.
_CALLS: dict[tuple[str, bool], float] = defaultdict(float)
_STEP: list[dict[tuple[str, bool], float]] = []


def timed(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A hook that adds its time to `_CALLS`, apart for units with parameters and for the model, which has none."""

    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = time.thread_time()
        result = method(self, *args, **kwargs)
        _CALLS[name, not hasattr(self, "_fsdp_param_groups") or bool(self._fsdp_param_groups)] += time.thread_time() - begun
        return result

    return run


def sharded(layers: int) -> nn.Sequential:
    """The model under FSDP2."""
    module, mesh = model(layers), init_device_mesh("cpu", (2,))
    for block in module:
        fully_shard(block, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def line(few: float, many: float) -> list[float]:
    """Seconds of a call, and more for each parameter, from those with `_FEW` and with `_MANY` layers."""
    each = max(0.0, (many - few) / (2 * (_MANY - _FEW)))
    return [max(0.0, few - 2 * _FEW * each), each]


def measure() -> dict[str, list[float]]:
    """Seconds of a call of each hook, and more for each parameter."""
    counts = {layers: 2 * layers * _BLOCKS for layers in (_FEW, _MANY)}
    one, each = {}, {}
    for layers in counts:
        buckets = DistributedDataParallel(model(layers)), DistributedDataParallel(model(layers), bucket_cap_mb=_TINY)
        plain_s, one_s, each_s = (passes_s for passes_s, _ in train(model(layers), *buckets))
        one[layers], each[layers] = one_s - plain_s, each_s - plain_s
        print(f"an op of the loop, with {layers} layers a block: {1e6 * plain_s / (_OPS * layers * _BLOCKS):.1f} us")
    more = counts[_MANY] - counts[_FEW]
    parameter_s, bucket_s = (one[_MANY] - one[_FEW]) / more, (each[_MANY] - one[_MANY]) / (counts[_MANY] - 1)
    hooks = {
        "ddp step": [one[_FEW] - counts[_FEW] * parameter_s - bucket_s, 0.0],
        "ddp parameter": [0.0, parameter_s],
        "ddp bucket": [bucket_s, 0.0],
    }
    for name, form in {"foreach": {"foreach": True}, "fused": {"fused": True}, "for": {"foreach": False}}.items():
        updates_s = [own_s for _, own_s in train(sharded(_FEW), model(_FEW), sharded(_MANY), model(_MANY), **form)]
        few_s, many_s = updates_s[0] - updates_s[1], updates_s[2] - updates_s[3]
        hooks[f"dtensor update {name}"] = [0.0, (many_s - few_s) / more]
    return hooks | measured_hooks()


def measured_hooks() -> dict[str, list[float]]:
    """The hooks of FSDP2. What a step takes beyond them and the plain one, such as their nodes in autograd, counts for forward."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    for method, name in _HOOKS.items():
        owner = FSDPParamGroup if method == "post_backward" else FSDPState
        setattr(owner, method, timed(getattr(owner, method), name))
    seconds: dict[int, dict[tuple[str, bool], float]] = {}
    rest = {}
    for layers in (_FEW, _MANY):
        _STEP.clear()
        (step_s, _), (plain_s, _) = train(sharded(layers), model(layers))
        seconds[layers] = {key: low([step[key] for step in _STEP]) for key in _STEP[-1]}
        rest[layers] = step_s - plain_s - sum(seconds[layers].values())
    own = {
        name: line(*(seconds[layers][name, True] / _BLOCKS for layers in (_FEW, _MANY))) for name in _HOOKS.values() if name != "fsdp end"
    }
    of_model = sum(seconds[_FEW].get((name, False), 0.0) for name in _HOOKS.values())
    end_s = sum(seconds[_FEW].get(("fsdp end", has), 0.0) for has in (True, False))
    print("beyond the hooks, of each block:", {layers: f"{rest_s / _BLOCKS * 1e6:.0f} us" for layers, rest_s in rest.items()})
    own["fsdp pre-forward"][0] += max(0.0, rest[_FEW] / _BLOCKS)
    return own | {"fsdp forward": [of_model, 0.0], "fsdp end": [end_s, 0.0]}


def run(rank: int, place: str) -> None:
    """Measure in one of two processes; the first writes what it found to `place`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=2)
    with open(os.devnull, "w") as nothing, redirect_stdout(sys.stdout if rank == 0 else nothing):
        found = measure()
    if rank == 0:
        (Path(place) / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Print the figures, and write them if asked."""
    with tempfile.TemporaryDirectory() as place:
        multiprocessing.spawn(run, (place,), nprocs=2)
        found = json.loads((Path(place) / "found.json").read_text())
    hooks = {name: [float(f"{seconds:.3g}") for seconds in found[name]] for name in sorted(found)}
    for name, (call_s, parameter_s) in hooks.items():
        print(f"{name:24}{1e6 * call_s:8.0f} us{1e6 * parameter_s:8.1f} us a parameter")
    if "--write" in sys.argv:
        RECORD.write_text("{\n" + ",\n".join(f"  {json.dumps(name)}: {seconds}" for name, seconds in hooks.items()) + "\n}\n")


if __name__ == "__main__":
    main()
