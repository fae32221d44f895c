"""How far the kernels of a recording are from the limits of their GPU: FLOPs and bytes by class, from recorded shapes.

FLOPs are those of matrix products, convolutions and attention, two per multiplication and addition; the bytes of an op are those of its
arguments and of one result as large as the largest of them, each once. Both are the least that the op can do, so that the time of the
roofline, max(FLOPs / peak, bytes / bandwidth), is a bound. Peaks and bandwidth are the data sheet's (`simulator.machine.presets`).

With the calls of modules (`with_stack=True`), the same by module. A backward kernel belongs to the module of the forward op whose gradient
it computes.

Shapes tell no strides: a forward convolution has the result whose gradient a backward one of the same shapes takes; without one, its FLOPs
are not known. Compiled kernels, lists of tensors (foreach) and lookups in tables say nothing of their bytes.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from simulator.engine.utilization import mfu, seconds_at_peak
from simulator.machine.machine import Device, Memory
from simulator.machine.presets import one_gpu
from simulator.plan.bodies.op_class import op_class
from simulator.replay.whatif.matching import class_named
from traces.documents.replay_result import KernelUse, Roofline
from traces.formats.iterations import find
from traces.formats.recording import KERNEL, Operator, Operators, Recording, Shape, Work

#: Bytes of an element, by the profiler's name of the type.
_WIDTH = {
    "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "double": 8, "int": 4, "long": 8, "long int": 8, "bool": 1, "unsigned char": 1,
    "signed char": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
_PRECISION = {"c10::Half": "bf16", "c10::BFloat16": "bf16", "double": "fp64", "float": "fp32"}
#: Kernels that multiply float32 operands on tensor cores.
_TF32 = re.compile("tf32|s1688gemm|s1688cudnn|tensorop_s1688|16816cudnn", re.IGNORECASE)
_CONVOLUTION = re.compile(r"(^|_)(convolution|conv[123]d)(_overrideable)?$")
_CONVOLUTION_BACKWARD = re.compile(r"^(cudnn_|miopen_)?convolution_backward$")
_ATTENTION = re.compile(r"^_scaled_dot_product_\w*attention(_backward)?$")
#: Ops whose arguments are not read as a whole.
_LOOKUP = re.compile("embedding|index|gather|scatter")
_BACKWARD = re.compile(r"Backward\d*$|^autograd::engine::evaluate_function")
_OPTIMIZER = "Optimizer.step#"
#: The row of kernels that no module launched.
OUTSIDE = "outside of modules"
#: Classes with less than this share of the kernels' time are omitted.
LEAST_SHARE = 0.005


class OpWork(NamedTuple):
    """Work of one op, and the precision of its operands."""

    flops: float
    bytes: float
    precision: str


def _elements(shape: Shape) -> int:
    return math.prod(shape)


def _product(left: Shape, right: Shape) -> tuple[float, float]:
    """FLOPs of a matrix product, and the elements of its result."""
    out = _elements(left[:-1]) * right[-1]
    return 2.0 * out * left[-1], float(out)


_PRODUCTS: Mapping[str, Callable[[tuple[Shape, ...]], tuple[float, float]]] = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm"), lambda dims: _product(dims[0], dims[1])),
    **dict.fromkeys(("addmm", "baddbmm"), lambda dims: _product(dims[1], dims[2])),
}


@lru_cache(maxsize=4096)
def _bare(name: str) -> str:
    return name.removeprefix("aten::").rstrip("_") if name.startswith("aten::") else ""


@lru_cache(maxsize=4096)
def _is_dense(name: str) -> bool:
    return name in _PRODUCTS or any(each.search(name) for each in (_CONVOLUTION, _CONVOLUTION_BACKWARD, _ATTENTION))


def _backward_shapes(name: str, dims: tuple[Shape, ...]) -> tuple[Shape, Shape, Shape] | None:
    """Input, weight and gradient of the result of a convolution's backward op."""
    if not _CONVOLUTION_BACKWARD.search(name) or len(dims) < 3 or not all(dims[:3]):
        return None
    return (dims[1], dims[2], dims[0]) if name == "convolution_backward" else (dims[0], dims[2], dims[1])


