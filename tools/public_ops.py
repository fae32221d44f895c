"""Public measurements of single ops, as rows to fit a roofline to and to score it on. The data are not in this repository.

Sources: NeuSight's op latencies (V100 PCIe, L4), triosim's ResNet-50 layer times and its VGG-13 trace (H100), PyTorch's ResNet-50 trace
(V100), HolisticTraceAnalysis' and param's DLRM traces (A100, V100). FLOPs and bytes are counted as Schedcast counts them for its own plans.
PipeDream's layer profiles are excluded: their repository does not say on which GPU they were taken, and traces without shapes (the V100
CNN, the A100 AlexNet) say too little.
"""

import ast
import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import NamedTuple

from simulator.engine.costs.site import Site
from simulator.plan.bodies.op_class import op_class
from traces.formats.json_stream import items

TERA, GIGA, MIB = 1e12, 1e9, 2**20


def _site(sms: int, peaks: dict[str, float], bandwidth: float, cache: float) -> Site:
    return Site("gpu", sms, {name: peak * TERA for name, peak in peaks.items()}, bandwidth * GIGA, int(cache * MIB))


#: Data sheets: V100 SXM2 (also the DGX Station's) and PCIe, L4, A100 40 GB (the traces' PG509-200 is taken to be one), H100 SXM5.
BOARDS = {
    "V100-SXM2": _site(80, {"fp32": 15.7}, 900, 6),
    "V100-PCIE": _site(80, {"fp32": 14.0}, 900, 6),
    "L4": _site(58, {"fp32": 30.3, "tf32": 60.0}, 300, 48),
    "A100": _site(108, {"fp32": 19.5, "tf32": 156.0}, 1555, 40),
    "H100": _site(132, {"fp32": 66.9, "tf32": 494.7}, 3350, 50),
}
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


class Op(NamedTuple):
    """Ops of one kind and shape on one board: `seconds` is the median of `count` of them, `total_s` their sum.

    `warm`: its operands may lie in the cache, where they fit.
    """

    board: str
    source: str
    name: str
    op_class: str
    precision: str
    flops: float
    bytes: float
    seconds: float
    phase: str = FORWARD
    launches: int = 1
    warm: bool = True
    count: int = 1
    total_s: float = 0.0

    @property
    def gpu(self) -> str:
        """The GPU that is excluded as a whole: boards with the same chip count as one."""
        return self.board.partition("-")[0]


class Measured(NamedTuple):
    """One source: its ops, and the seconds of device time that no op covers."""

    source: str
    board: str
    ops: tuple[Op, ...]
    uncovered_s: float = 0.0
    workload: str = ""


def product(shape: Sequence[int]) -> int:
    """Elements of a shape."""
    return math.prod(shape)


def all_sources(folder: Path) -> list[Measured]:
    """All sources in `folder`."""
    found = []
    latencies = folder / "op_latency"
    for board, name in (("V100-PCIE", "Tesla_V100-PCIE-32GB"), ("L4", "NVIDIA_L4")):
        if (latencies / name).is_dir():
            ops = tuple(op for path in sorted((latencies / name).glob("*.csv")) for op in neusight(board, path))
            found.append(Measured("neusight", board, ops))
    path = folder / "layer_profiles" / "h100_resnet50_bs128.trace.csv"
    if path.is_file():
        found.append(Measured("triosim", "H100", tuple(triosim(path)), 0.0, "ResNet-50, 1 step"))
    for name, source, board, precisions, workload in TRACES:
        path = folder / "kineto" / name
        if path.is_file():
            found.append(Trace(path, source, board, precisions).measured()._replace(workload=workload))
    return found


# ---------------------------------------------------------------------------------------------------------------- NeuSight

_LINEAR = ("dense", "query", "key", "value", "decoder", "lm_head", "seq_relationship")
_PLAIN = frozenset({"add", "mul", "where", "pow", "contiguous", "sub"})
_DIFFERENTIABLE = ("dropout", "attn_dropout", "resid_dropout", "drop ", "pow", "mul", "where", "contiguous", "sub")
#: Ops take at least this long at their board's data-sheet speed: below it the host's share of an event-timed op is not known.
_LEAST_IDEAL_S = 3e-5


