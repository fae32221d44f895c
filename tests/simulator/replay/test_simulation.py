"""The simulation of a replay gives the same timeline as the engine, whose SMs and links nothing in a replay contends for."""

import pytest

from simulator.engine.costs.cost import Cost
from simulator.engine.simulation import simulate
from simulator.replay.replay import Replay, simulate_replay
from simulator.replay.whatif.registry import apply_rules
from simulator.replay.whatif.replayed import replayed
from tests.support.small_replays import host, kernel, launched, random_recording, recording
from tests.support.small_traces import write_trace
from traces.documents.timeline import Cause


def by_engine(replay: Replay) -> list[tuple[str, float, float]]:
    """(task, start, end) by the engine. A span of the engine includes the gap after it."""
    costs = [Cost(f"replay|{index}", task.body.duration_s, task.body.duration_s) for index, task in enumerate(replay.plan.tasks)]
    gaps = {device.name: device.task_overhead_s for device in replay.machine.devices}
    spans = simulate(replay.plan, replay.machine, costs, iterations=1, use_cache=False).spans
    return [(span.task, span.start_s, max(span.start_s, span.end_s - gaps[span.device])) for span in spans]


def by_replay(replay: Replay) -> list[tuple[str, float, float]]:
    return [(span.task, span.start_s, span.end_s) for span in simulate_replay(replay).spans]


@pytest.mark.parametrize("seed", range(12))
def test_random_recordings(seed):
    replay = random_recording(seed)
    assert by_replay(replay) == by_engine(replay)


def test_two_ranks_with_gaps_and_rules(tmp_path):
    ranks = replayed([write_trace(tmp_path / f"{rank}.json", rank=rank) for rank in (0, 1)]).replay
    edited, _ = apply_rules(ranks, ["cuda-graph", "priority:nccl=-1", "network*=2"])
    for replay in (ranks, edited):
        assert by_replay(replay) == by_engine(replay)


def test_the_critical_path_names_launches_and_waits():
    replay = recording(
        launched("a", 4.0), launched("b", 1.0, stream=8, after="a"), kernel("c", 1.0, stream=8), host("sync", 1.0, after="c")
    )
    path = simulate_replay(replay).critical_path
    assert [(link.task, link.start_s, link.end_s, link.cause) for link in path] == [
        ("l.a", 0.0, 1.0, Cause.START),
        ("a", 1.0, 5.0, Cause.LAUNCH),
        ("b", 5.0, 6.0, Cause.DEPENDENCY),
        ("c", 6.0, 7.0, Cause.LANE),
        ("sync", 7.0, 8.0, Cause.DEPENDENCY),
    ]
