"""Every fuzz test runs in an empty folder, which it may not change, within 4 GiB of memory; the end says how many inputs were tried."""

import resource

import psutil
import pytest

from tests.support.fuzzing import FAULTS, REFUSED, TRIED


@pytest.fixture(autouse=True)
def nothing_written(tmp_path_factory, monkeypatch):
    """Fail if a test leaves a file in its working folder, or needs more than 4 GiB."""
    folder = tmp_path_factory.mktemp("empty")
    monkeypatch.chdir(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (4 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert list(folder.iterdir()) == []


def pytest_terminal_summary(terminalreporter):
    """Print the number of inputs by kind."""
    for kind, count in sorted(TRIED.items()):
        terminalreporter.write_line(f"{kind}: {count:,} inputs, {REFUSED[kind]:,} refused")
    for fault in FAULTS.values():
        terminalreporter.write_line(f"\n{fault}", red=True)
    if TRIED:
        terminalreporter.write_line(f"fuzz: {TRIED.total():,} inputs, {len(FAULTS)} kinds of faults")


def pytest_sessionfinish(session):
    """Fail if there were faults."""
    if FAULTS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