def neusight(board: str, path: Path) -> Iterator[Op]:
    """Ops of a transformer layer, minus the time of ops without a kernel (about 15 us).

    The backward of softmax, dropout, `pow`, `mul` and `where` is excluded: its times are those of a form of several kernels.
    """
    with path.open(newline="") as file:
        records = [r for r in csv.DictReader(file) if r["output_shape"] and "float32" in r["dtype"]]
    floor_s = min(float(r["fw_latency"]) for r in records if r["target"] == "view") / 1e3
    site = BOARDS[board]
    for record in records:
        for op in neusight_ops(board, record):
            if op.phase == BACKWARD and (op.op_class == "norm.softmax" or op.name.startswith(_DIFFERENTIABLE)):
                continue
            seconds = op.seconds - floor_s
            if max(op.flops / site.peak_flops["fp32"], op.bytes / site.bandwidth_bytes_per_s) > _LEAST_IDEAL_S and seconds > 0:
                yield op._replace(seconds=seconds, total_s=seconds)


def neusight_ops(board: str, record: dict) -> Iterator[Op]:
    """The ops of one row of a file, with the times of the file."""
    inputs, out = ast.literal_eval(record["input_shapes"]), ast.literal_eval(record["output_shape"])
    target = record["target"].lower()
    forward_s, backward_s, accumulate_s = (float(record[name] or 0) / 1e3 for name in ("fw_latency", "bw_latency", "acc_latency"))
    size, taken = product(out), 4 * sum(product(shape) for shape in inputs)
    name = target.rsplit(".", 1)[-1].split(" of ")[0].split()[-1]

    def op(kind: str, flops: float, moved: float, seconds: float, phase: str, launches: int = 1) -> Op:
        return Op(board, "neusight", f"{name} {phase}", kind, "fp32", flops, moved, seconds, phase, launches)

    if any(name == linear for linear in _LINEAR) or "addmm" in target:
        left, right = inputs[1:3] if "addmm" in target else (inputs[0], [inputs[0][-1], out[-1]])
        moved, flops = 4 * (product(left) + product(right) + size), 2.0 * size * left[-1]
        yield op("matmul", flops, moved, forward_s, FORWARD)
        yield op("matmul", 2 * flops, 2 * moved, backward_s, BACKWARD, 2)
        yield op("elementwise", product(right), 12.0 * product(right), accumulate_s, "accumulate")
    elif "matmul" in target:
        flops, moved = 2.0 * size * inputs[0][-1], taken + 4 * size
        yield op("matmul", flops, moved, forward_s, FORWARD)
        yield op("matmul", 2 * flops, 2 * moved, backward_s, BACKWARD, 2)
    elif "softmax" in target:
        yield op("norm.softmax", 5.0 * size, 8.0 * size, forward_s, FORWARD)
        yield op("norm.softmax", 8.0 * size, 12.0 * size, backward_s, BACKWARD)
    elif "layernorm" in target or "ln_" in target or "layer_norm" in target:
        yield op("norm.layer", 5.0 * size, 8.0 * size, forward_s, FORWARD)
        yield op("norm.layer", 8.0 * size, 12.0 * size, backward_s, BACKWARD)
    elif "drop" in target:
        yield op("random", size, 9.0 * size, forward_s, FORWARD)
        yield op("elementwise", size, 9.0 * size, backward_s, BACKWARD)
    elif "gelu" in target or "tanh" in target or "truediv" in target:
        yield op("elementwise", size, taken + 4 * size, forward_s, FORWARD)
        yield op("elementwise", size, (8 if "truediv" in target else 12) * size, backward_s, BACKWARD)
    elif name.rstrip(">") in _PLAIN:
        yield op("elementwise", size, taken + 4 * size, forward_s, FORWARD)
        if name.rstrip(">") != "add":
            yield op("elementwise", size, 12.0 * size, backward_s, BACKWARD)
    elif "embeddings" in target or "wte" in target or "wpe" in target:
        yield op("gather", size, 8.0 * size, forward_s, FORWARD)


# ---------------------------------------------------------------------------------------------------------------- triosim's table

#: Tensors of a parameter's size that each of Adam's foreach operations reads and writes.
_FOREACH = {
    "_foreach_lerp_": 3, "_foreach_mul_": 2, "_foreach_addcmul_": 3, "_foreach_sqrt": 2, "_foreach_div_": 2, "_foreach_add_": 2,
    "_foreach_addcdiv_": 4,
}  # fmt: skip
#: PyTorch hands at most about this many tensors to one multi-tensor kernel (of the depth that Adam's operations have).
_TENSORS_PER_LAUNCH = 48


