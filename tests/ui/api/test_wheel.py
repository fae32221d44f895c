"""The wheel: what its build renames, and an installation outside the repository beside a user's files with the names of our packages."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.places import ROOT
from traces.documents.shipped import example_traces
from ui.api.wheel import PACKAGES, nested

MODEL = """
import torch
import traces
from ui import WIDTH


def make(batch):
    module = torch.nn.Sequential(torch.nn.Linear(8, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 4))
    return module, torch.randn(batch, 8), torch.randint(4, (batch,))
"""
SCRIPT = """
import traces, schedcast, sys
print(schedcast.predict("lenet5", 8, on="h100").fits, traces.MINE, [name for name in ("simulator", "calibrate") if name in sys.modules])
"""


def test_only_imports_of_our_packages_are_renamed():
    source = (
        "import os, re\nimport traces\nif os:  # in simulator.plan\n    from ui.api import facade  # as here\nimport simulator.plan as p\n"
    )
    assert nested(source) == (
        "import os, re\nfrom schedcast.packages import traces\nif os:  # in simulator.plan\n"
        "    from schedcast.packages.ui.api import facade  # as here\nimport schedcast.packages.simulator.plan as p\n"
    )


@pytest.mark.parametrize("source", ["import traces.files\n", "import os, traces\n", "from  ui import cli\n"])
def test_an_import_that_cannot_be_renamed_ends_the_build(source):
    with pytest.raises(ValueError, match=r"cannot be renamed|single blanks"):
        nested(source, "module.py")


def test_no_string_names_one_of_our_modules():
    """Such a string would name nothing in the wheel; `__package__` names the same module in both places."""
    name = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+")
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and name.fullmatch(node.value)
        if path.name not in ("system_python.py", "wheel.py")  # for a checkout alone
    ]
    # Two compare their own package with its name in the repository, and one cuts it off.
    assert [place.partition(":")[0] for place in named] == ["simulator/model/find.py", "calibrate/cpu/plain_process.py"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The `bin` of an environment with the wheel, and with the other packages of this one."""
    place = tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:  # a copy: a build writes beside its sources
        shutil.copytree(ROOT / name, place / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / "source")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", place, place / "source"], check=True, capture_output=True)
    venv.create(place / "venv", with_pip=False)
    (wheel,) = place.glob("*.whl")
    subprocess.run([*pip, "--python", place / "venv", "install", "--no-deps", wheel], check=True)
    (site,) = (place / "venv").rglob("site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))  # whose own .pth files, and so this checkout, do not count
    return place / "venv/bin"


@pytest.fixture
def run(installed, tmp_path):
    """Runs a program of the environment beside files of a user, and returns what it prints."""
    for package in PACKAGES:
        (tmp_path / f"{package}.py").write_text("MINE, WIDTH = 'mine', 16")
    (tmp_path / "my_model.py").write_text(MODEL)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def ran(program: str, *arguments: object) -> str:
        line = [installed / program, *map(str, arguments)]
        process = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        return process.stdout

    return ran


@pytest.mark.thorough
def test_the_wheel_has_every_file_of_the_packages(installed):
    (packages,) = installed.parent.rglob("schedcast/packages")
    lacking = [
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "schedcast" not in path.parts[len(ROOT.parts) :]
        if not (packages / path.relative_to(ROOT)).exists()
    ]
    assert lacking == []


@pytest.mark.thorough
def test_a_script_imports_its_own_traces_beside_schedcast(run):
    assert run("python", "-c", SCRIPT).splitlines() == ["True mine []"]


@pytest.mark.thorough
def test_commands_run_beside_files_with_the_names_of_our_packages(run):
    assert "Usage: schedcast" in run("schedcast", "--help")
    assert json.loads(run("python", "-m", "schedcast", "replay", example_traces()[0], "--json"))["gpu_period_measured_s"] > 0
    validated = run("schedcast", "validate", "--model", "my_model.py:make", "--batch", 4, "--strategy", "baseline", "--quick", "--json")
    assert {row["status"] for row in json.loads(validated)["results"]} == {"ok"}
    searched = run(
        "schedcast", "search", "--model", "my_model.py:make", "--batch", 4, "--machine", "2xgpu-pcie", "--processes", 2, "--json"
    )
    assert json.loads(searched)["candidates"] > 9


@pytest.mark.thorough
def test_modules_that_processes_start_are_there(run):
    code = """
from importlib.util import find_spec
from schedcast.packages.calibrate.preflight import registry, runner
from schedcast.packages.ui.service.progress import COMMAND_LINE
from schedcast.packages.ui.app.navigation import PAGES
print(len(registry.probes()) > 9, *(find_spec(name).name for name in (runner._COMMAND[-1], COMMAND_LINE, PAGES)))
"""
    inside = "schedcast.packages"
    assert run("python", "-c", code).split() == [
        "True",
        f"{inside}.calibrate.preflight.child",
        f"{inside}.ui.cli",
        f"{inside}.ui.app.pages",
    ]
