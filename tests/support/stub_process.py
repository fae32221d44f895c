"""Runs plans on the GPU that `cuda_stub` feigns, and writes what PyTorch's ops use, and its blocks of memory, to the library's log.

`python -m tests.support.stub_process sound` runs plans that shall be without a fault, and `broken` plans with one fault each. Each prints a
line for each case: its name and, if it fails, the error.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from unittest.mock import patch

import torch
from torch.cuda import _gpu_trace
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from executors.cuda import graphs, partitions
from executors.cuda.backend import CudaBackend
from executors.cuda.issue import CompiledPlan, Issuer
from executors.cuda.program import Feeds
from executors.cuda.torch_driver import gpu
from executors.tensors import job_tensors
from simulator.machine.machine import split
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from tests.support.jobs import MLP, planned

_library = ctypes.CDLL(os.environ["LD_PRELOAD"])
_library.stub_number.argtypes = [ctypes.c_void_p]


def note(line: str) -> None:
    """Write a line to the library's log."""
    _library.stub_note(line.encode())


def current() -> int:
    """The number of PyTorch's current stream."""
    return _library.stub_number(torch.cuda.current_stream().cuda_stream)


class Watch(TorchDispatchMode):
    """Logs what each op reads and writes."""

    #: Ops that neither read nor write memory.
    IDLE = ("aten::empty", "aten::new_empty", "aten::_unsafe_view", "aten::_reshape_alias", "aten::lift_fresh")

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.is_view or func._schema.name.startswith(self.IDLE):
            return func(*args, **kwargs)
        number, schema = next(self._numbers), func._schema
        on_gpu = any(isinstance(item, torch.Tensor) and item.is_cuda for item in tree_leaves((args, kwargs)))
        on_gpu = on_gpu or "cuda" in str(kwargs.get("device"))
        note(f"op {number} {current() if on_gpu else 'host'} {func}")
        result = func(*args, **kwargs)
        uses = []
        for position, argument in enumerate(schema.arguments):
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            writes = argument.alias_info is not None and argument.alias_info.is_write
            uses += [_use("w" if writes else "r", tensor) for tensor in _tensors(given)]
        results = result if len(schema.returns) > 1 else [result] * len(schema.returns)
        for declared, returned in zip(schema.returns, results, strict=True):
            if declared.alias_info is None:
                uses += [_use("w", tensor) for tensor in _tensors(returned)]
        note(f"uses {number} {' '.join(uses)}")
        return result


def _tensors(value: object) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.numel())


def _use(kind: str, tensor: torch.Tensor) -> str:
    shape, strides = ("x".join(map(str, extents)) for extents in (tensor.shape, tensor.stride()))
    return f"{kind}:{tensor.data_ptr()}:{tensor.element_size()}:{shape}:{strides}"


def watch() -> Watch:
    """Log tasks and blocks of memory from now on. Returns what logs ops while it is entered."""
    torch._C._activate_gpu_trace()
    _gpu_trace.register_callback_for_memory_allocation(lambda address: note(f"alloc {address} {current()}"))
    _gpu_trace.register_callback_for_memory_deallocation(lambda address: note(f"release {address}"))
    compile_plan, wait_event = CompiledPlan.__init__, torch.cuda.Stream.wait_event

    def compiled(self, plan, *others):
        compile_plan(self, plan, *others)
        self.run = [_named(task.name, run) for task, run in zip(self.tasks, self.run, strict=True)]

    def waits(stream, event):
        if not event.cuda_event:  # PyTorch does not tell the library
            note(f"unrecorded {_library.stub_number(stream.cuda_stream)}")
        wait_event(stream, event)

    CompiledPlan.__init__, torch.cuda.Stream.wait_event = compiled, waits
    return Watch()


def _named(name: str, run: Callable) -> Callable:
    def named(instance):
        note(f"task {name}")
        run(instance)
        note("task")

    return named


def run_plan(model: str, strategy: str, mode: str, traced: bool = False, parts: int = 1, **fields) -> None:
    """Some eager periods, two graphs in graph mode, as many periods with data that is fed, the drain, and what a validation does more."""
    job, machine = Job(model, 4, **{"optimizer": "adam", **fields}), load_machine("h100")
    machine = machine if parts == 1 else split(machine, parts)
    plan = planned(strategy, job, machine)
    tensors = job_tensors(job, job.build(), job.graph())
    backend = CudaBackend(machine, gpu(), mode, job.precision)
    program = backend.load(plan, tensors, job.seed)
    steps = 3 + 2 * backend.unit + 1
    program.run(steps)
    fed = {name: tensor for name, tensor in tensors.items() if name.startswith(("input:", "target:"))}
    program.run(steps, [fed] * steps)
    program.sync()
    if traced:
        program.trace()
        del program
        backend.peak_bytes(plan, tensors)


