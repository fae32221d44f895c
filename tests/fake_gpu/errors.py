"""What goes wrong as it would in CUDA."""


class FakeGpuError(RuntimeError):
    """A use of streams, events or graphs that CUDA refuses."""
