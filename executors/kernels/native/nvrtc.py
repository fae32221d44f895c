"""Compiles CUDA kernels at run time with NVRTC, which PyTorch's CUDA builds contain, so that no compiler needs to be installed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from traces.errors import StepcastError

#: `kernel(grid, block, args, shared_mem=0, stream=None)` launches it. `grid` and `block` have three extents each. Of the arguments, tensors
#: are passed as pointers and integers as 32-bit ints. The default stream is PyTorch's current one.
Kernel = Callable[..., None]


def compiled(source: str, name: str) -> Kernel:
    """The kernel `name` of a CUDA C++ source, compiled for the current GPU. The source declares it extern "C" and includes no header.

    The first launch may load the kernel, which is not allowed during a capture. Raises StepcastError if it cannot be compiled.
    """
    try:
        with _no_toolkit_needed():
            # A private function, the same in PyTorch 2.11 and 2.13. It is named only here.
            return torch.cuda._compile_kernel(source, name)
    except (RuntimeError, AssertionError, OSError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split()[:40]) or type(error).__name__
        raise StepcastError(f"the kernel {name} cannot be compiled ({reason}); install a CUDA build of PyTorch with NVRTC") from error


@contextmanager
def _no_toolkit_needed() -> Iterator[None]:
    """Let PyTorch compile without the CUDA toolkit. PyTorch fails if the toolkit's headers are missing, but our kernels include none."""
    from torch.utils import cpp_extension

    home = cpp_extension.CUDA_HOME
    if home is None:
        cpp_extension.CUDA_HOME = torch.__path__[0]
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = home
