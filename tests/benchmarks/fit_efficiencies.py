"""Where the GPU rows of `simulator/efficiencies.json` come from: `python -m tests.benchmarks.fit_efficiencies [FOLDER]`.

Reads public measurements (in FOLDER, by default where `tests.shared_data` finds them; none is in this repository): per-op latencies of
BERT and GPT-2 on V100 and L4 (NeuSight) and of ResNet-50 on H100 (triosim). Prints, per op class, the efficiency each GPU alone gives
and the error of predicting every GPU with the median of the others.
"""

import ast
import csv
import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from tests.shared_data import shared_folder

TERA, GIGA, MEGA = 1e12, 1e9, 2**20
#: Peak FLOP/s of the precision in use (H100 convolves in TF32), bytes/s and L2 bytes, from the data sheets named in machines.json.
GPUS = {
    "V100": (14.0 * TERA, 900 * GIGA, 6 * MEGA),
    "L4": (30.3 * TERA, 300 * GIGA, 48 * MEGA),
    "H100": (494.7 * TERA, 3350 * GIGA, 50 * MEGA),
}
LINEAR = ("dense", "query", "key", "value", "decoder", "lm_head", "seq_relationship")


class Row(NamedTuple):
    """One measured op."""

    gpu: str
    op_class: str
    flops: float
    bytes: float
    seconds: float


def product(shape) -> int:
    """Elements of a shape."""
    return math.prod(shape)


def neusight(folder: Path):
    """Rows of the transformer ops on V100 and L4, less the floor that ops without a kernel show (about 15 us)."""
    for gpu, name in (("V100", "Tesla_V100-PCIE-32GB"), ("L4", "NVIDIA_L4")):
        for path in sorted((folder / "op_latency" / name).glob("*.csv")):
            with path.open() as file:
                records = [r for r in csv.DictReader(file) if r["output_shape"] and "float32" in r["dtype"]]
            floor = min(float(r["fw_latency"]) for r in records if r["target"] == "view")
            for record in records:
                yield from _neusight_op(gpu, record, floor)


def _neusight_op(gpu: str, record: dict, floor_ms: float):
    inputs, out = ast.literal_eval(record["input_shapes"]), ast.literal_eval(record["output_shape"])
    target = record["target"].lower()
    forward, backward = ((float(record[name]) - floor_ms) / 1e3 for name in ("fw_latency", "bw_latency"))
    size, taken = product(out), 4 * sum(product(shape) for shape in inputs)
    name = target.rsplit(".", 1)[-1].split(" of ")[0]
    if any(name == linear for linear in LINEAR) or "addmm" in target:
        shapes = inputs[1:3] if "addmm" in target else [inputs[0], [inputs[0][-1], out[-1]]]
        k = shapes[0][-1]
        moved = 4 * (product(shapes[0]) + product(shapes[1]) + size)
        yield Row(gpu, "matmul", 2.0 * size * k, moved, forward)
        yield Row(gpu, "matmul", 4.0 * size * k, 2 * moved, backward)
    elif "matmul" in target:
        yield Row(gpu, "matmul", 2.0 * size * inputs[0][-1], taken + 4 * size, forward)
        yield Row(gpu, "matmul", 4.0 * size * inputs[0][-1], 2 * (taken + 4 * size), backward)
    elif "softmax" in target or "layernorm" in target or "ln_" in target:
        yield Row(gpu, "norm", 5.0 * size, 8.0 * size, forward)
        yield Row(gpu, "norm", 8.0 * size, 12.0 * size, backward)
    elif "drop" in target:
        yield Row(gpu, "random", size, 9.0 * size, forward)
    elif "tanh" in target or "gelu" in target or "truediv" in target or name.split()[-1] in ("mul", "where", "pow"):
        yield Row(gpu, "elementwise", size, taken + 4 * size, forward)
    elif "embeddings" in target or "wte" in target or "wpe" in target:
        yield Row(gpu, "gather", size, 8.0 * size, forward)


