"""The error of the simulated GPU."""


class FakeGpuError(RuntimeError):
    """A use of streams, events or graphs that CUDA refuses."""
