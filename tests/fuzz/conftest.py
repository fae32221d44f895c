"""Every fuzz test runs in an empty folder, which it may not change, within 4 GiB of memory; the end says how many inputs were tried."""

import resource

import psutil
import pytest

from tests.support.fuzzing import FAULTS, REFUSED, TRIED
from tests.support.sample_runs import write_sample_report


@pytest.fixture(autouse=True)
def nothing_written(tmp_path_factory, monkeypatch):
    """Fail if a test leaves a file in its working folder, needs more than 4 GiB, or collected faults."""
    folder = tmp_path_factory.mktemp("empty")
    monkeypatch.chdir(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (4 << 30), hard))
    FAULTS.clear()
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert list(folder.iterdir()) == []
    if FAULTS:
        pytest.fail("\n".join([f"{len(FAULTS)} kinds of faults", *FAULTS.values()]), pytrace=False)


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """The folder of a sound report of three schedules that ran and one that did not."""
    return write_sample_report(tmp_path_factory.mktemp("reports") / "report")


def pytest_sessionfinish(session):
    """Hand the numbers of inputs over to the process that prints them, if several processes share the tests."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["inputs"] = dict(TRIED), dict(REFUSED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Add the numbers of inputs of another process."""
    for total, own in zip((TRIED, REFUSED), getattr(node, "workeroutput", {}).get("inputs", ({}, {})), strict=True):
        total.update(own)


def pytest_terminal_summary(terminalreporter):
    """Print the numbers of inputs by kind."""
    for kind, count in sorted(TRIED.items()):
        terminalreporter.write_line(f"{kind}: {count:,} inputs, {REFUSED[kind]:,} refused")
    if TRIED:
        terminalreporter.write_line(f"{TRIED.total():,} inputs in all")
