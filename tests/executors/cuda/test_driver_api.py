"""Partitions of one GPU, tested with a stand-in for the driver, and whether they are disjoint on a real GPU if there is one."""

import gc

import pytest
import torch

from executors.cuda import driver_api, torch_driver
from executors.cuda.driver_api import DriverApi
from tests.support.fake_cuda import Bindings, Torch
from tests.support.refusals import refuses
from traces.errors import Code, SchedcastError


@pytest.mark.parametrize(("count", "sms"), [(1, 128), (2, 64), (4, 32), (8, 16)])
def test_the_sms_of_an_h200_are_split_once_into_equal_disjoint_parts(count, sms):
    bindings = Bindings(132)
    partitions = driver_api.split(DriverApi(bindings), 0, count)
    assert [(partition.index, partition.sms) for partition in partitions] == [(index, sms) for index in range(count)]
    assert bindings.calls == ["resource", f"split {count} x {sms}", *["context"] * count]
    assert len(frozenset().union(*(partition.handle.sms for partition in partitions))) == count * sms


def test_partitions_keep_their_contexts_and_are_created_once(monkeypatch):
    bindings = _driver(monkeypatch, Bindings())
    driver = torch_driver.TorchDriver()
    assert driver.partitions(4) is driver.partitions(4)
    gc.collect()
    assert len(bindings.contexts) == 4
    assert all(context() is not None for context in bindings.contexts)


def test_a_partitions_streams_belong_to_its_context(monkeypatch):
    bindings = _driver(monkeypatch, Bindings())
    driver = torch_driver.TorchDriver()
    first, second = driver.partitions(2)
    streams = [driver.stream(priority, partition) for partition in (first, second) for priority in (0, -1, -99)]
    assert len({stream.cuda_stream for stream in streams}) == 6
    expected = [(partition.handle, priority) for partition in (first, second) for priority in (0, -1, -5)]
    assert [bindings.on_stream[stream.cuda_stream] for stream in streams] == expected


def test_drivers_before_cuda_13_do_not_report_the_granularity():
    assert driver_api.split(DriverApi(Bindings(version=12080, reports=(0, 0))), 0, 2)[0].sms == 64


@pytest.mark.parametrize(
    ("api", "count", "words"),
    [
        (None, 2, "cuda-bindings"),
        (DriverApi(Bindings(version=12020)), 2, "CUDA 12.5 or newer, this one is for 12.2"),
        (DriverApi(Bindings()), 0, "1 or more"),
        (DriverApi(Bindings()), 17, "at least 8 SMs"),
        (DriverApi(Bindings(most_groups=3)), 4, "only 3 of 4"),
    ],
)
def test_a_gpu_that_cannot_be_split_is_an_error_of_one_line(api, count, words):
    with refuses(Code.REQUEST, words):
        driver_api.split(api, 0, count)


def test_a_function_that_the_driver_or_the_package_lacks_is_named():
    class Old(Bindings):
        cuDevSmResourceSplitByCount = property()  # noqa: N815

        def cuDeviceGetDevResource(self, device, kind):  # noqa: N802
            raise RuntimeError('Function "cuDeviceGetDevResource" not found\nin libcuda')

    api = DriverApi(Old())
    with refuses(Code.REQUEST, r"no cuDeviceGetDevResource \(Function .* not found\); update"):
        api("cuDeviceGetDevResource", "device 0", "sm")
    with refuses(Code.REQUEST, "no cuDevSmResourceSplitByCount"):
        api("cuDevSmResourceSplitByCount")
    with refuses(Code.REQUEST, "cuGreenCtxCreate failed with CUDA_ERROR_INVALID_VALUE"):
        DriverApi(Bindings())("cuGreenCtxCreate", [Bindings()._resource(frozenset())], "device 0", 0)


def _driver(monkeypatch, bindings: Bindings) -> Bindings:
    Torch().install(monkeypatch)
    monkeypatch.setattr(torch_driver, "find_driver_api", lambda: DriverApi(bindings))
    return bindings


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch sees none")
@pytest.mark.parametrize("count", [2, 4, 8])
def test_partitions_of_a_real_gpu_are_disjoint_eager_and_replayed(count):
    driver = torch_driver.gpu()
    try:
        partitions = driver.partitions(count)
    except SchedcastError as error:
        pytest.skip(str(error))
    for replayed in (False, True, False):
        sm_ids = [driver.sm_ids(driver.stream(0, partition), replayed) for partition in partitions]
        assert [len(ids) for ids in sm_ids] == [partition.sms for partition in partitions]
        assert len(frozenset().union(*sm_ids)) == sum(partition.sms for partition in partitions)
    assert len(driver.sm_ids(driver.stream())) == driver.facts.sms
