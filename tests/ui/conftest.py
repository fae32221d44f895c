"""Fixtures of what people see."""

import sys

import pytest

from tests.support.chromium import CHROMIUM, FLAGS


@pytest.fixture(autouse=True)
def nothing_shared():
    """Commands that run and uploads are shared by all sessions of a process; each test begins with none."""
    yield
    for name in ("ui.app.runs", "ui.app.uploads"):
        if name in sys.modules:
            sys.modules[name].clear()


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, of Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()
