"""The workspaces that PyTorch keeps for each stream that has run a matrix product, with a stand-in for its allocator."""

import gc

import pytest
import torch

from executors.cuda import torch_driver
from tests.support.fake_cuda import Torch

WORKSPACE = 32 << 20


@pytest.fixture
def driver(monkeypatch) -> torch_driver.TorchDriver:
    """A driver of a GPU whose matrix products allocate a workspace at their stream's first."""
    cuda = Torch().install(monkeypatch)
    monkeypatch.setattr(torch_driver, "find_driver_api", lambda: None)
    driver = torch_driver.TorchDriver()
    streams: set[int] = set()
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: WORKSPACE * len(streams))
    monkeypatch.setattr(torch, "mm", lambda a, b, out: streams.add(cuda.current.cuda_stream))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", streams.clear, raising=False)
    driver._workspaces._device = torch.device("cpu")
    return driver


def run_product(driver: torch_driver.TorchDriver) -> None:
    stream = driver.stream()
    with torch.cuda.stream(stream):
        torch.mm(None, None, out=None)


def test_the_size_is_measured_once_whatever_ran_before(driver):
    run_product(driver)
    assert [driver.workspace_bytes() for _ in range(2)] == [WORKSPACE] * 2


def test_all_workspaces_are_freed_together(driver):
    for _ in range(3):
        run_product(driver)
    assert driver.free_workspaces() == 3 * WORKSPACE
    assert driver.free_workspaces() == 0


def test_nothing_is_freed_while_a_graph_exists(driver):
    run_product(driver)
    with driver.capture(driver.stream()) as graph:
        pass
    assert driver.free_workspaces() == 0
    assert driver.allocated_bytes() == WORKSPACE
    del graph
    gc.collect()
    assert driver.free_workspaces() == WORKSPACE


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch sees none")
def test_the_workspaces_of_a_real_gpu():
    driver = torch_driver.gpu()
    assert driver.workspace_bytes() > 1 << 20
    assert driver.free_workspaces() >= 0
