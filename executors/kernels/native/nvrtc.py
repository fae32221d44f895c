"""Hand-written CUDA kernels without a compiler on the machine: NVRTC, which PyTorch's CUDA builds bring."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from traces.errors import StepcastError

#: `kernel(grid, block, args, shared_mem=0, stream=None)`: three extents each; tensors become pointers and integers 32 bits wide; without a
#: stream, PyTorch's current one.
Kernel = Callable[..., None]


def compiled(source: str, name: str) -> Kernel:
    """The kernel `name`, declared extern "C" in CUDA C++ that includes no header, for the current GPU.

    Its first launch may load it, which no capture permits. Raises StepcastError where it cannot be compiled.
    """
    try:
        with _no_toolkit_needed():
            # Private, alike in PyTorch 2.11 and 2.13; named here alone.
            return torch.cuda._compile_kernel(source, name)
    except (RuntimeError, AssertionError, OSError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split()[:40]) or type(error).__name__
        raise StepcastError(f"the kernel {name} cannot be compiled ({reason}); install a CUDA build of PyTorch with NVRTC") from error


@contextmanager
def _no_toolkit_needed() -> Iterator[None]:
    """PyTorch asks for the CUDA toolkit's headers before any compilation and fails where there are none; kernels here include nothing."""
    from torch.utils import cpp_extension

    home = cpp_extension.CUDA_HOME
    if home is None:
        cpp_extension.CUDA_HOME = torch.__path__[0]
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = home
