"""Profiles: saving and loading, differences between machines, samples, and damaged files."""

import json
import multiprocessing
import os
import signal
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.samples import read_samples
from traces.documents import profile_files
from traces.documents.profile import SCHEMA, Contention, Dispatch, Identity, KeyCost, Profile, Stats, Transfer
from traces.documents.profile_files import append_samples, default_path, list_profiles, locked, merged
from traces.errors import SchedcastError, UnusableFileError

H100 = Identity(kind="gpu", gpu="NVIDIA H100 80GB HBM3", sms=132, torch="2.11.0", tf32=True, clocks_mhz={"sm": 1980.0})
RELU = KeyCost(
    Stats(2e-5, 2.1e-5, 1.9e-5, 2.2e-5, 12), Stats(3e-5, 3e-5, 3e-5, 3e-5, 12), "elementwise", 1e6, 8e6, 1024, 8, 7e-6, "profiler"
)


def profile() -> Profile:
    """A small profile with something in every field."""
    return Profile(
        identity=H100,
        costs={"aten.relu.default|f32[1000000]|[]@132": RELU},
        failures={"aten.bad.default|@132": "not implemented for Half"},
        dispatch=Dispatch(dispatch_s=5e-6),
        transfers={"cuda:0>host": Transfer(latency_s=1e-5, bytes_per_s=5e10, points=[(1e6, 3e-5)])},
        contention=Contention(multipliers={"conv|elementwise": 1.2}, held_out_error=0.05, held_out_error_without=0.1),
        anchor_s=1e-3,
        cache_bytes=50 * 2**20,
        peak_flops={"fp32": 6.7e13},
        priority_levels=6,
        partition_sms={"2": 64, "4": 32},
        notes=["the GPU was throttled (power cap) in 2 of 40 rounds"],
    )


def test_a_profile_comes_back_from_disk_as_it_was(tmp_path):
    for name in ("p.json", "p.json.gz"):
        saved = profile()
        assert Profile.load(saved.save(tmp_path / name)) == saved


def test_a_profile_without_the_later_fields_loads(tmp_path):
    document = json.loads(profile().save(tmp_path / "p.json").read_text())
    document["costs"] = {key: row[:7] for key, row in document["costs"].items()}
    for name in ("priority_levels", "partition_sms", "notes"):
        del document[name]
    (tmp_path / "p.json").write_text(json.dumps(document))
    loaded = Profile.load(tmp_path / "p.json")
    assert list(loaded.costs.values()) == [RELU._replace(issue_s=None, geometry_from="")]
    assert (loaded.priority_levels, loaded.partition_sms, loaded.notes) == (None, {}, [])


def test_a_stall_counts_as_twice_the_median_in_the_mean():
    stats = Stats.from_samples([1.0, 1.0, 1.0, 1.0, 50.0])
    assert stats == Stats(median_s=1.0, mean_s=1.2, q25_s=1.0, q75_s=1.0, samples=5)
    assert Stats.from_samples([2.0]) == Stats(2.0, 2.0, 2.0, 2.0, 1)
    assert Stats.from_samples([1.0, 2.0, 3.0]).spread == pytest.approx(0.25)
    with pytest.raises(ValueError, match="no samples"):
        Stats.from_samples([])


def test_another_machine_is_described_in_words():
    other = H100.model_copy(update={"torch": "2.13.0", "clocks_mhz": {}})
    assert profile().matches(other) == [
        "the clocks in MHz is {'sm': 1980.0} here, not recorded there",
        "torch is 2.11.0 here, 2.13.0 there",
    ]


def test_profiles_lie_in_the_data_folder_under_the_machines_name(tmp_path, monkeypatch):
    monkeypatch.delenv("SCHEDCAST_DATA", raising=False)
    monkeypatch.setattr("platformdirs.user_data_dir", lambda app: str(tmp_path / app))
    assert H100.name == "gpu-nvidia-h100-80gb-hbm3-132-tf32"
    assert list_profiles() == []
    path = profile().save(default_path(H100.name))
    append_samples(path, [{"key": "a", "samples_s": [1e-3]}])
    assert list_profiles() == [path] == [tmp_path / "schedcast/profiles/gpu-nvidia-h100-80gb-hbm3-132-tf32.json"]
    monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path / "elsewhere"))
    assert list_profiles() == []


