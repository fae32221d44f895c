"""Shared by all tests: a cache folder of the session's own, and one CPU backend (its worker threads live as long as the process)."""

import gc
import os
import tempfile

os.environ["STEPCAST_CACHE"] = tempfile.mkdtemp(prefix="stepcast-test-cache-")
os.environ["STEPCAST_DATA"] = tempfile.mkdtemp(prefix="stepcast-test-data-")

import pytest

from simulator.machine.machine import Device, Machine, Memory


@pytest.fixture(scope="session")
def two_cores() -> Machine:
    """A machine with one device of two cores."""
    memory = Memory("ram", 8 << 30, 2e10, 32 << 20)
    return Machine("two-cores", (Device("cpu:0", "cpu", 2, {"fp32": 1e11}, "ram"),), (memory,))


@pytest.fixture(scope="session")
def backend(two_cores):
    """The CPU executor on that machine."""
    from executors.cpu.backend import CpuBackend

    return CpuBackend(two_cores)


@pytest.fixture(scope="session")
def stepcast(tmp_path_factory):
    """The command line in a warm process, away from the repository."""
    from tests.support.cli_process import Runner

    runner = Runner(tmp_path_factory.mktemp("stepcast"))
    yield runner
    runner.close()


def _spare_collector() -> None:
    """What is there by now is not walked again whenever cycles are collected, which captures do very often."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """All modules are imported."""
    _spare_collector()


@pytest.fixture(scope="module", autouse=True)
def spared_collector():
    """What a module leaves behind stays."""
    yield
    _spare_collector()