def op_work(operator: Operator, results: Mapping[tuple[Shape, Shape], Shape]) -> OpWork | None:
    """Return the least work of an op; None if its shapes do not tell. `results`: shapes of a convolution's result, by input and weight."""
    name, dims = _bare(operator.name), operator.shapes
    if not name or not dims or not any(dims) or _LOOKUP.search(name):
        return None
    types = operator.types or ("float",) * len(dims)
    widths = [_WIDTH.get(kind, 4) for kind in types] + [0] * len(dims)
    sizes = [_elements(shape) * width if shape else 0 for shape, width in zip(dims, widths, strict=False)]
    taken, precision = float(sum(sizes)), _PRECISION.get(types[0], types[0])
    backward = _backward_shapes(name, dims)
    if name in _PRODUCTS:
        if len(dims) < 2 or not all(dims[:2]) or (name in ("addmm", "baddbmm") and (len(dims) < 3 or not dims[2])):
            return None
        flops, out = _PRODUCTS[name](dims)
        return OpWork(flops, taken + out * widths[0], precision)
    if backward is not None:
        inputs, weight, gradient = backward
        return OpWork(4.0 * _elements(gradient) * _elements(weight[1:]), taken + _elements(inputs) * widths[0], precision)
    if _CONVOLUTION.search(name):
        out_shape = results.get((dims[0], dims[1])) if len(dims) > 1 else None
        if out_shape is None:
            return None
        return OpWork(2.0 * _elements(out_shape) * _elements(dims[1][1:]), taken + _elements(out_shape) * widths[0], precision)
    if (attention := _ATTENTION.search(name)) is not None:
        products, query = (5, 1) if attention[1] else (2, 0)  # backward computes the scores again
        if len(dims) > query + 1 and len(dims[query]) == len(dims[query + 1]) == 4:
            return OpWork(2.0 * products * _elements(dims[query]) * dims[query + 1][2], taken + sizes[query], precision)
    if name in ("fill", "zero", "copy") or op_class(name) == "reduction":
        return OpWork(0.0, taken, precision)
    return OpWork(0.0, taken + max(sizes), precision)


@dataclass
class _Sums:
    """Sums of one class over the steps that count.

    `known_s`: of its kernels that belong to an op whose work is known. `ops_s`: of the ops whose longest kernel is of this class.
    """

    seconds: float = 0.0
    known_s: float = 0.0
    ops_s: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    compute_s: float = 0.0
    memory_s: float = 0.0
    ideal_s: float = 0.0


def roofline(recording: Recording, period_s: float) -> Roofline:
    """Return the kernels of a rank by class, the longest first, in seconds of a step of `period_s`. Copies and collectives do not count."""
    gpu, operators = _gpu(recording), recording.operators
    product = str(operators.properties.get(recording.works[0].device, {}).get("name", ""))
    has_shapes = any(operator.shapes is not None for operator in operators.all)
    kernels, compute_s = _uses(recording, lambda work: class_named(work.name, operators.launching(work.call)), gpu)
    modules = _uses(recording, _Modules(recording).of, gpu)[0] if operators.modules else ()
    used = mfu(compute_s, period_s) if has_shapes else None
    return Roofline(gpu=product, known_gpu=gpu is not None, shapes=has_shapes, mfu=used, kernels=kernels, modules=modules)


class _Modules:
    """Finds the module of a kernel: around its launch, or around the forward op of the backward op that launched it."""

    def __init__(self, recording: Recording):
        self._calls, self._operators = recording.calls, recording.operators
        #: By autograd's number, the last op of the forward pass with it, which is the one that needs a gradient.
        self._forward = {op.sequence: op for op in self._operators.all if op.sequence >= 0 and not _BACKWARD.search(op.name)}

    def of(self, work: Work) -> str:
        """The class of the module; else the optimizer's annotation, or what the kernel is outside of."""
        if work.call < 0:
            return OUTSIDE
        call, operators = self._calls[work.call], self._operators
        name = operators.module_at(call.thread, call.start_s)
        for index in operators.ancestors(operators.of_call.get(work.call, -1)):
            operator = operators.all[index]
            if not name and operator.name.startswith(_OPTIMIZER):
                return "optimizer"
            if not name and _BACKWARD.search(operator.name) and operator.sequence in self._forward:
                forward = self._forward[operator.sequence]
                name = operators.module_at(forward.thread, forward.start_s)
        return re.sub(r"_\d+$", "", name) or OUTSIDE


