"""Two calibrations that write one profile: nothing that either of them measured is lost, and a crash leaves no lock."""

import json
import multiprocessing
import os
import signal
import time

import pytest

from traces.documents import profile_files
from traces.documents.profile import Contention, Dispatch, Identity, KeyCost, Profile, Stats
from traces.documents.profile_files import append_samples, locked, merged
from traces.errors import SchedcastError

CPU = Identity(kind="cpu", cpu="AMD EPYC", cores=2)
FORK = multiprocessing.get_context("fork")


def cost(seconds: float) -> KeyCost:
    return KeyCost(Stats(seconds, seconds, seconds, seconds, 8))


def test_both_calibrations_keep_what_they_measured(tmp_path):
    path = Profile(identity=CPU, costs={"old": cost(1.0), "again": cost(1.0)}, failures={"later": "x"}).save(tmp_path / "p.json")
    first, second = Profile.load(path), Profile.load(path)
    first.costs["a"] = cost(2.0)
    first.costs["again"] = cost(3.0)
    first.dispatch.wait_s = 1e-6
    first.notes.append("throttled")
    first.save(path)
    second.costs["b"] = cost(4.0)
    second.costs["later"] = cost(5.0)
    second.failures.pop("later")
    second.fail("a", "not enough memory at the time")
    second.dispatch.record_s = 2e-6
    second.notes.append("shared")
    second.anchor_s = 1e-3
    second.save(path)
    both = Profile.load(path)
    assert {key: row.warm.median_s for key, row in both.costs.items()} == {"old": 1.0, "again": 3.0, "a": 2.0, "b": 4.0, "later": 5.0}
    assert both.failures == {}
    assert (both.dispatch.wait_s, both.dispatch.record_s, both.anchor_s) == (1e-6, 2e-6, 1e-3)
    assert both.notes == ["throttled", "shared"]


def test_a_second_save_writes_only_what_changed_since_the_first(tmp_path):
    path = tmp_path / "p.json"
    mine = Profile(identity=CPU, costs={"a": cost(1.0)})
    mine.save(path)
    theirs = Profile.load(path)
    theirs.costs["a"] = cost(2.0)
    theirs.save(path)
    mine.costs["b"] = cost(3.0)
    mine.save(path)
    assert {key: row.warm.median_s for key, row in Profile.load(path).costs.items()} == {"a": 2.0, "b": 3.0}


@pytest.mark.parametrize("there", ["another machine", "damaged"])
def test_a_file_that_cannot_be_joined_is_replaced(tmp_path, there):
    path = tmp_path / "p.json"
    path.write_text("{" if there == "damaged" else json.dumps({"schema": "schedcast.profile/1", "identity": {"kind": "cpu", "cores": 64}}))
    mine = Profile(identity=CPU, costs={"a": cost(1.0)})
    mine.save(path)
    assert Profile.load(path) == mine


def add_keys(path, name: str, count: int) -> None:
    profile = Profile.load(path)
    for number in range(count):
        profile.costs[f"{name}{number}"] = cost(1.0)
        profile.save(path)
        append_samples(path, [{"key": f"{name}{number}"}])


def test_processes_that_save_at_the_same_time_lose_nothing(tmp_path):
    path = Profile(identity=CPU).save(tmp_path / "p.json")
    writers = [FORK.Process(target=add_keys, args=(path, name, 15)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(Profile.load(path).costs) == 45
    assert sorted(place.name for place in tmp_path.iterdir()) == ["p.json", "p.samples.jsonl.gz"]


def hold(path, ready) -> None:
    with locked(path):
        ready.set()
        time.sleep(60)


def test_a_killed_process_leaves_no_stuck_lock(tmp_path, monkeypatch):
    path, ready = tmp_path / "p.json", FORK.Event()
    holder = FORK.Process(target=hold, args=(path, ready))
    holder.start()
    ready.wait(30)
    monkeypatch.setattr(profile_files, "PATIENCE_S", 0.1)
    with pytest.raises(SchedcastError, match=r"another process has been writing p.json for 0 s; end it"), locked(path):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with locked(path):
        assert (tmp_path / ".p.json.lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SchedcastError, match=r"cannot write .* is not a folder"):
        Profile(identity=CPU).save(tmp_path / "file" / "p.json")


def test_what_both_sides_changed_is_merged_entry_by_entry():
    assert merged({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 3, "c": 1}) == {"a": 2, "b": 3}
    assert merged([1], [1, 2], [1, 3]) == [1, 3, 2]
    assert merged(1, 2, 3) == 2
    assert merged(Dispatch(), Dispatch(wait_s=1.0), Dispatch(record_s=2.0)) == Dispatch(wait_s=1.0, record_s=2.0)
    assert merged(Contention(), Contention(disturbed=True), Contention(unmeasured=["a|b"])) == Contention(
        disturbed=True, unmeasured=["a|b"]
    )


def test_failures_of_an_earlier_calibration_are_not_new(tmp_path):
    profile = Profile(identity=CPU)
    profile.fail("a", "not enough memory at the time")
    assert profile.new_failures == {"a": "not enough memory at the time"}
    loaded = Profile.load(profile.save(tmp_path / "p.json"))
    assert loaded.failures == profile.failures
    assert loaded.new_failures == {}
    loaded.fail("b", "no kernel")
    assert loaded.new_failures == {"b": "no kernel"}