def triosim(path: Path) -> Iterator[Op]:
    """ResNet-50, batch 128, on H100. The channels of a convolution are those of the batch-norm after it."""
    with path.open(newline="") as file:
        records = list(csv.DictReader(file))
    sizes = [[int(s) for s in r["InputSize"].strip("[]").split(";") if s.strip()] for r in records]
    outs = [[int(s) for s in r["OutputSize"].strip("[]").split(";") if s.strip()] for r in records]
    lerp = next(i for i, r in enumerate(records) if "lerp" in r["OperatorName"])
    parameters = sum(sizes[lerp][: len(sizes[lerp]) // 2])
    tensors = len(sizes[lerp]) // 2
    channels: dict[tuple[int, ...], float] = {}
    for i, record in enumerate(records):
        name, taken, made = record["OperatorName"].rpartition(": ")[2].removeprefix("aten::"), sizes[i], outs[i]
        seconds, moved = float(record["Operator_cudatimenooverlap"]) / 1e6, 4.0 * (sum(sizes[i]) + sum(outs[i]))
        phase = {"forward": FORWARD, "backward": BACKWARD}.get(record["stage"], UPDATE)

        def op(kind: str, flops: float, moved: float, precision: str = "fp32", **more) -> Op:
            return Op("H100", "triosim", name, kind, precision, flops, moved, seconds, phase, total_s=seconds, **more)  # noqa: B023

        if seconds <= 0:
            continue
        if name == "conv2d":
            norm = next(j for j in range(i, len(records)) if records[j]["OperatorName"] == "aten::batch_norm" and sizes[j][0] == made[0])
            flops = 2.0 * made[0] * taken[1] / sizes[norm][1]
            channels[taken[0], taken[1], made[0]] = flops
            yield op("conv", flops, moved, "tf32")
        elif name == "ConvolutionBackward0" and (taken[1], taken[2], taken[0]) in channels:
            yield op("conv", 2 * channels[taken[1], taken[2], taken[0]], moved, "tf32", launches=2)
        elif "batch_norm" in name or "BatchNormBackward" in name:
            yield op("norm", 5.0 * taken["Backward" in name], moved)
        elif name == "add_" and taken[0] == 1:
            yield op("elementwise", 1.0, 24.0)  # the counter of batches
        elif name in ("relu_", "add_") or "ReluBackward" in name:
            yield op("elementwise", max(made), 4.0 * (sum(s for s in taken if s > 1) + max(made)))
        elif name == "max_pool2d":
            yield op("pool", made[0], 4.0 * taken[0] + 12.0 * made[0])
        elif name == "MaxPool2DWithIndicesBackward0":
            small, large = min(s for s in taken if s > 1), max((*taken, *made))
            yield op("pool.backward", large, 12.0 * small + 8.0 * large)
        elif name == "adaptive_avg_pool2d":
            yield op("reduction", taken[0], moved)
        elif name in _FOREACH:
            launches = math.ceil(tensors / _TENSORS_PER_LAUNCH)
            yield op("update", parameters, 4.0 * _FOREACH[name] * parameters, launches=launches, warm=False)


# ---------------------------------------------------------------------------------------------------------------- traces with shapes

#: (file, name, board, precision by dense class)
TRACES = (
    ("v100_resnet50_bs32_1gpu_oldschema.json.gz", "pytorch", "V100-SXM2", {"matmul": "fp32", "conv": "fp32"}, "ResNet-50, 6 steps"),
    ("v100_dlrm_rank0of8.json.gz", "param", "V100-SXM2", {"matmul": "fp32", "conv": "fp32"}, "DLRM"),
    ("v100_dlrm_rank1of8.json.gz", "param", "V100-SXM2", {"matmul": "fp32", "conv": "fp32"}, "DLRM"),
    ("a100_dlrm_rank3of8.json.gz", "hta", "A100", {"matmul": "tf32", "conv": "tf32"}, "DLRM, 6 steps, solo kernels"),
    ("h100_vgg13_bs512_adam_one_step.json.gz", "triosim-trace", "H100", {"matmul": "fp32", "conv": "tf32"}, "VGG-13, 1 step"),
)
_ELEMENTWISE = frozenset({
    "add_", "add", "mul_", "mul", "sub", "sub_", "relu", "relu_", "clamp_min", "clamp_min_", "threshold_backward", "tanh",
    "tanh_backward", "sigmoid", "sigmoid_backward", "fill_", "zero_", "copy_", "div", "div_", "clamp", "nan_to_num", "sqrt", "sqrt_",
    "addcmul_", "addcdiv_", "gelu", "gelu_backward", "native_dropout_backward", "neg", "exp_", "log_", "rsub",
})  # fmt: skip
_DENSE = frozenset({"convolution", "convolution_backward", "cudnn_convolution_backward", "addmm", "mm", "bmm"})
_NORMS = {
    "cudnn_batch_norm": ("norm", 8.0), "cudnn_batch_norm_backward": ("norm", 12.0),
    "native_layer_norm": ("norm.layer", 8.0), "native_layer_norm_backward": ("norm.layer", 12.0),
    "_log_softmax": ("norm.softmax", 8.0), "_log_softmax_backward_data": ("norm.softmax", 12.0),
    "_softmax": ("norm.softmax", 8.0), "_softmax_backward_data": ("norm.softmax", 12.0),
}  # fmt: skip
_POOLS = frozenset({"max_pool2d_with_indices", "max_pool2d_with_indices_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"})
_OTHERS = frozenset({"sum", "mean", "native_dropout", "embedding", "index_select"})
_KNOWN = _ELEMENTWISE | _DENSE | _NORMS.keys() | _POOLS | _OTHERS | _FOREACH.keys()
#: Older traces count whole microseconds; kernels shorter than one say nothing.
_TICK_S = 1e-6
_BYTES = {"float": 4, "int": 4, "long int": 8, "long": 8, "double": 8, "unsigned char": 1, "bool": 1, "c10::Half": 2, "signed char": 1}


class _Call(NamedTuple):
    start: float
    end: float
    name: str
    dims: list
    types: list
    concrete: list


class Trace:
    """A profiler trace with input shapes. Kernel times are summed over the outermost op that Schedcast would plan."""

    def __init__(self, path: Path, source: str, board: str, precisions: dict[str, str]):
        self.source, self.board, self.precisions = source, board, precisions
        self._calls: dict[str, list[_Call]] = defaultdict(list)
        self._launches: dict[int, tuple[str, float]] = {}
        self._kernels: list[tuple[float, float, str, int, str]] = []
        for key, event in items(path, "traceEvents", "trace"):
            if key == "traceEvents" and isinstance(event, dict) and event.get("ph") == "X":
                self._take(event)
        for calls in self._calls.values():
            calls.sort(key=lambda call: (call.start, -call.end))

    def _take(self, event: dict) -> None:
        kind, args = str(event.get("cat")).lower(), event.get("args") or {}
        start = float(event["ts"])
        end = start + float(event.get("dur", 0))
        thread = str(event.get("tid"))
        if kind in ("cpu_op", "operator", "user_annotation"):
            self._calls[thread].append(
                _Call(
                    start, end, event["name"], args.get("Input Dims") or args.get("Input dims") or [], args.get("Input type") or [],
                    args.get("Concrete Inputs") or [],
                )
            )  # fmt: skip
        elif kind in ("cuda_runtime", "runtime", "cuda_driver"):
            self._launches.setdefault(args.get("correlation", -1), (thread, start))
        elif kind == "kernel":
            self._kernels.append((start, end, event["name"], args.get("correlation", -1), str(args.get("stream"))))

    def measured(self) -> Measured:
        """All ops with known work whose kernels ran alone, merged by shape."""
        sums: dict[tuple[str, int], list[float]] = {}
        uncovered, adam = 0.0, []
        for (start, end, name, _, _), owner in zip(self._kernels, self._owners(), strict=True):
            if "AdamFunctor" in name:
                adam.append((end - start) / 1e6)
            elif owner is None:
                uncovered += (end - start) / 1e6 if "nccl" not in name else 0.0
            else:
                found = sums.setdefault(owner[:2], [0.0, 0, 0.0])
                found[0] += (end - start) / 1e6
                found[1] += 1
                found[2] = max(found[2], float(owner[2]))
        merged: dict[Op, list[float]] = defaultdict(list)
        for (thread, index), (seconds, _, shared) in sorted(sums.items()):
            op = None if shared else self._op(thread, index)
            if op is None:
                uncovered += seconds
            else:
                merged[op].append(seconds)
        ops = [
            op._replace(seconds=median(times), count=len(times), total_s=sum(times))
            for op, times in merged.items()
            if median(times) >= _TICK_S
        ]
        fused = self._fused_adam(adam)
        return Measured(self.source, self.board, (*ops, *fused), uncovered + (0.0 if fused else sum(adam)))

    def _owners(self) -> list[tuple[str, int, bool] | None]:
        """Per kernel: thread and index of the outermost known op around its launch, and whether another stream was busy meanwhile."""
        by_thread: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for number, (_, _, _, correlation, _) in enumerate(self._kernels):
            if correlation in self._launches:
                thread, when = self._launches[correlation]
                by_thread[thread].append((when, number))
        shared = self._shared()
        owners: list[tuple[str, int, bool] | None] = [None] * len(self._kernels)
        for thread, launches in by_thread.items():
            calls, stack, position = self._calls[thread], [], 0
            for when, number in sorted(launches):
                while position < len(calls) and calls[position].start <= when:
                    stack = [i for i in stack if calls[i].end > calls[position].start]
                    stack.append(position)
                    position += 1
                stack = [i for i in stack if calls[i].end > when]
                known = [i for i in stack if calls[i].name.removeprefix("aten::") in _KNOWN and calls[i].name.startswith("aten::")]
                if known:
                    owners[number] = (thread, known[0], shared[number])
        return owners

    def _shared(self) -> list[bool]:
        order = sorted(range(len(self._kernels)), key=lambda i: self._kernels[i][0])
        shared = [False] * len(self._kernels)
        running: list[int] = []
        for i in order:
            start, stream = self._kernels[i][0], self._kernels[i][4]
            running = [j for j in running if self._kernels[j][1] > start]
            for j in running:
                if self._kernels[j][4] != stream:
                    shared[i] = shared[j] = True
            running.append(i)
        return shared

    def _op(self, thread: str, index: int) -> Op | None:
        call = self._calls[thread][index]
        name, dims = call.name.removeprefix("aten::"), call.dims
        work = self._work(thread, index, name, dims, call)
        if work is None or work[1] <= 0:
            return None
        kind, moved, flops = work
        around = [c.name for c in self._around(thread, index)]
        backward = any("autograd::" in n or n.endswith(("Backward", "Backward0", "Backward1")) for n in around)
        of_parameter = name in ("mul_", "add_") and not backward and tuple(dims[0]) in self._parameter_shapes
        if kind == "elementwise" and (of_parameter or any("Optimizer.step" in n for n in around)):
            kind = "update"
        phase = UPDATE if kind == "update" else BACKWARD if backward or "backward" in name else FORWARD
        launches = 2 if "convolution_backward" in name else 1
        label = f"{name} {json.dumps(dims)}"
        return Op(
            self.board,
            self.source,
            label,
            kind,
            self.precisions.get(kind, "fp32"),
            flops,
            moved,
            0.0,
            phase,
            launches,
            name not in _FOREACH,
        )

    def _around(self, thread: str, index: int) -> list[_Call]:
        call = self._calls[thread][index]
        return [outer for outer in self._calls[thread][max(0, index - 40) : index] if outer.end >= call.end]

    def _work(self, thread: str, index: int, name: str, dims: list, call: _Call) -> tuple[str, float, float] | None:
        """(op class, bytes, FLOPs), or None if they do not follow from the trace."""
        shapes = [d for d in dims if d]
        if name in _FOREACH:
            total = sum(product(c.dims[1]) + c.dims[1][0] for c in self._weights())
            return ("update", 4.0 * _FOREACH[name] * total, float(total)) if total else None
        if not shapes or not all(isinstance(extent, int) for shape in shapes for extent in shape):
            return None
        sizes = [product(d) if d else 0 for d in dims]
        widths = [_BYTES.get(kind, 0 if not d else 4) for kind, d in zip(call.types or ["float"] * len(dims), dims, strict=False)]
        taken = float(sum(size * width for size, width in zip(sizes, widths, strict=False)))
        largest = float(max(sizes))
        if name in _DENSE:
            return self._dense(thread, index, name, dims, call)
        if name in _NORMS:
            return _NORMS[name][0], _NORMS[name][1] * sizes[0], 5.0 * sizes[0]
        if name == "max_pool2d_with_indices":
            out = self._after(thread, index, "max_pool") or sizes[0] // 4
            return "pool", 4.0 * sizes[0] + 12.0 * out, float(out)
        if name == "max_pool2d_with_indices_backward":
            return "pool.backward", 12.0 * sizes[0] + 8.0 * sizes[1], float(sizes[1])
        if name in ("_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"):
            return op_class(name), 8.0 * largest, largest
        if name in ("sum", "mean"):
            return "reduction", taken, largest
        if name == "native_dropout":
            return "random", 9.0 * sizes[0], largest
        if name in ("fill_", "zero_"):
            return "elementwise", taken, largest
        if name == "copy_":
            return "elementwise", taken, largest
        if name in ("embedding", "index_select"):
            return None  # what they gather is not in their input shapes
        kind = op_class(name)
        return kind, taken + 4.0 * (sizes[0] if name.endswith("_") else largest), largest

    def _dense(self, thread: str, index: int, name: str, dims: list, call: _Call) -> tuple[str, float, float] | None:
        if name in ("addmm", "mm", "bmm"):
            left, right = dims[1:3] if name == "addmm" else dims[:2]
            if len(left) < 2 or len(right) < 2:
                return None
            out = product(left[:-1]) * right[-1]
            return "matmul", 4.0 * (product(left) + product(right) + out), 2.0 * out * left[-1]
        if name == "convolution":
            taken, weight = dims[:2]
            made = self._convolved(taken, weight, call.concrete) or self._after(thread, index, "cudnn_batch_norm")
            if made is None:
                return None
            both = 1
        else:
            first, second, weight = dims[:3]
            made, taken = (first, second) if name == "convolution_backward" else (second, first)  # the older op takes its input first
            made, taken = product(made), taken
            inner = [c.name for c in self._calls[thread][index : index + 12] if c.end <= call.end]
            only_weight = name != "convolution_backward" and not any("backward_input" in n for n in inner)
            masked = call.concrete and "[False" in call.concrete[-1]
            both = 1 if only_weight or masked else 2
        moved = 4.0 * both * (product(taken) + product(weight) + made)
        if both == 2:
            moved -= 4.0 * made  # one op: the gradient counts once
        return "conv", moved, 2.0 * both * made * product(weight[1:])

    @staticmethod
    def _convolved(taken: list[int], weight: list[int], concrete: list) -> int | None:
        if len(concrete) < 5:
            return None
        stride, padding = ast.literal_eval(concrete[3]), ast.literal_eval(concrete[4])
        extents = [
            (size + 2 * pad - kernel) // step + 1 for size, kernel, step, pad in zip(taken[2:], weight[2:], stride, padding, strict=True)
        ]
        return taken[0] * weight[0] * product(extents)

    def _after(self, thread: str, index: int, name: str) -> int | None:
        """Elements of the output of the op at `index`: those of the input of the next op with that name."""
        if name == "max_pool":
            return None
        for call in self._calls[thread][index + 1 : index + 40]:
            if call.name == f"aten::{name}":
                return product(call.dims[0])
        return None

    def _weights(self) -> list[_Call]:
        """Forward calls with a weight and a bias, as (input, weight)."""
        found = []
        for calls in self._calls.values():
            found += [c for c in calls if c.name == "aten::conv2d"]
            found += [c._replace(dims=[c.dims[1], c.dims[2][::-1]]) for c in calls if c.name == "aten::addmm"]
        return found

    @cached_property
    def _parameter_shapes(self) -> set[tuple[int, ...]]:
        calls = [c for calls in self._calls.values() for c in calls]
        weights = {tuple(c.dims[1]) for c in calls if c.name in ("aten::convolution", "aten::cudnn_batch_norm")}
        linear = [c for c in calls if c.name == "aten::addmm"]
        return weights | {tuple(c.dims[0]) for c in linear} | {tuple(c.dims[2][::-1]) for c in linear}

    def _fused_adam(self, seconds: list[float]) -> list[Op]:
        """apex' fused Adam has no op: one kernel per group and step over all parameters, whose number the all-reduced buffers tell."""
        buffers = {product(c.dims[0]) for calls in self._calls.values() for c in calls if c.name == "aten::div_" and c.dims and c.dims[0]}
        if not seconds or not buffers:
            return []
        parameters, steps = max(buffers), sum(c.name.startswith("ProfilerStep") for calls in self._calls.values() for c in calls) or 1
        launches = len(seconds) // steps
        op = Op(self.board, self.source, "fused Adam", "update", "fp32", 4.0 * parameters, 28.0 * parameters, sum(seconds) / steps, UPDATE)
        return [op._replace(launches=launches, warm=False, count=steps, total_s=sum(seconds))]