def test_profiles_stay_where_they_were_under_the_projects_former_name(tmp_path, monkeypatch):
    monkeypatch.delenv("SCHEDCAST_DATA", raising=False)
    monkeypatch.setattr("platformdirs.user_data_dir", lambda app: str(tmp_path / app))
    (tmp_path / "stepcast").mkdir()
    assert default_path("a") == tmp_path / "stepcast/profiles/a.json"
    (tmp_path / "schedcast").mkdir()
    assert default_path("a") == tmp_path / "schedcast/profiles/a.json"


def test_profiles_of_one_gpu_with_and_without_tf32_lie_in_two_files():
    fp32 = H100.model_copy(update={"tf32": False})
    assert fp32.name == "gpu-nvidia-h100-80gb-hbm3-132"
    assert fp32.differences(H100) == ["TF32 is False here, True there"]
    assert profile().matches(fp32) == ["TF32 is True here, False there"]


def test_samples_are_appended_and_read_in_order(tmp_path):
    path = tmp_path / "p.json"
    assert list(read_samples(path)) == []
    append_samples(path, [{"key": "a"}, {"key": "b"}])
    append_samples(path, [{"key": "c"}])
    assert [record["key"] for record in read_samples(path)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not valid JSON"),
        ("[]", "is not a profile"),
        ('{"schema": "schedcast.timeline/1"}', "is not a profile"),
        (f'{{"schema": "schedcast.profile/{"9" * 5000}"}}', "is not a profile"),
        ('{"schema": "schedcast.profile/²"}', "is not a profile"),
        ('{"schema": "schedcast.profile/2"}', "newer than schedcast.profile/1"),
        (f'{{"schema": "{SCHEMA}"}}', "damaged at identity"),
        (f'{{"schema": "{SCHEMA}", "identity": {{"kind": "tpu"}}}}', "damaged at identity > kind"),
        (f'{{"schema": "{SCHEMA}", "identity": {{"kind": "cpu"}}, "costs": {{"k": [[NaN, 1, 1, 1, 1]]}}}}', "the number NaN is not finite"),
        (f'{{"schema": "{SCHEMA}", "identity": {{"kind": "cpu"}}, "costs": {{"k": [[-1, 1, 1, 1, 1]]}}}}', "damaged at costs > k > 0 > 0"),
        (f'{{"schema": "{SCHEMA}", "identity": {{"kind": "cpu"}}, "costs": {{"k": 3}}}}', "damaged at costs > k"),
        (f'{{"schema": "{SCHEMA}", "identity": {{"kind": "cpu"}}, "anchor_s": 1{"0" * 400}}}', "an integer of 401 digits is too large"),
        (f'{{"schema": "{SCHEMA}", "identity": {{"kind": "cpu"}}, "anchor_s": 1e999}}', "the number 1e999 is not finite"),
        (f'{{"schema": "{SCHEMA}", "identity": {{"kind": "cpu"}}, "notes": ["\\ud800"]}}', "surrogates not allowed"),
        (f'{{"schema": "{SCHEMA}", "identity": {"[" * 100_000}', "not valid JSON"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, text, expected):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(UnusableFileError, match=expected):
        Profile.load(path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=200)
@given(field=st.sampled_from(sorted(Profile.model_fields)), value=_JSON)
def test_no_content_makes_loading_crash(tmp_path_factory, field, value):
    document = {"schema": SCHEMA, "identity": {"kind": "cpu"}, field: value}
    path = tmp_path_factory.getbasetemp() / "hostile.json"
    path.write_text(json.dumps(document))
    message = ""
    try:
        Profile.load(path)
    except UnusableFileError as error:
        message = str(error)
    assert "\n" not in message


# Two calibrations that write one profile: nothing that either of them measured is lost, and a crash leaves no lock.


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
