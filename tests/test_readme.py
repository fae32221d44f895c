"""Commands of the pages print what the pages show, and the README's figures are those of the documents that they were measured with."""

import re
import shlex

import pytest

from simulator.strategies import registry as strategies
from tests.support.places import ROOT
from tests.support.shared_data import shared_folder
from tools import readme

TRACE = "kineto", "v100_resnet50_bs32_1gpu_oldschema.json.gz"


def plain(text: str) -> str:
    """A text without rules and extra blanks, however its lines are broken."""
    return " ".join(re.sub(r"[─━]", " ", text).split())


@pytest.mark.parametrize("piece", readme.pieces(), ids=lambda piece: piece.name)
def test_figures_are_those_of_the_committed_documents(piece):
    written = piece.written(readme.README.read_text())
    assert plain(written) == plain(piece.text), "python -m tools.readme writes the README's figures again"


def test_every_strategy_has_a_row():
    rows = re.search(r"^\| strategy \| what it does \|\n(?:\|.*\n)+", readme.README.read_text(), re.MULTILINE)
    assert rows
    assert set(re.findall(r"`([\w-]+)`", " ".join(row.split("|")[1] for row in rows[0].splitlines()))) == set(strategies.names())


def test_the_claims_that_hold_are_those_of_the_table_of_papers():
    counts = re.findall(r"^\| \[\w+\]\(#\w+\) \| (\d+) \| (\d+) \|", (ROOT / "docs" / "papers.md").read_text(), re.MULTILINE)
    claims, hold = (sum(map(int, column)) for column in zip(*counts, strict=True))
    assert f"{hold} of their {claims} claims hold" in plain(readme.README.read_text())


def shown(page: str) -> list[tuple[str, int, str]]:
    """(command, exit status, what the page shows of its answer) for every command after a prompt."""
    blocks = re.findall(r"^```console\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    answers = [part for block in blocks if block.startswith("$ ") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    answers = [answer.replace("\\\n", "") for answer in answers]  # a command of two lines
    parts = ((*line.partition("  #"), answer) for line, _, answer in (part.partition("\n") for part in answers))
    return [(command.strip(), 1 if "exit status 1" in comment else 0, answer) for command, _, comment, answer in parts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the commands run: it has the traces that they speak of."""
    shared = shared_folder(TRACE[0])
    if shared is None:
        pytest.skip("no shared traces")
    place = tmp_path_factory.mktemp("readme")
    (place / "trace.json.gz").symlink_to(shared / TRACE[1])
    (place / "traces" / "data").mkdir(parents=True)
    (place / "traces" / "data" / "examples").symlink_to(ROOT / "traces" / "data" / "examples")
    return place


@pytest.mark.thorough
@pytest.mark.parametrize(("page", "commands"), [("README.md", 4), ("docs/traces.md", 3), ("docs/guides.md", 7), ("ui/api/SKILL.md", 5)])
def test_commands_print_what_a_page_shows(page, commands, folder, schedcast):
    """In their order: one command writes the profile that the next one reads. A line in brackets stands for what is left out."""
    assert len(shown(page)) == commands
    for command, status, answer in shown(page):
        ran = schedcast.call(*shlex.split(command)[1:], cwd=folder, COLUMNS="80")
        assert ran.status == status, ran.err
        for part in re.split(r"^\[.*\]$", answer, flags=re.MULTILINE):
            assert plain(part) in plain(ran.out), command
