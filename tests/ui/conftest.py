"""Fixtures of what people see."""

import pytest

from tests.support.chromium import CHROMIUM, FLAGS


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, of Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()
