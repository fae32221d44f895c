"""Running on the interpreter's own torch: what is missing is named with the command that fetches it, and wheels are taken from a folder."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.places import ROOT
from ui.commands import system_python

needs_pip = pytest.mark.skipif(find_spec("pip") is None, reason="needs pip, which unpacks wheels")
#: Prints the modules that gpu-report loads, after its command and its probes are imported.
LOADED = """
import sys
import ui.cli, ui.commands.preflight, calibrate.preflight.registry, executors.cuda.torch_driver
calibrate.preflight.registry.probes()
print(*{name.partition('.')[0] for name in sys.modules})
"""


def run(root: Path, *arguments: object, **env: str) -> subprocess.CompletedProcess:
    """Run the launcher of the checkout `root` in an interpreter without any packages but those in `root`/site."""
    return subprocess.run(
        [sys.executable, "-S", "-m", "ui.commands.system_python", *map(str, arguments)],
        capture_output=True, text=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root / "site"), **env},
    )  # fmt: skip


@pytest.fixture
def checkout(tmp_path):
    """A checkout with the launcher alone, and an interpreter's packages: nothing but a torch."""
    for path in ("pyproject.toml", "ui/__init__.py", "ui/commands/__init__.py", "ui/commands/system_python.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").touch()
    return tmp_path


def wheel(folder: Path, name: str, version: str, module: str) -> Path:
    """A wheel of one empty module."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_missing_packages_are_named_with_the_command_that_fetches_them(checkout):
    done = run(checkout, "gpu-report", "--quick")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    for name, floor in system_python.floors().items():
        assert f"{name}>={floor}, " in line or f"{name}>={floor};" in line
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"python3 -m pip download --only-binary=:all: --python-version {python} --implementation cp --platform manylinux_2_28_" in line
    assert "-d wheels 'networkx>=3.2' 'numpy>=1.26' " in line
    assert line.endswith(f"; then run: SCHEDCAST_WHEELS=wheels {sys.executable} -m ui.commands.system_python gpu-report --quick")


def test_an_interpreter_without_torch_is_refused(checkout):
    (checkout / "site" / "torch.py").unlink()
    done = run(checkout, "gpu-report")
    assert done.returncode == 2
    assert "has no torch; use the interpreter that has it: /path/to/python3 -m ui.commands.system_python gpu-report (or make" in done.stderr


def test_a_package_that_is_too_old_counts_as_missing(monkeypatch):
    monkeypatch.setattr(system_python, "version", lambda name: "1.9.9" if name == "pydantic" else "99")
    (pydantic,) = system_python.missing()
    assert pydantic.startswith("pydantic>=2.")


@needs_pip
def test_wheels_are_unpacked_beside_the_code_and_not_into_the_interpreter(tmp_path):
    wheel(tmp_path / "wheels", "first_needed", "1.0", "first_needed")
    system_python.install(tmp_path / "wheels", tmp_path / "site")
    assert (tmp_path / "site" / "first_needed.py").exists()


@needs_pip
def test_wheels_of_a_folder_count_as_the_interpreters_own(checkout):
    wheel(checkout / "wheels", "simpy", "4.2", "simpy")
    wheel(checkout / "wheels", "rich", "12.0", "rich")
    (checkout / "site" / "pip").symlink_to(Path(find_spec("pip").origin).parent)
    done = run(checkout, "gpu-report", "--quick", SCHEDCAST_WHEELS="wheels")
    assert done.returncode == 2
    assert "simpy" not in done.stderr
    assert "rich>=13, " in done.stderr
    assert (checkout / "build").is_dir()


@needs_pip
@pytest.mark.parametrize("content", [None, b"no zip"])
def test_wheels_that_cannot_be_unpacked_are_one_line(tmp_path, capsys, content):
    if content:
        (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(content)
    with pytest.raises(SystemExit, match="2"):
        system_python.install(tmp_path, tmp_path / "site")
    (line,) = capsys.readouterr().err.splitlines()
    assert ("cannot be unpacked" if content else f"no wheels in {tmp_path}") in line


def closure(names: list[str]) -> set[str]:
    """The distributions, and all that they require without extras."""
    known: set[str] = set()
    while names:
        name = names.pop().lower().replace("_", "-")
        if name not in known:
            known.add(name)
            required = map(Requirement, distribution(name).requires or ())
            names += [of.name for of in required if of.marker is None or of.marker.evaluate({"extra": ""})]
    return known


@pytest.mark.thorough
def test_both_commands_load_only_packages_that_are_asked_for():
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, env=env).stdout.split()
    by_module = packages_distributions()
    used = {by_module[name][0].lower().replace("_", "-") for name in loaded if name in by_module} - {"schedcast", "setuptools"}
    assert used - closure([*system_python.NEEDED, "torch"]) <= {"cython", "charset-normalizer", "tqdm"}  # only if installed
    assert used >= {"torch", "pydantic", "simpy", "typer"}
