"""Where the CPU rows of `simulator/efficiencies.json` come from: `python -m tests.benchmarks.cpu_efficiencies`.

Times aten ops on one core and prints, per op class, GFLOP/s (an op that counts no FLOPs counts one per element it writes), GB/s of the
operands, and both as shares of the core's nominal peak and of the bandwidth of a plain copy.
"""

import time
from collections import defaultdict
from statistics import median

import torch

from simulator.this_cpu import nominal_flops_per_core

aten = torch.ops.aten


def seconds(call, repeats: int = 9) -> float:
    """Median time of one call on one core."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


def cases():
    """(class, FLOPs, bytes, call) of ops at sizes found in ResNets and transformers."""
    for batch, channels, size in ((16, 64, 32), (16, 256, 8), (8, 64, 56)):
        x, w = torch.randn(batch, channels, size, size), torch.randn(channels, channels, 3, 3)
        n = x.numel()
        conv = [None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1]
        moved, flops = 8.0 * n + 4 * w.numel(), 2.0 * n * channels * 9
        yield "conv", flops, moved, lambda x=x, w=w, a=conv: aten.convolution(x, w, *a)
        for mask in ([True, False, False], [False, True, False]):
            yield "conv", flops, moved, lambda x=x, w=w, a=conv, m=mask: aten.convolution_backward(x, x, w, *a, m)
        one, mean = torch.ones(channels), torch.zeros(channels)
        yield "norm", n, 8.0 * n, lambda x=x, o=one, m=mean: aten.native_batch_norm(x, o, m, m.clone(), o.clone(), True, 0.1, 1e-5)
        args = (mean, one, True, 1e-5, [True, True, True])
        yield "norm", n, 12.0 * n, lambda x=x, o=one, m=mean, a=args: aten.native_batch_norm_backward(x, x, o, m, o, *a)
        yield "pool", n / 4, 5.0 * n + 2 * n, lambda x=x: aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
        yield "pool", n / 4, 5.0 * n, lambda x=x: aten.avg_pool2d(x, [2, 2], [2, 2])
        yield "elementwise", n, 12.0 * n, lambda x=x: aten.add(x, x)
        yield "elementwise", n, 8.0 * n, lambda x=x: aten.relu(x)
        yield "elementwise", n, 12.0 * n, lambda x=x: aten.threshold_backward(x, x, 0)
        yield "reduction", channels, 4.0 * n, lambda x=x: aten.sum(x, [0, 2, 3])
        yield "random", n, 9.0 * n, lambda x=x: aten.native_dropout(x, 0.5, True)
    for m, k, n in ((512, 512, 512), (64, 2048, 1000), (128, 768, 3072)):
        a, b = torch.randn(m, k), torch.randn(k, n)
        yield "matmul", 2.0 * m * k * n, 4.0 * (m * k + k * n + m * n), lambda a=a, b=b: aten.mm(a, b)
    rows = torch.randn(4096, 256)
    size = rows.numel()
    yield "norm", size, 8.0 * size, lambda: aten._softmax(rows, 1, False)
    yield "norm", size, 8.0 * size, lambda: aten.native_layer_norm(rows, [256], None, None, 1e-5)
    indices = torch.randint(0, 4096, (4096,))
    yield "gather", size, 8.0 * size, lambda: aten.embedding(rows, indices)
    yield "gather", size, 8.0 * size, lambda: aten.embedding_dense_backward(rows, indices, 4096, -1, False)


def main():
    """Print a line per op and the median of each class."""
    torch.set_num_threads(1)
    peak = nominal_flops_per_core()
    source, target = torch.randn(16_000_000), torch.empty(16_000_000)
    bandwidth = 2 * 4 * 16e6 / seconds(lambda: target.copy_(source))
    tiny = torch.randn(64)
    least = seconds(lambda: aten.relu(tiny), 300)
    print(f"nominal peak {peak / 1e9:.0f} GFLOP/s, copy {bandwidth / 1e9:.1f} GB/s, least op {least * 1e6:.1f} us")
    shares = defaultdict(list)
    for op_class, flops, moved, call in cases():
        taken = seconds(call)
        shares[op_class].append((flops / taken / peak, moved / taken / bandwidth))
    for op_class, found in sorted(shares.items()):
        columns = [sorted(column) for column in zip(*found, strict=True)]
        for name, column in zip(("compute", "memory"), columns, strict=True):
            print(f"{op_class:12} {name:8} median {median(column):.4f}  from {column[0]:.4f} to {column[-1]:.4f}  ({len(column)} ops)")


if __name__ == "__main__":
    main()
