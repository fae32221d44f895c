"""The code of docs/python.md runs as it stands there, in a script and in a notebook, but for what needs objects of other libraries."""

import os
import re
from importlib.util import find_spec

import pytest

from tests.support.places import ROOT


def blocks(page: str = "docs/python.md") -> list[str]:
    code = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    missing = ["transformers.", *(["accelerate"] if find_spec("accelerate") is None else [])]
    return [block for block in code if not any(name in block for name in missing)]


@pytest.mark.thorough
def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks():
        exec(block, names)
    printed = capsys.readouterr().out
    assert printed.count("plain PyTorch") >= 4
    assert "waits" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"step.html", "page.html"}


@pytest.mark.thorough
def test_a_guide_says_what_its_code_prints(capsys):
    (block,) = blocks("docs/guides.md")
    exec(block, {})
    assert capsys.readouterr().out == block.rpartition("  # ")[2]


@pytest.mark.thorough
def test_a_notebook_shows_cards(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'ui/api'}{os.pathsep}{ROOT}")
    cells = [nbformat.v4.new_code_cell(code) for code in (blocks()[0], "p", "p.timeline()")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = ([each for each in cell.outputs if each.output_type == "execute_result"] for cell in notebook.cells[1:])
    (card,), (timeline,) = shown
    assert "plain PyTorch" in card.data["text/html"]
    assert timeline.data["text/html"].startswith("<iframe")
