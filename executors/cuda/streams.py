"""Hands out streams, at all priorities of the driver, such that no two streams in use share a queue.

PyTorch has a pool of 32 streams per priority and hands them out in turn, so the 33rd is the first one again. Its priorities end at −3,
although the driver may have more. With cuda.bindings, streams created by the driver fill both gaps. A stream is in use as long as its
object lives. Then its queue is reused, so that a thousand programs need no more queues than the largest of them.
"""

import weakref

import torch

from executors.cuda import green
from executors.cuda.bindings import DriverApi
from executors.cuda.driver import Partition
from traces.errors import SchedcastError

#: Streams per priority in PyTorch's pool (c10/cuda/CUDAStream.cpp, kStreamsPerPool).
POOLED = 32


class Streams:
    """The streams of one GPU. A process must not have two such objects for one GPU, because they would hand out the same streams."""

    def __init__(self, device: torch.device, api: DriverApi | None):
        self._device, self._api = device, api
        self._used: weakref.WeakValueDictionary[int, torch.cuda.Stream] = weakref.WeakValueDictionary()
        self._spare: dict[tuple[object, int], list[int]] = {}
        least, greatest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]  # a static method
        self._pooled_levels = least - greatest + 1
        self.levels = self._pooled_levels
        if api is not None:
            with torch.cuda.device(device):
                least, greatest = api("cuCtxGetStreamPriorityRange")
            self.levels = least - greatest + 1

    def open(self, priority: int, partition: Partition | None = None) -> torch.cuda.Stream:
        """A stream with a queue of its own. Raises SchedcastError if all of PyTorch's are in use and cuda.bindings is not installed."""
        priority = min(0, max(1 - self.levels, priority))
        if partition is None and priority > -self._pooled_levels:
            for _ in range(POOLED):
                pooled = torch.cuda.Stream(self._device, priority=priority)
                if pooled.cuda_stream not in self._used:
                    self._used[pooled.cuda_stream] = pooled
                    return pooled
        if self._api is None:
            raise SchedcastError(
                f"PyTorch has only {POOLED} distinct streams of priority {priority}; install the package cuda-bindings to get more, "
                "or run a plan with fewer lanes"
            )
        return self._driver_stream(self._api, priority, partition)

    def in_use(self) -> list[torch.cuda.Stream]:
        """The streams that have been opened and are still in use."""
        return list(self._used.values())

    def _driver_stream(self, api: DriverApi, priority: int, partition: Partition | None) -> torch.cuda.Stream:
        """A stream created by the driver, or one that is not in use any more."""
        spare = self._spare.setdefault((partition, priority), [])
        handle = spare.pop() if spare else self._create(api, priority, partition)
        stream = torch.cuda.ExternalStream(handle, device=self._device)
        self._used[handle] = stream
        weakref.finalize(stream, spare.append, handle).atexit = False
        return stream

    def _create(self, api: DriverApi, priority: int, partition: Partition | None) -> int:
        if partition is not None:
            return green.open_stream(api, partition, priority)
        with torch.cuda.device(self._device):  # the driver creates a stream in the current context
            return int(api("cuStreamCreateWithPriority", int(api.names.CUstream_flags.CU_STREAM_NON_BLOCKING), priority))
