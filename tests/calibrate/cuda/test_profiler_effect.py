"""What sessions of the profiler change: the host's time per launch, and how a session that records nothing is repeated."""

import os

import pytest
import torch
from torch.profiler import ProfilerActivity

from calibrate.cuda.bench import Bench
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
