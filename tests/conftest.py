"""Fixtures of all tests.

All processes of a session share one cache, so that a graph is captured once. Each has a data folder of its own, and one CPU backend, whose
threads live until the end. Threads of PyTorch's ops sleep between two ops, as they do in the command line.
"""

import contextlib
import ctypes
import gc
import os
import signal
import tempfile
from collections import Counter
from pathlib import Path

from executors.cpu.cores import wait_passively
from tests.support.places import session_file

os.environ["SCHEDCAST_CACHE"] = str(session_file("cache"))
os.environ["SCHEDCAST_DATA"] = tempfile.mkdtemp(prefix="schedcast-test-data-")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background a shell ignores it, and Ctrl-C could not be tested
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import setuptools  # noqa: F401 - before any module that imports the standard library's distutils: PyTorch's extensions import it late
from hypothesis import settings

from simulator.machine.machine import Device, Machine, Memory

#: The files that take longest, which run first: else one of them would occupy one core at the end.
LONGEST = (
    "ui/present/test_papers_page.py",
    "executors/distributed/test_distributed.py", "calibrate/preflight/test_report.py", "ui/test_cli_errors.py",
    "executors/test_numerics.py", "simulator/model/workloads/test_workloads.py", "ui/test_cli.py", "calibrate/preflight/test_runner.py",
    "calibrate/test_validation.py", "executors/cuda/test_backend.py", "ui/test_interrupt.py",
    "calibrate/preflight/test_probes.py", "simulator/strategies/test_bppsa.py", "calibrate/cuda/test_calibration.py",
    "ui/commands/test_gpu_commands.py", "executors/cpu/test_memory_watch.py", "executors/cuda/test_devices.py", "ui/app/test_browser.py",
    "ui/app/test_hostile_names.py", "ui/commands/test_preflight.py", "ui/app/test_app.py", "fuzz/test_app.py",
)  # fmt: skip

#: The folders and files that `make test` leaves out.
THOROUGH = (
    "fuzz/", "simulator/papers/", "ui/app/test_browser.py", "ui/app/test_hostile_names.py", "ui/present/test_timeline_in_browser.py",
    "ui/test_missing_packages.py", "calibrate/preflight/test_report.py",
)  # fmt: skip

wait_passively()  # threads that spin would keep the cores from other tests: a simulated GPU took 10 times as long to measure
settings.register_profile("no deadline", deadline=None)  # a busy machine may stop a test for seconds
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def two_cores() -> Machine:
    """A machine with one device of two cores."""
    memory = Memory("ram", 8 << 30, 2e10, 32 << 20)
    return Machine("two-cores", (Device("cpu:0", "cpu", 2, {"fp32": 1e11}, "ram"),), (memory,))


@pytest.fixture(scope="session")
def backend(two_cores):
    """The CPU executor on the machine `two_cores`."""
    from executors.cpu.backend import CpuBackend

    return CpuBackend(two_cores)


@pytest.fixture(scope="session", autouse=True)
def cold_launch():
    """Plain PyTorch's process starts at once in all tests. Yields the function that starts it as users do."""
    from calibrate.cpu import plain_process
    from tests.support.warm_processes import launch_plain

    before, plain_process.launch = plain_process.launch, launch_plain
    yield before
    plain_process.launch = before


@pytest.fixture(scope="session", autouse=True)
def captured_once():
    """Graphs of the models in tests/support are captured once in each process. A user's file is captured for every job."""
    from simulator.model.job import Job

    capture, graphs = Job._of_factory, {}

    def shared(job, factory, *arguments):
        key = (factory.name, *arguments, job.dtype, job.layout, *job._casts)
        if not factory.name.startswith(str(Path(__file__).parent)):
            return capture(job, factory, *arguments)
        if key not in graphs:
            graphs[key] = capture(job, factory, *arguments)
        return graphs[key]

    Job._of_factory = shared
    yield
    Job._of_factory = capture


@pytest.fixture(scope="session")
def schedcast(tmp_path_factory):
    """The command line in a warm process, in a folder outside the repository."""
    from tests.support.cli_process import Runner

    runner = Runner(tmp_path_factory.mktemp("schedcast"))
    yield runner
    runner.close()


def _freeze_objects() -> None:
    """Exclude all current objects from garbage collection, which captures trigger very often."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first, and mark the thorough ones, among them all but every n-th case of a sampled test."""
    cases: Counter[str] = Counter()
    for item in items:
        if str(item.path.relative_to(Path(__file__).parent)).startswith(THOROUGH):
            item.add_marker("thorough")
        if sampled := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            if cases[test] % sampled.args[0]:
                item.add_marker("thorough")
            cases[test] += 1
    place_of = {str(Path(__file__).parent / name): place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place_of.get(str(item.path), len(LONGEST)))


def pytest_collection_finish() -> None:
    """Freeze what importing the test modules created."""
    _freeze_objects()


def _give_memory_back() -> None:
    """Give unused memory back to the system, which the CPU executor's allocator keeps for later steps (`executors.cpu.allocator`)."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="module", autouse=True)
def frozen_objects():
    """Freeze what the tests of a module leave behind, and give back memory that they no longer use: gigabytes of a large scan."""
    yield
    _freeze_objects()
    _give_memory_back()
