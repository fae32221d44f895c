"""The CUDA path under the oldest PyTorch that is supported, in its build for CUDA, which fakes a GPU's tensors without one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: The oldest version, as in pyproject.toml, and the bytes that it and NVIDIA's libraries take on the disk, twice while they are unpacked.
OLDEST, SIZE_BYTES = "2.11.0", 10 << 30
HERE = Path(__file__).parent


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
    yield folder
    shutil.rmtree(folder)


@pytest.mark.thorough
def test_every_task_strategy_and_key_runs_on_fake_tensors(oldest):
    path = os.pathsep.join([str(oldest), str(HERE.parents[2])])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def ran(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], env=environment, cwd=HERE.parents[2], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    version, cuda = ran("-c", "import torch; print(torch.__version__.partition('+')[0], torch.version.cuda)").split()
    if cuda == "None":
        pytest.skip(f"PyTorch {version} has no CUDA build here")
    assert version == OLDEST
    tests = ("-p", "no:cacheprovider", "-rs", "-k", "on_one_device or alone", str(HERE / "test_fake_tensors.py"))
    assert "makes no fake CUDA tensors" not in ran("-m", "pytest", *tests), "the file skips itself"
