"""Compiles CUDA kernels at run time with NVRTC, which PyTorch's CUDA builds depend on, so that no compiler needs to be installed."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from traces.errors import SchedcastError

#: `kernel(grid, block, args, shared_mem=0, stream=None)` launches it. `grid` and `block` have three extents each. Of the arguments, tensors
#: are passed as pointers and integers as 32-bit ints. The default stream is PyTorch's current one.
Kernel = Callable[..., None]


def compiled(source: str, name: str) -> Kernel:
    """The kernel `name` of a CUDA C++ source, compiled for the current GPU. The source declares it extern "C" and includes no header.

    The first launch may load the kernel, which is not allowed during a capture. Raises SchedcastError if it cannot be compiled.
    """
    not_found = load_library()
    try:
        with _no_toolkit_needed():
            # A private function. Its first two arguments are the same in PyTorch 2.11 and 2.13. It is named only here.
            return torch.cuda._compile_kernel(source, name)
    except OSError as error:  # PyTorch asks the loader for libnvrtc.so of its CUDA version
        raise SchedcastError(
            f"the kernel {name} cannot be compiled because NVRTC is missing ({not_found or _brief(error)}); install it: pip install"
            f" {_wheel()}"
        ) from error
    except (RuntimeError, AssertionError, AttributeError, ImportError) as error:
        raise SchedcastError(f"the kernel {name} cannot be compiled ({_brief(error)}); install a CUDA build of PyTorch") from error


def load_library() -> str:
    """Load NVRTC from where packages and toolkits put it. Returns an empty string, or the reason why it was not loaded.

    The loader does not search `site-packages/nvidia/cu13/lib`, where pip puts NVRTC. Once it is loaded by its path, PyTorch's own request
    for the name is answered with it. If it is not found, PyTorch's request may still succeed, by the loader's path.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib  # comes with cuda-bindings
    except ImportError:
        return "the package cuda-pathfinder, which finds it, is not installed"
    try:
        load_builtins(Path(load_nvidia_dynamic_lib("nvrtc").abs_path or ""))
    except (RuntimeError, OSError) as error:
        return _brief(error)
    return ""


def load_builtins(library: Path) -> None:
    """Load the second library of NVRTC, which is in the same folder as `library`. NVRTC asks the loader for it by name when it compiles.

    NVRTC in a package does not say where that is, and only newer versions of PyTorch and of the pathfinder load it.
    """
    for builtins in library.resolve().parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))


def _wheel() -> str:
    """The package that contains NVRTC for PyTorch's CUDA version. From CUDA 13 on its name has no version."""
    major = (torch.version.cuda or "13").split(".")[0]
    return f"nvidia-cuda-nvrtc-cu{major}" if int(major) < 13 else f'"nvidia-cuda-nvrtc=={major}.*"'


def _brief(error: Exception) -> str:
    return " ".join(str(error).split()[:40]) or type(error).__name__


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
