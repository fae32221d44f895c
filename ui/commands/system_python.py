"""Runs the command line on the interpreter's own packages: no virtual environment, no network. Imports nothing but the standard library.

    python3 -m ui.commands.system_python gpu-report --quick --out DIR

Packages that the interpreter lacks come from a folder of wheels, named by the variable SCHEDCAST_WHEELS. They are unpacked next to the
repository's code, not into the interpreter.
"""

import os
import platform
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from importlib import invalidate_caches
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What the commands that measure and predict import besides torch, unless they draw a page: distributions, and the module
#: of those whose module has another name.
NEEDED = ("networkx", "numpy", "nvidia-ml-py", "platformdirs", "psutil", "pydantic", "rich", "scipy", "simpy", "typer")
_MODULES = {"nvidia-ml-py": "pynvml"}
WHEELS = "SCHEDCAST_WHEELS"
#: Wheels for Linux are tagged with the C library that they need; pip compares these tags literally.
_LIBRARIES = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")


def floors() -> dict[str, str]:
    """The lowest version of every needed package that works, by name, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = dict(text.split(">=") for text in (*project["dependencies"], *project["optional-dependencies"]["torch"]))
    return {name: lowest[name] for name in NEEDED}


def missing() -> list[str]:
    """The needed packages that this interpreter lacks, or has in a version that is too old, as pip takes them: `pydantic>=2.10`."""
    return [f"{name}>={floor}" for name, floor in floors().items() if not _usable(name, floor)]


def _usable(name: str, floor: str) -> bool:
    if find_spec(_MODULES.get(name, name)) is None:
        return False
    try:
        return _number(version(name)) >= _number(floor)
    except PackageNotFoundError:  # a module without metadata: nothing says that it is too old
        return True


def _number(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def download_command(requirements: list[str]) -> str:
    """The command that fetches wheels of the packages, and of what they need, for this interpreter, on any machine with a network."""
    tags = " ".join(f"--platform {library}_{platform.machine()}" for library in _LIBRARIES)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    names = " ".join(f"'{requirement}'" for requirement in requirements)
    return f"python3 -m pip download --only-binary=:all: --python-version {python} --implementation cp {tags} -d wheels {names}"


def install(wheels: Path, folder: Path) -> None:
    """Unpack every wheel of `wheels` into `folder`. Exits with one line if that fails."""
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        stop(f"no wheels in {wheels}; expected a folder of .whl files, such as pip download makes")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile"]
    ended = subprocess.run([*pip, "--upgrade", "--target", str(folder), *files], capture_output=True, text=True)
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.strip()] or [f"pip ended with status {ended.returncode}"]
        stop(f"the wheels in {wheels} cannot be unpacked: {lines[-1].removeprefix('ERROR: ')}")


def stop(message: str) -> None:
    """Exit with status 2 and one line."""
    print(f"schedcast: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def prepare() -> None:
    """Make the needed packages importable here and in processes started from here. Exits with one line if one is missing."""
    words = f"-m ui.commands.system_python {shlex.join(sys.argv[1:]) or 'gpu-report --quick'}"
    if find_spec("torch") is None:
        stop(f"{sys.executable} has no torch; use the interpreter that has it: /path/to/python3 {words} (or make SYSTEM=1 PYTHON=...)")
    folder = ROOT / "build" / f"site-{sys.implementation.cache_tag}"
    sys.path.insert(0, str(folder))
    if missing() and os.environ.get(WHEELS):
        install(Path(os.environ[WHEELS]), folder)
        invalidate_caches()
    if lacking := missing():
        again = f"{WHEELS}=wheels {sys.executable} {words}"
        stop(f"{sys.executable} lacks {', '.join(lacking)}; fetch them with: {download_command(lacking)} ; then run: {again}")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")]))


if __name__ == "__main__":
    prepare()
    runpy.run_module("ui.cli", run_name="__main__")
