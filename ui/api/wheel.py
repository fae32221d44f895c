"""Builds the wheel. In it, the packages are inside `schedcast.packages`, so that their names do not collide with those of other projects.

pyproject.toml names the two commands of setuptools. An editable installation keeps the layout of the repository.
"""

import ast
import shutil
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

PACKAGES = ("traces", "simulator", "executors", "calibrate", "ui")
INSIDE = "schedcast.packages"


class NestedBuild(build_py):
    """Copies the packages, then moves them into `schedcast.packages` and renames them in their import statements."""

    def run(self) -> None:
        """Build."""
        super().run()
        if self.editable_mode:
            return
        root = Path(self.build_lib)
        inside = root.joinpath(*INSIDE.split("."))
        shutil.rmtree(inside, ignore_errors=True)
        inside.mkdir(parents=True)
        (inside / "__init__.py").write_text('"""The packages of Schedcast, which are at the top level in its repository."""\n')
        for name in PACKAGES:
            shutil.move(root / name, inside / name)
        for path in inside.parent.rglob("*.py"):
            path.write_text(nested(path.read_text(encoding="utf-8"), str(path)), encoding="utf-8")


class NestedNames(egg_info):
    """Writes the metadata."""

    def run(self) -> None:
        """Write."""
        super().run()
        Path(self.egg_info, "top_level.txt").write_text("schedcast\n")


def nested(source: str, file: str = "<string>") -> str:
    """The source of a module whose imports of our packages are from `schedcast.packages`. Lines and columns of everything else stay.

    Raises ValueError for an import that would bind another name, such as `import traces.files`.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source, file)):
        if isinstance(node, ast.ImportFrom) and not node.level and _is_ours(str(node.module)):
            old, new = f"from {node.module}", f"from {INSIDE}.{node.module}"
        elif isinstance(node, ast.Import) and any(_is_ours(alias.name) for alias in node.names):
            (name, *more), alias = [each.name for each in node.names], node.names[0].asname
            if more or (alias is None and "." in name):
                raise ValueError(f"{file}:{node.lineno}: {ast.unparse(node)!r} cannot be renamed; write: from {name} import ...")
            old = f"import {name}"
            new = f"import {INSIDE}.{name}" if alias else f"from {INSIDE} import {name}"
        else:
            continue
        line, at = lines[node.lineno - 1], node.col_offset
        if not line[at:].startswith(old):
            raise ValueError(f"{file}:{node.lineno}: expected {old!r} with single blanks")
        lines[node.lineno - 1] = line[:at] + new + line[at + len(old) :]
    return "".join(lines)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES
