"""The figures of the README are those that its commands print, and those of the documents that they were measured with."""

import re
import shlex
import subprocess
import sys

import pytest

from tests import readme
from tests.support.shared_data import shared_folder

TRACE = "kineto", "v100_resnet50_bs32_1gpu_oldschema.json.gz"


def plain(text: str) -> str:
    """A text without rules and extra blanks, however its lines are broken."""
    return " ".join(re.sub(r"[─━]", " ", text).split())


@pytest.mark.parametrize("piece", readme.pieces(), ids=lambda piece: piece.name)
def test_figures_are_those_of_the_committed_documents(piece):
    written = piece.written(readme.README.read_text())
    assert plain(written) == plain(piece.text), "python -m tests.readme writes the README's figures again"


def shown() -> list[tuple[str, str]]:
    """(command, what the README shows of its answer) for every command of a console block that has an answer."""
    blocks = re.findall(r"^```console\n(.*?)^```", readme.README.read_text(), re.MULTILINE | re.DOTALL)
    answers = [part for block in blocks if block.startswith("$ ") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    pairs = (part.partition("\n") for part in answers)
    return [(command.partition("  #")[0].strip(), answer) for command, _, answer in pairs if answer.strip()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the README's commands run: it has the trace that they speak of."""
    shared = shared_folder(TRACE[0])
    if shared is None:
        pytest.skip("no shared traces")
    place = tmp_path_factory.mktemp("readme")
    (place / "trace.json.gz").symlink_to(shared / TRACE[1])
    return place


@pytest.mark.thorough
def test_commands_print_what_the_readme_shows(folder, monkeypatch):
    """In their order: one command writes the profile that the next one reads. A line in brackets stands for what is left out."""
    monkeypatch.setenv("COLUMNS", "80")
    assert len(shown()) == 3
    for command, answer in shown():
        arguments = [sys.executable, "-m", "ui.cli", *shlex.split(command)[1:]]
        ran = subprocess.run(arguments, cwd=folder, env=None, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        for part in re.split(r"^\[.*\]$", answer, flags=re.MULTILINE):
            assert plain(part) in plain(ran.stdout), command
