"""Testbeds on a simulated GPU, with little memory and short calibrations."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from calibrate import tiny_model
from calibrate.cuda import host, rates
from calibrate.cuda.bench import Effort
from calibrate.cuda.contention import Sizes
from calibrate.cuda.testbed import GpuTestbed
from tests.fake_gpu import FACTS, FakeGpu, Times
from tests.support.places import session_file
from traces.documents.profile import Profile

#: A small memory: rates are measured on tensors that fill a share of it, on this machine's CPU.
SMALL = replace(FACTS, memory_bytes=32 << 20)
#: Kernels that are launched one by one have another gap than the nodes of a graph. A graph takes the host longer, the larger it is.
TIMES = Times(launch_gap_s=0.6e-6, switch_s=1.5e-6, graph_node_s=0.1e-6, graph_branch_s=4e-6)
#: What each stream keeps for its matrix products.
WORKSPACE_BYTES = 1 << 20
QUICK = Effort(rounds=3, graph_s=5e-5, most_copies=8, most_sets=4, most_issues=4, sustained_s=0.0)
#: Kernels that are small enough for this machine's CPU, in both sizes that interference runs use.
KERNELS = Sizes(16, 8, 4096)


@contextmanager
def few_repetitions() -> Iterator[None]:
    """Repeat less often what measures the machine: the simulated clock has no noise, so two repetitions tell as much as forty.

    The queue that is tried stays longer than a simulated stream's, which takes 1000 launches. Rates are measured on small tensors.
    """
    shorter = {
        (host, "_WARM_UP"): 2, (host, "_PERIODS"): 2, (host, "_CHUNKS"): 2, (tiny_model, "_WARM_UP"): 3, (host, "MOST"): 1200,
        (rates, "_MEMORY_SHARE"): 1 / 1024,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), number in shorter.items():
            patch.setattr(module, name, number)
        yield


def hard_gpu(times: Times = TIMES) -> FakeGpu:
    """A GPU with little memory that keeps workspaces."""
    return FakeGpu(times, SMALL, workspace_bytes=WORKSPACE_BYTES)


def open_testbed(gpu: FakeGpu, mode: str = "eager", **fields) -> GpuTestbed:
    """A testbed on `gpu` that measures in milliseconds."""
    return GpuTestbed(gpu, mode, effort=QUICK, reference_edge=32, transfer_sizes=(4096, 65536, 1 << 20), kernels=KERNELS, **fields)


def measured_profile() -> Profile:
    """A profile with the simulated machine's own figures and no keys. It is measured once for all processes that run the tests."""
    place = session_file("fake-gpu-profile.json")
    if not place.exists():
        with few_repetitions(), hard_gpu() as gpu:
            testbed = open_testbed(gpu)
            profile = Profile(identity=testbed.identity)
            testbed.measure_machine(profile)
        profile.save(place)
    return Profile.load(place)