def triosim(folder: Path):
    """Rows of ResNet-50, batch 128, on H100; a convolution's channels are those of the batch-norm after it."""
    with (folder / "layer_profiles" / "h100_resnet50_bs128.trace.csv").open() as file:
        records = list(csv.DictReader(file))
    sizes = [[int(s) for s in r["InputSize"].strip("[]").split(";") if s.strip()] for r in records]
    outs = [[int(s) for s in r["OutputSize"].strip("[]").split(";") if s.strip()] for r in records]
    channels = {}
    for i, record in enumerate(records):
        name, taken, made = record["OperatorName"], sizes[i], outs[i]
        seconds, moved = float(record["Operator_cudatimenooverlap"]) / 1e6, 4.0 * (sum(sizes[i]) + sum(outs[i]))
        if name == "aten::conv2d":
            norm = next(j for j in range(i, len(records)) if records[j]["OperatorName"] == "aten::batch_norm" and sizes[j][0] == made[0])
            flops = 2.0 * made[0] * taken[1] / sizes[norm][1]
            channels[taken[0], taken[1], made[0]] = flops
            yield Row("H100", "conv", flops, moved, seconds)
        elif "ConvolutionBackward" in name and (taken[1], taken[2], taken[0]) in channels:
            flops = channels[taken[1], taken[2], taken[0]]
            yield Row("H100", "conv", 2 * flops, moved + 4.0 * taken[0], seconds)
        elif "batch_norm" in name or "BatchNormBackward" in name:
            yield Row("H100", "norm", 5.0 * taken[1 if "Backward" in name else 0], moved, seconds)
        elif name in ("aten::relu_", "aten::add_") or "ReluBackward" in name:
            yield Row("H100", "elementwise", max(made), 4.0 * (sum(s for s in taken if s > 1) + max(made)), seconds)
        elif "pool" in name.lower():
            yield Row("H100", "pool", max(made), moved, seconds)


def efficiencies(rows: list[Row], gpu: str) -> tuple[float, float]:
    """The (compute, memory) shares of peak that fit t = max(flops / (peak·e_f), bytes / (bandwidth·e_b)) best, in mean |log|."""
    peak, bandwidth, _ = GPUS[gpu]
    grid = np.geomspace(0.02, 1.0, 60)
    flops, moved, seconds = (np.array([getattr(r, name) for r in rows]) for name in ("flops", "bytes", "seconds"))
    times = np.maximum((flops / peak)[None, None] / grid[:, None, None], (moved / bandwidth)[None, None] / grid[None, :, None])
    wrong = np.abs(np.log(times / seconds)).mean(axis=2)
    i, j = np.unravel_index(np.argmin(wrong), wrong.shape)
    flat_f, flat_b = np.ptp(wrong[:, j]) < 1e-6, np.ptp(wrong[i]) < 1e-6
    return (math.nan if flat_f else float(grid[i])), (math.nan if flat_b else float(grid[j]))


def errors(rows: list[Row], gpu: str, compute: float, memory: float) -> list[float]:
    """log(predicted / measured) of every row with given efficiencies."""
    peak, bandwidth, _ = GPUS[gpu]
    bounds = [
        (r.flops / peak / compute if compute == compute else 0.0, r.bytes / bandwidth / memory if memory == memory else 0.0) for r in rows
    ]
    return [math.log(max(bound) / row.seconds) for bound, row in zip(bounds, rows, strict=True)]


def rms(values: list[float]) -> float:
    """Root mean square."""
    return math.sqrt(sum(v * v for v in values) / len(values))


def main(folder: Path):
    """Print the efficiencies by class and GPU, and leave-one-GPU-out errors."""
    groups: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in (*neusight(folder), *triosim(folder)):
        dense = row.op_class in ("matmul", "conv")
        if row.flops > 1e8 if dense else row.bytes > 2 * GPUS[row.gpu][2]:  # smaller ones wait for the host, or run from the cache
            groups[row.op_class][row.gpu].append(row)
    for op_class, by_gpu in sorted(groups.items()):
        alone = {gpu: efficiencies(rows, gpu) for gpu, rows in by_gpu.items()}
        for gpu, rows in by_gpu.items():
            others = [alone[g] for g in alone if g != gpu]
            line = f"{op_class:12} {gpu:5} {len(rows):4} ops  compute {alone[gpu][0]:.2f}  memory {alone[gpu][1]:.2f}"
            line += f"  own rms log error {rms(errors(rows, gpu, *alone[gpu])):.2f}"
            if others:
                shared = [median([o[k] for o in others if o[k] == o[k]] or [math.nan]) for k in (0, 1)]
                wrong = errors(rows, gpu, *shared) if any(s == s for s in shared) else []
                line += f"  from the other GPUs {rms(wrong):.2f}" if wrong else ""
            print(line)


if __name__ == "__main__":
    latencies = shared_folder("op_latency")
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    elif latencies is not None:
        main(latencies.parent)
    else:
        print("no public measurements beside the repository; name their folder or set STEPCAST_SHARED")
