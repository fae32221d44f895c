"""A synthetic trace of torch.profiler: some steps of forward, backward with an all-reduce on a stream of its own, and the optimizer."""

import gzip
import json
from pathlib import Path

MAIN, AUTOGRAD, COMPUTE, NETWORK = 100, 101, 7, 20


class _Events:
    def __init__(self):
        self.events = [{"ph": "M", "name": "process_name", "pid": MAIN, "tid": 0, "args": {"name": "python"}}]
        self.correlation = 0

    def span(self, category: str, name: str, pid: object, tid: object, start_us: float, length_us: float, **args) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start_us, "dur": length_us}
        self.events.append({**event, "args": args})

    def kernel(self, name: str, call_us: float, start_us: float, length_us: float, *, thread: int = MAIN, stream: int = COMPUTE) -> None:
        """A kernel and its launch of 5 us."""
        self.correlation += 1
        self.span("cuda_runtime", "cudaLaunchKernel", MAIN, thread, call_us, 5.0, correlation=self.correlation)
        more = {"device": 0, "stream": stream, "correlation": self.correlation, "grid": [256, 1, 1], "block": [128, 1, 1]}
        self.span("kernel", name, 0, stream, start_us, length_us, **more)


def write_trace(path: Path, steps: int = 4, rank: int = 0) -> Path:
    """Steps of 1000 us, on the GPU: gemm 200, two wgrads of 200 with an all-reduce of 300 behind the first, two updates of 50."""
    made = _Events()
    for number in range(steps):
        at = 1000.0 * number
        made.span("user_annotation", f"ProfilerStep#{number}", MAIN, MAIN, at, 950.0)
        made.kernel("gemm", at + 10, at + 20, 200.0)
        made.kernel("wgrad_1", at + 30, at + 220, 200.0, thread=AUTOGRAD)
        made.kernel("ncclDevKernel_AllReduce_Sum_f32", at + 40, at + 420, 300.0, thread=AUTOGRAD, stream=NETWORK)
        made.kernel("wgrad_2", at + 50, at + 420, 200.0, thread=AUTOGRAD)
        made.span("user_annotation", "Optimizer.step#SGD.step", MAIN, MAIN, at + 60, 40.0)
        made.correlation += 1
        made.span("cuda_runtime", "cudaStreamWaitEvent", MAIN, MAIN, at + 61, 1.0, correlation=made.correlation)
        made.kernel("multi_tensor_apply_kernel<mul>", at + 65, at + 720, 50.0)
        made.kernel("multi_tensor_apply_kernel<add>", at + 75, at + 770, 50.0)
        made.correlation += 1
        made.span("cuda_runtime", "cudaDeviceSynchronize", MAIN, MAIN, at + 85, 740.0, correlation=made.correlation)
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "a GPU", "numSms": 108}],
        "distributedInfo": {"rank": rank, "world_size": 2},
    }
    document["traceEvents"] = made.events
    text = json.dumps(document)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text)
    return path