def _uses(recording: Recording, name_of: Callable[[Work], str], gpu: tuple[Device, Memory] | None) -> tuple[tuple[KernelUse, ...], float]:
    """Return the kernels by name, the longest first, and the seconds of a step's FLOPs at their peaks."""
    iterations, operators = find(recording), recording.operators
    counted = range(1 if len(iterations.names) > 1 else 0, len(iterations.names))
    sums: dict[str, _Sums] = defaultdict(_Sums)
    works_of: dict[int, list[tuple[float, str, Work]]] = defaultdict(list)
    for index, work in enumerate(recording.works):
        if work.category == KERNEL and iterations.of_work[index] in counted:
            name, op = name_of(work), _op_of(operators, work.call)
            sums[name].seconds += work.duration_s
            if op >= 0:
                works_of[op].append((work.duration_s, name, work))
    results = _results(operators)
    for op, works in works_of.items():
        done = op_work(operators.all[op], results)
        if done is not None:
            for seconds, name, _ in works:
                sums[name].known_s += seconds
            _add(sums[max(works, key=itemgetter(0))[1]], done, [work for _, _, work in works], gpu)
    steps, total_s = max(1, len(counted)), sum(each.seconds for each in sums.values())
    shown = {name: each for name, each in sums.items() if each.seconds and each.seconds >= LEAST_SHARE * total_s}
    rows = [_use(name, each, steps, total_s, gpu is not None) for name, each in shown.items()]
    return tuple(sorted(rows, key=lambda row: -row.seconds)), sum(each.compute_s for each in sums.values()) / steps


def _op_of(operators: Operators, call: int) -> int:
    """The op that a kernel belongs to: the outermost product or convolution around its launch, else the innermost op; -1 if none."""
    innermost = operators.of_call.get(call, -1)
    dense = [index for index in operators.ancestors(innermost) if _is_dense(_bare(operators.all[index].name))]
    return dense[-1] if dense else innermost


def _results(operators: Operators) -> dict[tuple[Shape, Shape], Shape]:
    results = {}
    for operator in operators.all:
        shapes = _backward_shapes(_bare(operator.name), operator.shapes or ())
        if shapes is not None:
            results[shapes[0], shapes[1]] = shapes[2]
    return results


def _gpu(recording: Recording) -> tuple[Device, Memory] | None:
    """The preset of the recorded GPU, and its memory; None if the recording does not name one that is known."""
    properties = recording.operators.properties.get(recording.works[0].device, {})
    name, sms = properties.get("name"), properties.get("numSms", 0)
    machine = one_gpu(name, sms if isinstance(sms, int) else 0) if isinstance(name, str) else None
    if machine is None:
        return None
    device = machine.devices[0]
    return device, machine.memory(device.name)


def _add(sums: _Sums, done: OpWork, works: list[Work], gpu: tuple[Device, Memory] | None) -> None:
    """Add one op whose kernels are `works`."""
    seconds = sum(work.duration_s for work in works)
    sums.ops_s += seconds
    sums.flops += done.flops
    sums.bytes += done.bytes
    if gpu is None:
        return
    device, memory = gpu
    precision = "tf32" if done.precision == "fp32" and any(_TF32.search(work.name) for work in works) else done.precision
    compute_s, memory_s = seconds_at_peak(device, done.flops, precision), done.bytes / memory.bandwidth_bytes_per_s
    sums.compute_s += compute_s
    sums.memory_s += memory_s
    sums.ideal_s += min(seconds, max(compute_s, memory_s))


def _use(name: str, sums: _Sums, steps: int, total_s: float, known_gpu: bool) -> KernelUse:
    known = known_gpu and sums.ops_s > 0
    return KernelUse(
        name=name,
        seconds=sums.seconds / steps,
        share=sums.seconds / total_s if total_s else 0.0,
        known_share=sums.known_s / sums.seconds if sums.seconds else 0.0,
        flops=sums.flops / steps,
        bytes=sums.bytes / steps,
        peak_share=sums.compute_s / sums.ops_s if known else None,
        bandwidth_share=sums.memory_s / sums.ops_s if known else None,
        roofline_share=sums.ideal_s / sums.ops_s if known else None,
    )
