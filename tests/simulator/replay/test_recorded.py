"""Real traces replay within the stated errors. The traces are not part of the project; without them these tests skip."""

import pytest

from simulator.replay.build import load_replay
from simulator.replay.compare import compare
from simulator.replay.replay import simulate_replay
from tests.support.shared_data import shared_folder

FOLDER = shared_folder("kineto")
TRACES = sorted(FOLDER.glob("*.json*")) if FOLDER else []

pytestmark = pytest.mark.skipif(not TRACES, reason="no shared/data/kineto beside the repository; SCHEDCAST_SHARED may name another place")


def check(paths) -> None:
    replay = load_replay(*paths)
    replay.plan.validate(replay.machine)
    result = compare(replay, simulate_replay(replay))
    streams = len({(use.device, use.stream) for use in result.streams})
    assert abs(result.error) <= (0.01 if streams == 1 else 0.04)
    assert result.exposed_simulated_s == pytest.approx(result.exposed_measured_s, rel=0.10, abs=1e-6)
    for use in result.streams:
        assert use.simulated_s == pytest.approx(use.measured_s, rel=0.02, abs=2e-6)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.partition(".")[0])
def test_a_real_trace_replays(path):
    check([path])


def test_two_ranks_of_one_job_replay_together():
    ranks = [path for path in TRACES if path.name.startswith("v100_dlrm_rank")]
    if len(ranks) < 2:
        pytest.skip("the two ranks of one job are not there")
    check(ranks)
    notes = load_replay(*ranks).notes
    assert "8 collectives joined between ranks, 0 without a partner" in notes


#: GPU periods in ms, as stated by the publishers of the traces or read from them by hand (shared/data/README.md).
PERIODS = {
    "v100_cnn_1gpu": (95.4, 95.7), "v100_resnet50_bs32_1gpu_oldschema": (149.5, 154.5), "a100_dlrm_rank3of8": (76.3, 81.2),
}  # fmt: skip


@pytest.mark.parametrize("name", PERIODS)
def test_the_measured_period_is_the_known_one(name):
    path = next((path for path in TRACES if path.name.startswith(name)), None)
    if path is None:
        pytest.skip(f"{name} is not there")
    replay = load_replay(path)
    low, high = PERIODS[name]
    assert low <= 1e3 * compare(replay, simulate_replay(replay)).period_measured_s <= high
