"""The app's tests run its pages hundreds of times. Streamlit looks through all installed packages before each: here once."""

from functools import cache

import pytest


@pytest.fixture(scope="session", autouse=True)
def packages_looked_through_once():
    """What Streamlit finds in installed packages is kept."""
    from streamlit.components.v2 import manifest_scanner

    scan = manifest_scanner.scan_component_manifests
    manifest_scanner.scan_component_manifests = cache(scan)
    yield
    manifest_scanner.scan_component_manifests = scan
