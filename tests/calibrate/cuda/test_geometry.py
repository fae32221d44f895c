"""Resident blocks and waves, compared with cases computed by hand. Hopper: 2048 threads, 32 blocks, 65536 registers, 228 KB per SM.

And what profiler sessions change: the host's time per launch, and how a session that records nothing is repeated.
"""

import math
import os
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity

from calibrate.cuda.bench import Bench
from calibrate.cuda.geometry import blocks_per_sm, fit_waves, longest
from calibrate.cuda.host import AFTER, BEFORE, after_profiler, before_profiler
from executors.cuda import profiled
from executors.cuda.driver import Kernel
from tests.fake_gpu import FACTS, FakeGpu, Times
from traces.documents.profile import Identity, Profile

US = 1e-6
GPU = torch.device("cpu")  # any: the session is replaced
KERNELS = [[Kernel("gemm", 4, 128, 32, 0, 1e-6)]]


def profile_after_a_session(slower: float) -> Profile:
    """The profile of a GPU whose host is slower after a profiler session."""
    profile = Profile(identity=Identity(kind="gpu", gpu="Fake GPU", sms=FACTS.sms))
    with FakeGpu(Times(op_s=5 * US, after_profiler=slower)) as gpu:
        bench, x = Bench(gpu), torch.ones(4)
        before_profiler(bench)
        gpu.kernels([lambda: x.neg()])
        after_profiler(bench, profile)
        assert before_profiler(bench) == pytest.approx(5 * US), "measured once, before the session"
    return profile


def test_launches_before_and_after_a_session_are_kept():
    profile = profile_after_a_session(1.08)
    assert profile.identity.extras == pytest.approx({BEFORE: 5 * US, AFTER: 5.4 * US})
    assert profile.notes == []


def test_a_host_that_is_slower_after_a_session_is_reported(caplog):
    (note,) = profile_after_a_session(1.2).notes
    assert note.startswith("a launch takes the host 6 us after a profiler session and 5 us before")
    assert note in caplog.text


@pytest.fixture
def sessions(monkeypatch):
    """Replaces the profiler's sessions by a list of their results, of which the first is taken each time."""
    results: list = []
    monkeypatch.setattr(profiled, "supported_activities", lambda: {ProfilerActivity.CUDA})
    monkeypatch.setattr(profiled, "_session", lambda works, device: results.pop(0))
    monkeypatch.setenv("TEARDOWN_CUPTI", "")  # so that it is removed again after the test
    monkeypatch.delenv("TEARDOWN_CUPTI")
    return results


def test_an_empty_session_is_repeated_once(sessions, caplog):
    sessions += [[[]], KERNELS]
    assert profiled.kernels([lambda: None], GPU) == KERNELS
    assert caplog.text == ""
    sessions += [[[]], [[]], KERNELS]
    assert profiled.kernels([lambda: None], GPU) is None
    assert "2 sessions recorded no kernel" in caplog.text
    assert sessions == [KERNELS]


@pytest.mark.parametrize(("cuda", "user", "set_to"), [("13.0", None, "1"), ("12.4", None, None), ("13.0", "0", "0"), (None, None, None)])
def test_cupti_is_detached_after_a_session(sessions, monkeypatch, cuda, user, set_to):
    """Before CUDA 12.6, attaching it again crashes if there are graphs."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    if user is not None:
        monkeypatch.setenv("TEARDOWN_CUPTI", user)
    sessions.append(KERNELS)
    profiled.kernels([lambda: None], GPU)
    assert os.environ.get("TEARDOWN_CUPTI") == set_to


def kernel(block: int, registers: int, shared_bytes: int, grid: int = 1, seconds: float = 1.0) -> Kernel:
    return Kernel("k", grid, block, registers, shared_bytes, seconds)


@pytest.mark.parametrize(
    ("block", "registers", "shared_bytes", "blocks"),
    [
        (256, 64, 0, 4),  # 64 · 32 = 2048 registers per warp: 8 warps in each quarter of 16384, 32 in all; 32 / 8
        (256, 32, 0, 8),  # threads: 2048 / 256, as many as 64 warps / 8
        (32, 16, 0, 32),  # block slots; threads would allow 64
        (128, 40, 0, 12),  # 1280 per warp: 12 in a quarter, 48 in all; 48 / 4
        (128, 37, 0, 12),  # 37 · 32 = 1184 registers are rounded up to 1280
        (1024, 64, 0, 1),  # 32 warps, as many as a block has
        (384, 168, 0, 1),  # 5376 per warp: 3 in a quarter, 12 in all: one block of 12 warps
        (100, 32, 0, 16),  # 4 warps, so 128 threads: 2048 / 128
        (128, 32, 48 << 10, 4),  # 228 / (48 + 1) KB = 4.65
        (256, 128, 100 << 10, 2),  # registers: 16 warps / 8; shared memory: 228 / 101 = 2.26
        (384, 168, 227 << 10, 1),  # the most shared memory that a block can have
        (128, 32, 56 << 10, 4),  # 228 / 57 = 4 exactly, with the reserved kilobyte
        (128, 0, 0, 16),  # registers unknown
    ],
)
def test_blocks_per_sm_on_hopper(block, registers, shared_bytes, blocks):
    assert blocks_per_sm(kernel(block, registers, shared_bytes), FACTS) == blocks


def test_older_gpus_reserve_no_shared_memory_and_have_fewer_slots():
    turing = replace(FACTS, capability=(7, 5), threads_per_sm=1024, blocks_per_sm=16, shared_bytes_per_sm=64 << 10)
    assert blocks_per_sm(kernel(128, 32, 32 << 10), turing) == 2
    assert blocks_per_sm(kernel(32, 16, 0), turing) == 16
    ada = replace(FACTS, capability=(8, 9), threads_per_sm=1536, blocks_per_sm=24, shared_bytes_per_sm=100 << 10)
    assert blocks_per_sm(kernel(32, 16, 0), ada) == 24
    assert blocks_per_sm(kernel(128, 32, 32 << 10), ada) == 3  # 100 / 33


def test_the_longest_kernel_gives_its_tasks_geometry():
    first, main, copy = kernel(256, 32, 0, 10, 1e-6), kernel(256, 64, 0, 700, 9e-6), Kernel("Memcpy", 0, 0, 0, 0, 50e-6)
    assert longest([first, main, copy], FACTS) == (700, 4)
    assert longest([copy], FACTS) is None
    assert longest([], FACTS) is None


@pytest.mark.parametrize("filled", [5, 20, 32, 40, 64, 100, 132, 150, 300])
def test_waves_are_found_from_times_on_partitions(filled):
    times = {sms: 7e-6 * math.ceil(filled / sms) for sms in (32, 64, 132)}
    fitted = fit_waves(times)
    assert [math.ceil(fitted / sms) for sms in times] == [math.ceil(filled / sms) for sms in times]
    assert fitted >= filled


def test_times_without_waves():
    assert fit_waves({32: 1.0, 64: 3.0, 132: 0.2}) is None
    assert fit_waves({32: 1.0, 64: 1.004, 132: 0.997}) == 32  # flat up to noise: no more than the smallest partition
    many = fit_waves({32: 4.12, 64: 2.06, 132: 1.0})
    assert many > 132
