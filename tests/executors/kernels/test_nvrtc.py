"""How NVRTC is found: in pip's wheels by the pathfinder, otherwise by the loader, and with a message that names what to install. And that
it compiles every kernel for an H100 or an H200, which needs no GPU.
"""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from executors.cuda import partitions
from executors.kernels import nvrtc, scan_kernels
from simulator.plan.bodies.scan import FUSED_WIDTH
from tests.support import real_nvrtc
from tests.support.refusals import refuses
from traces.errors import Code

#: Every source, by the file that it comes from and its constants.
SOURCES = {"partitions.py": partitions._SOURCE}
for width in (5, 20, FUSED_WIDTH):
    for c_type in scan_kernels.C_TYPES.values():
        SOURCES[f"scan_level.cu {width} {c_type}"] = scan_kernels.Shape(width, c_type).text
        SOURCES[f"jacobian_values.cu {width} {c_type}"] = scan_kernels.jacobian_source(width, c_type)


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """The calls of the pathfinder and of PyTorch's compiler, both stand-ins. The compiler needs a library that is already loaded."""
    made: list[str] = []

    def load(name: str) -> SimpleNamespace:
        made.append(f"load {name}")
        return SimpleNamespace(abs_path="/site-packages/nvidia/cu13/lib/libnvrtc.so.13")

    def compile_kernel(source: str, name: str) -> str:
        made.append(f"compile {name}")
        if "load nvrtc" not in made:
            raise OSError("Could not find any NVRTC library")
        return "kernel"

    _install_pathfinder(monkeypatch, load)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", compile_kernel)
    return made


def _install_pathfinder(monkeypatch, load) -> None:
    package, pathfinder = ModuleType("cuda"), ModuleType("cuda.pathfinder")
    pathfinder.load_nvidia_dynamic_lib = load
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)


def test_the_library_in_a_wheel_is_loaded_before_pytorch_asks_for_it(calls):
    assert nvrtc.compiled("source", "k") == "kernel"
    assert calls == ["load nvrtc", "compile k"]


@pytest.mark.parametrize(("cuda", "package"), [("13.0", '"nvidia-cuda-nvrtc==13.*"'), ("12.8", "nvidia-cuda-nvrtc-cu12")])
def test_a_missing_library_is_named_with_the_package_that_has_it(calls, monkeypatch, cuda, package):
    def missing(name: str):
        raise RuntimeError('Failure finding "libnvrtc.so":\n  No such file: libnvrtc.so*')

    _install_pathfinder(monkeypatch, missing)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with refuses(Code.REQUEST) as caught:
        nvrtc.compiled("source", "k")
    assert str(caught.value) == (
        'the kernel k cannot be compiled because NVRTC is missing (Failure finding "libnvrtc.so": No such file: libnvrtc.so*);'
        f" install it: pip install {package}"
    )


def test_without_the_pathfinder_the_loader_may_find_the_library(calls, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with refuses(Code.REQUEST, r"NVRTC is missing \(the package cuda-pathfinder, which finds it, is not installed\)"):
        nvrtc.compiled("source", "k")
    monkeypatch.setattr(torch.cuda, "_compile_kernel", lambda source, name: "kernel")
    assert nvrtc.compiled("source", "k") == "kernel"


@pytest.mark.sampled(5)
@real_nvrtc.needs_nvrtc
@pytest.mark.parametrize("name", SOURCES)
def test_kernels_compile_for_hopper_without_spilling_registers(name, monkeypatch):
    kernels = re.findall(r"\b(schedcast_\w+)\(", SOURCES[name])
    log = real_nvrtc.assembler_log(SOURCES[name], kernels[0], "90", monkeypatch)
    assert sorted(re.findall(r"Compiling entry function '(\w+)' for 'sm_90'", log)) == sorted(kernels)
    spills = [line for line in log.splitlines() if "spill" in line]
    assert len(spills) >= len(kernels)
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in spills), log


def test_every_file_of_kernels_is_compiled_above():
    files = {path.name for path in Path(scan_kernels.__file__).parent.glob("*.cu")}
    assert {name.split()[0] for name in SOURCES} - {"partitions.py"} == files


def test_the_library_of_builtins_is_loaded_from_beside_nvrtc(tmp_path, monkeypatch):
    """A link to NVRTC, as some packages have, leads to the folder that has both."""
    loaded: list[str] = []
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", loaded.append)
    (tmp_path / "lib").mkdir()
    for file in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0"):
        (tmp_path / "lib" / file).touch()
    (tmp_path / "libnvrtc.so").symlink_to(tmp_path / "lib" / "libnvrtc.so.13")
    nvrtc.load_builtins(tmp_path / "libnvrtc.so")
    assert loaded == [str(tmp_path / "lib" / "libnvrtc-builtins.so.13.0")]
