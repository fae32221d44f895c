"""On a machine that only measures, with torch but without the packages that draw pages, every command works except for its pages."""

import json
import subprocess
import sys

import pytest

from tests.support.cli_process import start
from tests.support.jobs import MLP
from ui.commands.system_python import NEEDED

COMMANDS = ("validate", "run", "search", "predict", "calibrate", "gpu-report")
TINY = ("--model", MLP, "--batch", "4")
#: Finds no module in REFUSED, as if it were not installed.
FINDER = """
import sys
from importlib.machinery import PathFinder
class Rest:
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in REFUSED else PathFinder.find_spec(name, path, target)
    def invalidate_caches(self):
        PathFinder.invalidate_caches()
    def find_distributions(self, context):
        return PathFinder.find_distributions(context)
sys.meta_path[sys.meta_path.index(PathFinder)] = Rest()
"""
NO_PAGES = f"REFUSED = ('plotly', 'streamlit')\n{FINDER}"
#: Refuses every distribution that neither Schedcast's commands nor torch need.
BARE = f"""
import sys
from importlib.metadata import distribution, packages_distributions
from packaging.requirements import Requirement
names, known = [*{NEEDED!r}, "torch"], set()
while names:
    name = names.pop().lower().replace("_", "-")
    if name not in known:
        known.add(name)
        required = map(Requirement, distribution(name).requires or ())
        names += [of.name for of in required if of.marker is None or of.marker.evaluate({{"extra": ""}})]
OWN = {{"schedcast", "setuptools"}}
REFUSED = {{
    module for module, owners in packages_distributions().items()
    if not {{owner.lower().replace("_", "-") for owner in owners}} & (known | OWN) and module not in sys.builtin_module_names
}}
{FINDER}
"""
#: What Python lacks on Windows, for our own modules alone: other packages look at the system's name.
WINDOWS = """
import os, psutil, signal, sys, torch
sys.modules.update(resource=None, fcntl=None)
del os.sched_getaffinity, os.sched_setaffinity, os.fork, os.register_at_fork, signal.SIGALRM
"""


def ran(code: str, folder, *arguments: object) -> tuple[int, str, str]:
    process = start(code, *arguments, folder=folder)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_needs_no_plotly(command, tmp_path):
    status, out, err = ran(NO_PAGES, tmp_path, command, "--help")
    assert (status, err) == (0, "")
    assert "Usage: schedcast" in out


def test_predict_needs_nothing_that_windows_lacks(tmp_path):
    status, out, err = ran(WINDOWS, tmp_path, "predict", *TINY, "--strategy", "backward-fusion", "--machine", "h100", "--json")
    assert status == 0, err
    assert json.loads(out)["step_s"] > 0


def test_a_module_of_python_that_this_system_lacks_is_not_to_be_installed(tmp_path):
    (tmp_path / "report.sqlite").write_bytes(b"SQLite format 3\0")
    status, _, err = ran(f"REFUSED = ('sqlite3',)\n{FINDER}", tmp_path, "replay", tmp_path / "report.sqlite")
    assert (status, err) == (2, f"schedcast: this needs Python's module sqlite3, which {sys.platform} does not have; run it on Linux\n")


def test_validate_without_plotly_keeps_what_it_measured(tmp_path):
    arguments = ("validate", *TINY, "--strategy", "baseline", "--quick", "--out", tmp_path / "out")
    status, out, err = ran(NO_PAGES, tmp_path, *arguments)
    assert status == 2
    assert "baseline" in out
    assert err.splitlines()[-1] == (
        f"schedcast: {tmp_path / 'out'} has the documents but no page, because plotly is not installed: pip install plotly; on a machine"
        f" that has it, this draws the page: schedcast report {tmp_path / 'out'}"
    )
    assert json.loads((tmp_path / "out/validation.json").read_text())["results"][0]["status"] == "ok"
    assert (tmp_path / "out/baseline/measured.json.gz").exists()
    drawn = [sys.executable, "-m", "ui.cli", "report", str(tmp_path / "out"), "-o", str(tmp_path / "page.html")]
    subprocess.run(drawn, check=True, capture_output=True)
    assert (tmp_path / "page.html").exists()


def test_without_timelines_step_times_are_the_same_answer(tmp_path):
    arguments = ("validate", *TINY, "--strategy", "baseline", "--quick", "--no-timelines", "--json", "--out", tmp_path / "out")
    status, out, err = ran("", tmp_path, *arguments)
    assert status == 0, err
    assert json.loads(out)["results"][0]["measured_step_s"] > 0
    assert (tmp_path / "out/index.html").exists()
    assert not (tmp_path / "out/baseline").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("validate", *TINY, "--strategy", "baseline", "--quick", "--no-timelines"), 0),
        (("run", *TINY, "--steps", "3", "--out", "training"), 2),
        (("search", *TINY, "--strategy", "baseline", "--machine", "h100"), 0),
        (("predict", *TINY, "--strategy", "baseline", "--machine", "h100"), 0),
        (("calibrate", *TINY, "--strategy", "baseline"), 0),
        (("gpu-report", "--quick"), 2),
        (("gpu-report",), 2),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_commands_import_only_needed_packages(arguments, expected, tmp_path):
    status, _, err = ran(BARE, tmp_path, *arguments)
    assert status == expected, err
    assert "Traceback" not in err
    if arguments[0] == "run":
        assert "is not installed: pip install" in err.splitlines()[-1]
        assert json.loads((tmp_path / "training/run.json").read_text())["steps"] == 3
    elif expected:
        assert "PyTorch" in err, "there is no GPU, which is found out after everything is imported"
