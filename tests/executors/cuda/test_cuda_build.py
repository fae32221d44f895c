"""The CUDA path under the oldest PyTorch that is supported, in its build for CUDA, which fakes a GPU's tensors without one.

With a CUDA library that feigns a GPU (`tests/support/cuda_stub`), the same build runs plans through its own allocator, streams, events and
graphs. Kernels compute nothing, so these tests judge calls and not values. cuDNN, NCCL and cuSPARSE have no stand-in.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stub_log import Checker

#: The oldest version, as in pyproject.toml, and the bytes that it and NVIDIA's libraries take on the disk, twice while they are unpacked.
OLDEST, SIZE_BYTES = "2.11.0", 10 << 30
HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def ran(folder: Path, *command: str, **variables: str) -> str:
    """What Python prints with the PyTorch in this folder. It keeps what it compiles there."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(folder / "compiled"), **variables}
    done = subprocess.run([sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def oldest(tmp_path_factory):
    """A folder with this PyTorch."""
    folder = tmp_path_factory.mktemp("torch")
    if shutil.disk_usage(folder).free < SIZE_BYTES:
        pytest.skip(f"the disk has less than {SIZE_BYTES >> 30} GiB for the CUDA build of PyTorch {OLDEST}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(folder), f"torch=={OLDEST}"]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"PyTorch {OLDEST} cannot be installed: {installed.stderr.strip().splitlines()[-1]}")
    version, cuda = ran(folder, "-c", "import torch; print(torch.__version__.partition('+')[0], torch.version.cuda)").split()
    if cuda == "None":
        pytest.skip(f"PyTorch {version} has no CUDA build here")
    assert version == OLDEST
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def library(oldest, tmp_path_factory):
    """The CUDA library that feigns a GPU. Loaded first, it takes the place of libcuda, libcudart and libcublas."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc to compile the CUDA library that feigns a GPU")
    built = tmp_path_factory.mktemp("library") / "libcuda.so.1"
    headers = [oldest / "nvidia/cu13/include", oldest / "triton/backends/nvidia/include"]
    if not all(folder.exists() for folder in headers):
        pytest.skip(f"PyTorch {OLDEST} and what it depends on bring no headers of CUDA 13")
    sources = sorted(str(path) for path in (ROOT / "tests/support/cuda_stub").glob("*.c"))
    options = ["-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-Wall", "-Werror", f"-Wl,-soname,{built.name}"]
    subprocess.run([compiler, *options, *(f"-I{folder}" for folder in headers), *sources, "-o", str(built)], check=True)
    return built


@pytest.fixture(scope="module")
def feigned(oldest, library):
    """Runs the cases of `stub_process` on the feigned GPU. Returns each case's error, and what the checker found."""

    def run(cases: str) -> tuple[dict[str, str], Checker]:
        log = library.with_name(f"{cases}.log")
        printed = ran(oldest, "-m", "tests.support.stub_process", cases, LD_PRELOAD=str(library), SCHEDCAST_STUB_LOG=str(log))
        with log.open() as lines:
            return dict(re.findall(r"^(.+?)(?:: (.*))?$", printed, re.MULTILINE)), Checker().read(lines)

    return run


@pytest.mark.thorough
def test_every_task_strategy_and_key_runs_on_fake_tensors(oldest):
    tests = ("-p", "no:cacheprovider", "-rs", "-k", "on_one_device or alone", str(HERE / "test_fake_tensors.py"))
    assert "makes no fake CUDA tensors" not in ran(oldest, "-m", "pytest", *tests), "the file skips itself"


@pytest.mark.thorough
def test_plans_run_on_a_feigned_gpu_without_a_fault(feigned):
    errors, checker = feigned("sound")
    assert len(errors) == 12
    assert not any(errors.values()), errors
    assert not checker.faults
    assert all(checker.counts[word] > 100 for word in ("record", "wait", "graph", "alloc", "release", "launch", "workspace"))


#: By case of `stub_process`, words of the error that it raises (none: it raises no error) and of a fault that the log shows.
FAULTS = {
    "unjoined": ("StreamCaptureUnjoined", r"capture \d+ ends on stream \d+, and stream \d+ is not joined to it"),
    "not waited, eager": ("", r": read after write: aten._log_softmax_backward_data\S+ of \S+ on stream \d+, aten.mm\S+ of 2/mm.dW on"),
    "not waited": ("", r"in capture \d+, read after write: aten._log_softmax_backward_data\S+ of \S+ on stream \d+, aten.mm\S+ of 2/mm.dW"),
    "not recorded": ("", r"stream \d+ waits for an event that was never recorded"),
    "allocates": ("StreamCaptureInvalidated", "0/addmm: cudaMalloc is refused with cudaErrorStreamCaptureUnsupported"),
    "synchronizes": ("StreamCaptureUnsupported", "0/addmm: cudaDeviceSynchronize is refused with cudaErrorStreamCaptureUnsupported"),
    "reads a result": ("StreamCaptureUnsupported", "0/addmm: cudaStreamSynchronize is refused with cudaErrorStreamCaptureUnsupported"),
    "refilled at once": (
        "",
        r"write after read: a launch of graph \d+ on stream \d+, aten.copy_.default of work between tasks by the host",
    ),
    "freed when issued": ("", r"write after read: aten.mm\S+ of 2/mm.dW on stream \d+, an allocation of 0/sum.dB on stream \d+"),
    "input freed": ("", r"graph \d+ is launched after memory was freed that aten.mul.Tensor of work between tasks uses"),
    "repaired": ("", ""),
}


@pytest.mark.thorough
def test_every_fault_is_found_and_named(feigned):
    """The last case runs in the process whose captures failed, and has no fault."""
    errors, checker = feigned("broken")
    assert errors.keys() == FAULTS.keys()
    for case, (error, fault) in FAULTS.items():
        assert (error in errors[case]) if error else not errors[case], f"{case}: {errors[case]}"
        found = [text for text in checker.faults if text.startswith(f"{case}: ")]
        assert any(re.search(fault, text) for text in found) if fault else not found, found
        if error:
            assert not any("after" in text for text in found), "a capture that fails leaves nothing that a later one could race with"
