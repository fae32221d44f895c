"""Streams of which no two are the same queue, at all priorities the driver has.

PyTorch hands its pool of 32 streams per priority out in turn, so the 33rd is the first again; and it ends at priority −3, where the
driver's range may go on. Both gaps are filled with streams of the driver, if cuda.bindings is there.
"""

import torch

from traces.errors import StepcastError

from . import green
from .bindings import DriverApi
from .driver import Partition


class Streams:
    """Every stream handed out on one GPU; they live as long as this object."""

    def __init__(self, device: torch.device, api: DriverApi | None):
        self._device, self._api = device, api
        self._handed: dict[int, torch.cuda.Stream] = {}
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
        if partition is not None:
            if self._api is None or partition.handle is None:
                raise StepcastError(f"partition {partition.index} is not one of this GPU's; take it from partitions()")
            return self._keep(self._wrapped(green.open_stream(self._api, partition, priority)))
        if priority > -self._pooled_levels:
            pooled = torch.cuda.Stream(self._device, priority=priority)
            if pooled.cuda_stream not in self._handed:
                return self._keep(pooled)
        if self._api is None:
            count = sum(stream.priority == priority for stream in self._handed.values())
            raise StepcastError(
                f"PyTorch has only {count} distinct streams of priority {priority}; install the package cuda-bindings to get more, "
                "or run a plan with fewer lanes"
            )
        with torch.cuda.device(self._device):  # the driver makes a stream in the context that is current
            flags = int(self._api.names.CUstream_flags.CU_STREAM_NON_BLOCKING)
            return self._keep(self._wrapped(int(self._api("cuStreamCreateWithPriority", flags, priority))))

    def _wrapped(self, handle: int) -> torch.cuda.Stream:
        return torch.cuda.ExternalStream(handle, device=self._device)

    def _keep(self, stream: torch.cuda.Stream) -> torch.cuda.Stream:
        if stream.cuda_stream in self._handed:
            raise StepcastError(f"the driver returned stream {stream.cuda_stream:#x} twice; restart the process")
        self._handed[stream.cuda_stream] = stream
        return stream
