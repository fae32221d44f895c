"""The site: it builds without a warning, shows every function and command, and is read without a network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import schedcast

from tests.support.places import ROOT
from ui.cli import app


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]  # quiet, it would not count warnings
    built = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.mark.thorough
def test_pages_load_nothing_from_the_network(site):
    loaded = re.compile(
        r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//[^"]*"|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(?:https?:)?//'
    )
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    assert [f"{page.name}: {match[0]}" for page in pages for match in loaded.finditer(page.read_text())] == []
    assert not any("@import" in sheet.read_text() for sheet in site.rglob("*.css"))


@pytest.mark.thorough
def test_the_reference_has_every_function_and_command(site):
    functions, commands = (site.joinpath("docs", f"{page}.html").read_text() for page in ("reference", "commands"))
    assert [name for name in schedcast.__all__ if not re.search(rf'id="(?:ui\.api\.facade|traces\.errors)\.{name}"', functions)] == []
    names = [command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands if not command.hidden]
    assert [name for name in names if f'id="schedcast-{name}"' not in commands] == []
    assert "largest_batch" in functions
