"""Synthetic profiler traces: a builder of host calls, device work and annotations, and a small trace. Times are microseconds."""

import gzip
import json
from pathlib import Path


class Trace:
    """Collects events. Correlation ids count up unless a call states its own."""

    def __init__(self, rank: int = 0, world: int = 1):
        self.events: list[dict] = []
        self.info = {"rank": rank, "world_size": world}
        self.gpus: list[dict] = []
        self._correlation = 0

    def call(
        self, name: str, start: float, length: float, *, thread: int = 1, correlation: int | None = None, cat: str = "cuda_runtime"
    ) -> int:
        """A runtime call; returns its correlation id."""
        if correlation is None:
            self._correlation += 1
            correlation = self._correlation
        args = {"correlation": correlation, "cbid": 211}
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": thread, "ts": start, "dur": length, "args": args})
        return correlation

    def work(
        self, name: str, start: float, length: float, correlation: int, *, stream: int = 7, device: int = 0, cat: str = "kernel", **args
    ):
        """Device work."""
        args = {"device": device, "stream": stream, "correlation": correlation, "grid": [2, 3, 1], **args}
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": device, "tid": stream, "ts": start, "dur": length, "args": args})

    def kernel(self, name: str, launch: float, start: float, length: float, *, call: float = 5, thread: int = 1, **work) -> None:
        """A kernel and its launch at `launch`, which takes `call`."""
        self.work(name, start, length, self.call("cudaLaunchKernel", launch, call, thread=thread), **work)

    def op(
        self, name: str, start: float, length: float, shapes: list | None = None, *, thread: int = 1, cat: str = "cpu_op", **args
    ) -> None:
        """A call of an op on the host; `shapes`: those of its arguments, None if they were not recorded."""
        args = args if shapes is None else {"Input Dims": shapes, **args}
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": thread, "ts": start, "dur": length, "args": args})

    def annotate(self, name: str, start: float, length: float, cat: str = "user_annotation") -> None:
        """A range on the host."""
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": 1, "ts": start, "dur": length, "args": {}})

    def sync(self, kind: str, start: float, length: float, correlation: int, **args: int) -> None:
        """CUPTI's record of a synchronizing call."""
        args = {"cuda_sync_kind": kind, "correlation": correlation, "device": 0, **args}
        self.events.append({"ph": "X", "cat": "cuda_sync", "name": kind, "pid": 0, "tid": -1, "ts": start, "dur": length, "args": args})

    def document(self) -> dict:
        """The whole trace."""
        properties = {"deviceProperties": self.gpus} if self.gpus else {}
        return {"schemaVersion": 1, **properties, "distributedInfo": self.info, "traceEvents": self.events, "traceName": "synthetic"}

    def save(self, path: Path) -> Path:
        """Write the trace, compressed with gzip if the name ends in .gz."""
        text = json.dumps(self.document())
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return path
