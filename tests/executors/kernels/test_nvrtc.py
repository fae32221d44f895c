"""How NVRTC is found: in pip's wheels by the pathfinder, otherwise by the loader, and with a message that names what to install."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from executors.kernels import nvrtc
from tests.support.refusals import refuses
from traces.errors import Code


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