def use_streams_again() -> None:
    """More streams than PyTorch has, of its least priority and of one that it lacks, opened and dropped again."""
    gc.collect()
    rounds = []
    for _ in range(3):
        streams = [gpu().stream(priority) for priority in (0, -5) for _ in range(40)]
        gpu().synchronize()
        rounds.append({stream.cuda_stream for stream in streams})
        del streams
    assert [len(handles) for handles in rounds] == [80, 80, 80]
    assert rounds[0] == rounds[1] == rounds[2]
    gpu().synchronize()


NETWORKS = "tests/support/models.py"
SOUND = {
    "streams": use_streams_again,
    "baseline": lambda: run_plan(MLP, "baseline", "eager", traced=True),
    "forward-fusion": lambda: run_plan(MLP, "forward-fusion", "graph", traced=True),
    "backward-fusion": lambda: run_plan("lenet5", "backward-fusion:update_stream=on", "graph"),
    "backward-fusion, eager": lambda: run_plan(MLP, "backward-fusion:update_stream=on", "eager", optimizer="momentum"),
    "turbodl": lambda: run_plan(f"{NETWORKS}:densenet", "turbodl:priorities=on", "graph"),
    "turbodl, eager": lambda: run_plan("lenet5", "turbodl:priorities=on", "eager"),
    "attention": lambda: run_plan(f"{NETWORKS}:gpt2", "turbodl", "graph", precision="bf16"),
    "pipeline": lambda: run_plan(MLP, "1f1b", "graph", parts=2, accumulate=2),
    "pipeline, eager": lambda: run_plan(MLP, "gpipe", "eager", parts=2, accumulate=2),
    "fetches": lambda: run_plan(MLP, "data-parallel", "graph", parts=2),
    "callback": lambda: run_plan(MLP, "turbodl:update=callback", "graph"),
}


def _in_a_task(do: Callable[[], object]) -> AbstractContextManager:
    """Within the context, every task also calls `do`."""
    return patch(f"{__name__}._named", lambda name, run: lambda instance: (note(f"task {name}"), run(instance), do()))


def _freed_when_issued(compiled: CompiledPlan, instances, period: int, index: int) -> None:
    """Drop what no later task of the plan reads, as if there were one lane."""
    read_later = {o.value for task in compiled.tasks[index + 1 :] for o in task.inputs}
    for operand in compiled.tasks[index].reads:
        if operand.value not in read_later and compiled.plan.values[operand.value].kind in ("activation", "gradient"):
            instances[period - compiled.tasks[index].lag].slots[compiled.binding.slot[operand.value]] = None


def _not_recorded(issuer: Issuer, index: int, position: int, stream) -> None:
    issuer._events[index][position] = gpu().event()


def _refilled_at_once(feeds: Feeds, targets, sources, wait, on_gpus, refill=Feeds.refill) -> None:
    refill(feeds, targets, sources, lambda: None, on_gpus)


def _launched_after_its_input_is_freed() -> None:
    driver = gpu()
    stream, tensor = driver.stream(), torch.ones(1 << 20, device="cuda")
    driver.synchronize()
    with driver.capture(stream) as graph:
        doubled = tensor * 2
    del tensor
    driver.use(stream)
    graph.replay()
    del doubled


def _broken(fault: AbstractContextManager, mode: str, strategy: str = "turbodl", parts: int = 1) -> Callable[[], None]:
    def run() -> None:
        with fault:
            run_plan(MLP, strategy, mode, parts=parts)

    return run


BROKEN = {
    "unjoined": _broken(patch.object(graphs, "join", lambda *_: None), "graph"),
    "not waited, eager": _broken(patch.object(Issuer, "_wait", lambda *_: None), "eager"),
    "not waited": _broken(patch.object(Issuer, "_wait", lambda *_: None), "graph"),
    "not recorded": _broken(patch.object(Issuer, "_record", _not_recorded), "eager"),
    "allocates": _broken(_in_a_task(lambda: _library.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(8))), "graph"),
    "synchronizes": _broken(_in_a_task(torch.cuda.synchronize), "graph"),
    "reads a result": _broken(_in_a_task(lambda: torch.ones(2, device="cuda").sum().item()), "graph"),
    "refilled at once": _broken(patch.object(Feeds, "refill", _refilled_at_once), "graph", "data-parallel", 2),
    "freed when issued": _broken(patch.object(CompiledPlan, "drop", _freed_when_issued), "eager"),
    "input freed": _launched_after_its_input_is_freed,
    "repaired": _broken(nullcontext(), "graph"),
}


def main(cases: str) -> None:
    torch.backends.cudnn.enabled = False  # the library has no cuDNN: PyTorch's own kernels take its place
    torch.backends.cuda.enable_cudnn_sdp(False)
    # What kernels on partitions compute would be looked at, and kernels compute nothing.
    no_sms = patch.object(partitions, "_marked", lambda _: frozenset())
    no_refusal = patch.object(partitions, "one_graph_refusal", lambda *_: "")
    with watch(), no_sms, no_refusal:
        for name, run in {"sound": SOUND, "broken": BROKEN}[cases].items():
            note(f"case {name}")
            try:
                run()
                print(name)
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
