"""Streams of which no two in use are the same queue, at all priorities the driver has.

PyTorch hands its pool of 32 streams per priority out in turn, so the 33rd is the first again; and it ends at priority −3, where the
driver's range may go on. Both gaps are filled with streams of the driver, if cuda.bindings is there. A stream is in use as long as its
object lives; then its queue is handed out anew, so that a thousand programs need no more queues than the largest of them.
"""

import weakref

import torch

from executors.cuda import green
from executors.cuda.bindings import DriverApi
from executors.cuda.driver import Partition
from traces.errors import StepcastError

#: Streams per priority in PyTorch's pool (c10/cuda/CUDAStream.cpp, kStreamsPerPool).
POOLED = 32


class Streams:
    """The streams of one GPU. There must be no second such object for it in the process: the two would hand out the same."""

    def __init__(self, device: torch.device, api: DriverApi | None):
        self._device, self._api = device, api
        self._used: weakref.WeakValueDictionary[int, torch.cuda.Stream] = weakref.WeakValueDictionary()
        self._spare: dict[tuple[object, int], list[int]] = {}
        least, greatest = torch.cuda.Stream.priority_range()
        self._pooled_levels = least - greatest + 1
        self.levels = self._pooled_levels
        if api is not None:
            with torch.cuda.device(device):
                least, greatest = api("cuCtxGetStreamPriorityRange")
            self.levels = least - greatest + 1

    def open(self, priority: int, partition: Partition | None = None) -> torch.cuda.Stream:
        """A stream of its own. Raises StepcastError where PyTorch's are used up and cuda.bindings is missing."""
        priority = min(0, max(1 - self.levels, priority))
        if partition is None and priority > -self._pooled_levels:
            for _ in range(POOLED):
                pooled = torch.cuda.Stream(self._device, priority=priority)
                if pooled.cuda_stream not in self._used:
                    self._used[pooled.cuda_stream] = pooled
                    return pooled
        if self._api is None:
            raise StepcastError(
                f"PyTorch has only {POOLED} distinct streams of priority {priority}; install the package cuda-bindings to get more, "
                "or run a plan with fewer lanes"
            )
        return self._own(self._api, priority, partition)

    def _own(self, api: DriverApi, priority: int, partition: Partition | None) -> torch.cuda.Stream:
        spare = self._spare.setdefault((partition, priority), [])
        handle = spare.pop() if spare else self._created(api, priority, partition)
        stream = torch.cuda.ExternalStream(handle, device=self._device)
        self._used[handle] = stream
        weakref.finalize(stream, spare.append, handle).atexit = False
        return stream

    def _created(self, api: DriverApi, priority: int, partition: Partition | None) -> int:
        if partition is not None:
            return green.open_stream(api, partition, priority)
        with torch.cuda.device(self._device):  # the driver makes a stream in the context that is current
            return int(api("cuStreamCreateWithPriority", int(api.names.CUstream_flags.CU_STREAM_NON_BLOCKING), priority))
