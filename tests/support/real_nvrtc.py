"""NVRTC itself, which needs no GPU: compiles kernels for a GPU by name, through the function that PyTorch compiles kernels with."""

import ctypes
import sys
from functools import cache
from pathlib import Path

import pytest
from torch.cuda import _utils

from executors.kernels.nvrtc import _no_toolkit_needed, load_builtins

LIBRARY = "libnvrtc.so.*"
#: Folders within `site-packages/nvidia` that pip unpacks NVRTC into: since CUDA 13, and before.
FOLDERS = ("cu[0-9]*/lib", "cuda_nvrtc/lib")


@cache
def library() -> Path | None:
    """NVRTC in a package that pip installed, the newest one first; None if there is none."""
    found = [path for place in sys.path for folder in FOLDERS for path in sorted(Path(place, "nvidia").glob(f"{folder}/{LIBRARY}"))]
    return next((path for path in reversed(found) if "alt" not in path.name), None)


needs_nvrtc = pytest.mark.skipif(library() is None, reason="needs NVRTC in site-packages: pip install 'nvidia-cuda-nvrtc>=13'")


class _Recording:
    """NVRTC, whose log of a program is kept when the program is destroyed."""

    def __init__(self, nvrtc: ctypes.CDLL):
        self._nvrtc, self.log = nvrtc, ""

    def __getattr__(self, name: str):
        return getattr(self._nvrtc, name)

    def nvrtcDestroyProgram(self, program):  # noqa: N802 - the name in NVRTC
        size = ctypes.c_size_t()
        self._nvrtc.nvrtcGetProgramLogSize(program._obj, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._nvrtc.nvrtcGetProgramLog(program._obj, text)
        self.log = text.value.decode()
        return self._nvrtc.nvrtcDestroyProgram(program)


def assembler_log(source: str, name: str, capability: str, monkeypatch) -> str:
    """Compile a source for GPUs of a compute capability such as "90". Returns what the assembler says of every kernel in it.

    `name`: that of one of the kernels. The options are those that PyTorch compiles with on such a GPU.
    """
    nvrtc = _Recording(ctypes.CDLL(str(library())))
    load_builtins(library())
    monkeypatch.setattr(_utils, "_get_gpu_rtc_library", lambda: nvrtc)
    with _no_toolkit_needed():
        _utils._nvrtc_compile(source, name, compute_capability=capability, nvcc_options=["--ptxas-options=-v"])
    return nvrtc.log
