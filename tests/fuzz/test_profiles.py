"""Damaged profiles of a CPU: listed, and predicted with by name or as this machine's own, or refused."""

import contextlib
import io
import json
from dataclasses import replace

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from calibrate.identity import comparable_cpu
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import THIS_CPU
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.predict.forecast import plan_of
from simulator.predict.target import Target
from tests.support.fuzzing import damaged, damaged_bytes, fuzzed, mostly, sound
from traces.documents.profile import Contention, Dispatch, Interference, KeyCost, Profile, Stats, Transfer
from traces.documents.profile_files import default_path
from ui.commands import listing, predicting
from ui.request import JobRequest, machine_named

STRATEGIES = st.sampled_from(["baseline", "backward-fusion", "forward-fusion", "turbodl", "data-parallel"])
ASKED = JobRequest("lenet5", 8, precision="fp32")
REQUESTS = st.sampled_from(
    [ASKED, ASKED, replace(ASKED, devices=2), replace(ASKED, devices=2, link="copy:0.5"), replace(ASKED, memory_limit=1e-4)]
)


@pytest.fixture(scope="module")
def job():
    return Job("lenet5", 8)


@pytest.fixture(scope="module")
def sample(job):
    """The profile of this machine: half of the keys of a plan, and all other figures that calibration measures."""
    machine = this_cpu(devices=2)
    plan = plan_of(job, "data-parallel", Target.of(CostModel(machine)))
    stats = Stats(2e-5, 2.1e-5, 1.9e-5, 2.2e-5, 12)
    keys = list(plan.keys(machine))
    profile = Profile(
        identity=comparable_cpu(),
        costs={key: KeyCost(stats, stats, "matmul", 1e6, 8e4) for key in keys[:12]},
        failures={keys[-1]: "no memory"},
        dispatch=Dispatch(task_overhead_s=5e-6, shared_overhead_s=8e-6, wake_s=2e-5),
        transfers={"cpu:0>cpu:1": Transfer(latency_s=1e-5, bytes_per_s=5e9, points=[(1e6, 3e-4)])},
        contention=Contention(multipliers={"matmul|elementwise": 1.2}, co_runs=[Interference("matmul", "elementwise", 1.2)]),
        anchor_s=1e-3, cache_bytes=2**25, memory_bytes=8 * 2**30, bandwidth_bytes_per_s=2e10, peak_flops={"fp32": 1e11},
        notes=["throttled"],
    )  # fmt: skip
    return json.loads(json.dumps({"schema": "schedcast.profile/1", **profile.model_dump(mode="json")}))


def use(path, request, strategy, as_json):
    """List the profiles, then predict with the one at `path`, or with this machine's own if it is None."""
    with contextlib.redirect_stdout(io.StringIO()):
        listing.profiles(as_json)
        asked = replace(request, strategies=(strategy,), machine=machine_named(THIS_CPU if path is None else None, path))
        with contextlib.suppress(typer.Exit):  # it does not fit
            predicting.predict([asked], timeline=None, show_plan=False, as_json=as_json)


def test_a_damaged_cpu_profile_is_used_or_refused(sample, tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path))
    own = default_path(comparable_cpu().name)
    own.parent.mkdir(parents=True)
    text = json.dumps(sample).encode()
    contents = mostly(st.just(text) | damaged(sample).map(lambda document: json.dumps(document).encode()), damaged_bytes(text))

    @fuzzed(40)
    @given(contents, STRATEGIES, REQUESTS, st.booleans(), st.booleans())
    def check(content, strategy, request, by_name, as_json):
        own.write_bytes(content)
        with sound("CPU profile", (content, strategy, request, by_name, as_json)):
            use(own if by_name else None, request, strategy, as_json)

    check()


def test_the_sample_itself_is_usable(sample, tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path))
    own = default_path(comparable_cpu().name)
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps(sample))
    for path in (own, None):
        use(path, ASKED, "turbodl", False)
