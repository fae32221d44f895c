"""The structure of the code: no circle of imports, folders with one sentence each, one import style, one word for one thing."""

import ast
import io
import re
import tokenize
import tomllib
from functools import cache
from pathlib import Path

import grimp
import networkx as nx
import pytest

from tests.support.places import ROOT

PACKAGES = ("traces", "simulator", "executors", "calibrate", "ui")
#: Names that this project used for things that have a standard term: what to say instead.
OLD_NAMES = {
    "micro_batch": "microbatch", "micro_batches": "microbatches", "image_parallel": "data_parallel",
    "Stand": "Testbed", "stand": "testbed", "stands": "testbeds", "visit": "sample", "visits": "samples", "take_over": "record",
    "Circle": "ProcessGroup", "circle": "group", "circles": "groups", "Team": "ControlChannel", "team": "channel",
    "Follower": "RankServer", "Passage": "ChunkTimes", "passage": "chunk", "Contender": "Candidate", "contenders": "candidates",
    "Where": "Placement", "unfamiliar": "first_calls", "side_by_side": "overlap",
    "found": "what the value is",
}  # fmt: skip

#: How many arguments a reader can tell apart by their places, and the calls of each package that have more: of ops of PyTorch, which take
#: all of theirs so, one of a view step with the op's own list, and the engine's innermost loop, where names take a third longer.
MOST_BY_POSITION = 6
BY_POSITION = {"simulator": 4, "executors": 7, "calibrate": 2}


def sources(*folders: str) -> list[Path]:
    """The Python files of `folders` (default: the packages)."""
    return sorted(path for folder in folders or PACKAGES for path in (ROOT / folder).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a file's tree, which several tests go through."""
    return list(ast.walk(tree(path)))


def test_no_file_imports_itself_by_way_of_others():
    imports = grimp.build_graph(*PACKAGES, cache_dir=None)
    graph = nx.DiGraph((module, target) for module in imports.modules for target in imports.find_modules_directly_imported_by(module))
    assert [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1] == []


@pytest.mark.parametrize("path", [path for path in sources() if path.name == "__init__.py"], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_says_what_it_is_for_and_holds_no_code(path):
    docstring, *rest = tree(path).body
    assert ast.get_docstring(tree(path)), docstring
    if path.parent.name == "schedcast":  # what people import
        assert all(isinstance(statement, ast.ImportFrom | ast.Assign) for statement in rest)
    else:
        assert not rest
        assert len(path.read_text().splitlines()) <= 5


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_places_that_a_page_names_are_there(page):
    """A place is a path in backquotes that begins with one of the folders; `my_...` is the reader's own file."""
    places = re.findall(rf"`((?:{'|'.join((*PACKAGES, 'tests', 'tools', 'docs'))})/[\w/.]+)`", (ROOT / page).read_text())
    assert [place for place in places if "my_" not in place and not (ROOT / place).exists()] == []


@pytest.mark.thorough
def test_no_test_module_imports_another():
    taken = [
        f"{path.relative_to(ROOT)}: {node.module}"
        for path in sources("tests")
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom)
        for name in [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        if name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")
    ]
    assert taken == []


def test_old_names_are_gone():
    words = re.compile(rf"\b({'|'.join(OLD_NAMES)})\b")
    uses = [
        f"{path.relative_to(ROOT)}:{token.start[0]} {token.string}: say {OLD_NAMES[token.string]}"
        for path in sources()
        if words.search(path.read_text())
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.NAME and token.string in OLD_NAMES
    ]
    assert uses == []


def test_every_test_lies_where_its_package_does():
    folders = {path.relative_to(ROOT / "tests").parent for path in sources("tests") if path.name.startswith("test_")}
    places = {folder for folder in folders if folder.parts and folder.parts[0] in PACKAGES}
    assert [str(folder) for folder in sorted(places) if not (ROOT / folder).is_dir()] == []


def test_one_class_holds_a_predicted_step_and_its_interval():
    """Answers, rankings, sweeps, papers and scoreboards have or are a `Step`, so that no door copies its fields one by one."""
    holders = {
        node.name
        for path in sources(*PACKAGES)
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
        if {"step_s", "interval_s"} <= {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
    }
    assert holders == {"Step"}


def test_figures_are_plotlys_alone():
    """A second library that draws would describe every picture a second time."""
    needed = " ".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    drawing = re.compile(r"\b(matplotlib|kaleido|altair|bokeh|seaborn|PIL|pillow)\b", re.IGNORECASE)
    assert drawing.findall(needed) == []
    imported = {name for path in sources() for node in nodes(path) for name in _imported(node) if drawing.match(name)}
    assert imported == set()


def test_the_packages_need_neither_tools_nor_tests():
    """`tools` and `tests` import what is installed, and are not installed themselves."""
    taken = [f"{path.relative_to(ROOT)}: {name}" for path in sources() for node in nodes(path) for name in _imported(node)]
    assert [each for each in taken if each.rpartition(" ")[2].partition(".")[0] in ("tests", "tools")] == []


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


@pytest.mark.parametrize("package", PACKAGES)
def test_arguments_are_passed_by_name(package):
    many = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node.func)}"
        for path in sources(package)
        for node in nodes(path)
        if isinstance(node, ast.Call) and len(node.args) > MOST_BY_POSITION
    ]
    allowed = BY_POSITION.get(package, 0)
    assert len(many) <= allowed, f"name all but the first arguments of these calls, of which {allowed} may stay: {', '.join(many)}"
