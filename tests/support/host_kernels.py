"""Compiles CUDA kernels as C++ and runs them on the host: a stand-in for `executors.kernels.nvrtc.compiled` without a GPU."""

import ctypes
import re
import subprocess
from hashlib import blake2b
from pathlib import Path

import torch

_SHIM = Path(__file__).parent / "host_kernels.hpp"
_LAUNCHER = """
extern "C" int launch_{0}(const unsigned* grid, unsigned threads, void** args, int backwards)
{{
    return host::launch([](void** kernel_args) {{ host::call({0}, kernel_args); }}, grid, threads, args, backwards);
}}
"""


class HostCompiler:
    """Compiles each source once, into `folder`. `launches` counts the launches of all its kernels.

    `backwards`: run the threads of a block in reverse order between barriers.
    """

    def __init__(self, folder: Path, compiler: str):
        self.folder, self.compiler, self.launches = folder, compiler, 0
        self.backwards = False

    def compiled(self, source: str, name: str) -> "HostKernel":
        """See `executors.kernels.nvrtc.compiled`."""
        stem = self.folder / blake2b(source.encode(), digest_size=8).hexdigest()
        library = stem.with_suffix(".so")
        if not library.exists():
            names = re.findall(r"\b(schedcast_\w+)\(", source)
            text = f'#include "{_SHIM}"\n{source}\n' + "".join(_LAUNCHER.format(kernel) for kernel in names)
            stem.with_suffix(".cpp").write_text(text)
            options = ["-std=c++17", "-O1", "-Wall", "-Wno-unknown-pragmas", "-Werror", "-shared", "-fPIC"]
            subprocess.run([self.compiler, *options, "-o", library, stem.with_suffix(".cpp")], check=True)
        return HostKernel(self, getattr(ctypes.CDLL(str(library)), f"launch_{name}"))


class HostKernel:
    """A compiled kernel with the call signature of PyTorch's kernels."""

    def __init__(self, compiler: HostCompiler, function):
        self._compiler, self._function = compiler, function

    def __call__(self, grid, block, args, shared_mem=0, stream=None):
        """Run all blocks, after checking the limits of a real launch."""
        assert len(grid) == len(block) == 3
        assert (block[1:], grid[2]) == ((1, 1), 1)
        assert 0 < block[0] <= 1024
        assert 0 < grid[0] < 2**31
        assert 0 < grid[1] < 2**16
        self._compiler.launches += 1
        c_args = [self._argument(arg) for arg in args]
        pointers = (ctypes.c_void_p * len(c_args))(*(ctypes.cast(ctypes.byref(arg), ctypes.c_void_p) for arg in c_args))
        failed = self._function((ctypes.c_uint * 2)(*grid[:2]), block[0], pointers, int(self._compiler.backwards))
        assert not failed, "the threads of a block reached different barriers"

    @staticmethod
    def _argument(arg):
        if isinstance(arg, torch.Tensor):
            assert arg.is_contiguous()
            return ctypes.c_void_p(arg.data_ptr())
        assert type(arg) is int
        assert -(2**31) <= arg < 2**31
        return ctypes.c_int(arg)
