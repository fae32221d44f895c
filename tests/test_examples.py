"""The examples in docstrings run, and give what they show."""

import doctest
from importlib import import_module

import pytest

from tests.support.places import ROOT

PACKAGES = ("traces", "simulator", "executors", "calibrate", "ui")
#: The modules with examples, which `>>>` begins. What people import as `schedcast` is in `ui/api`.
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__").removeprefix("ui.api.schedcast") or "schedcast"
    for folder in PACKAGES
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_give_what_they_show(module):
    results = doctest.testmod(import_module(module))
    assert results.attempted
    assert results.failed == 0
