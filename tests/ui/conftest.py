"""Fixtures of what people see."""

import sys

import pytest

from tests.support.chromium import CHROMIUM, FLAGS


@pytest.fixture(autouse=True)
def nothing_shared():
    """Commands that run and uploads are shared by all sessions of a process; each test begins with none."""
    yield
    for name, kept in (("ui.app.runs", "_runs"), ("ui.app.uploads", "_traces"), ("ui.app.uploads", "_reports")):
        if name in sys.modules:
            getattr(sys.modules[name], kept).clear()


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, of Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()
