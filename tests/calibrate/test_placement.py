"""Where a job runs: a placement that cannot be is refused when it is made, and the CPU's testbed when it is asked for."""

import pytest

from calibrate.cpu.testbed import CpuTestbed
from calibrate.placement import Placement
from calibrate.testbeds import cpu_testbed
from tests.support.refusals import refuses
from traces.errors import Code


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({"device": "gpu"}, Code.NAME, "unknown device 'gpu'"),
        ({"mode": "lazy"}, Code.NAME, "unknown mode 'lazy'"),
        ({"devices": 0}, Code.REQUEST, "--devices is 0; expected at least 1"),
        ({"partition": 2, "devices": 2}, Code.REQUEST, "--partition 2 splits one GPU, and --devices 2 are several"),
        (
            {"device": "cuda:1", "devices": 2},
            Code.REQUEST,
            "--device cuda:1 is one GPU, and --devices 2 are the first 2; use --device cuda",
        ),
        ({"memory_limit_gb": -1.0}, Code.REQUEST, "--memory-limit is -1.0 GB; expected a number above 0"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(given, code, words):
    with refuses(code, words):
        Placement(**given)


def test_the_testbed_of_this_cpu_has_its_memory_limit():
    testbed = cpu_testbed(Placement(memory_limit_gb=2.0), "fp32")
    assert (type(testbed), testbed.memory_limit_bytes) == (CpuTestbed, 2e9)
    with refuses(Code.REQUEST, "--precision tf32 needs an NVIDIA GPU"):
        cpu_testbed(Placement(), "tf32")


@pytest.mark.parametrize("rate", ["fast", "", "0Gb/s", "infGb/s", "50", "9" * 400 + "Gb/s"])
def test_a_network_has_a_rate_above_zero(rate):
    with refuses(Code.REQUEST, "--network is .*; expected a rate above 0, such as 50Gb/s or 6.25GB/s"):
        Placement(network=rate)


def test_rates_are_in_bits_or_bytes():
    assert [Placement(network=rate).network_bytes_per_s for rate in (None, "50Gb/s", "6.25GB/s")] == [None, 6.25e9, 6.25e9]
