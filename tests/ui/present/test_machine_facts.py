"""A machine and its profile in tables and warnings."""

from dataclasses import replace
from datetime import UTC, datetime

from simulator.machine.presets import load_machine
from traces.documents.profile import Contention, Dispatch, Identity, Interference, KeyCost, LoopCosts, Profile, Stats
from ui.present import machines

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def profile(**changes):
    identity = Identity(kind="cpu", cpu="EPYC", cores=2, torch="2.13.0", extras={"system": "Linux"})
    return Profile(**({"identity": identity, "updated": "2026-05-30T10:00:00+00:00"} | changes))


def test_the_figures_of_a_preset_have_sources():
    rows = {row["figure"]: row for row in machines.specification_cells(load_machine("p100x4"))}
    assert rows["devices"]["value"] == "4"
    assert rows["memory bandwidth"]["value"].endswith("GB/s")
    assert all(rows[name]["source"] for name in ("SMs", "peak, fp32", "memory", "memory bandwidth"))
    assert machines.link_cells(load_machine("p100x4"))
    assert {row["from"] for row in machines.host_cells(load_machine("h100"), None)} >= {load_machine("h100").sources["dispatch_s"]}


def test_measured_host_times_come_before_assumed_ones():
    own = profile(dispatch=Dispatch(task_overhead_s=2e-5), loop=LoopCosts(forward_s=3e-5))
    rows = {row["time"]: (row["us"], row["from"]) for row in machines.host_cells(load_machine("this-cpu"), own)}
    assert rows["executor's own time per task"] == ("20.0", "measured")
    assert rows["PyTorch's own loop: per op of the forward pass"] == ("30.0", "measured")
    slow = profile(loop=LoopCosts(forward_s=3.6e-3))
    assert {"time": "PyTorch's own loop: per op of the forward pass", "us": "3600", "from": "measured"} in machines.host_cells(
        load_machine("this-cpu"), slow
    )
    assert rows["until a sleeping worker starts a task"][1] != "measured"


def test_updates_warm_and_cold():
    cost = KeyCost(Stats.from_samples([0.001]), Stats.from_samples([0.0025]), "update.adam:foreach", 1.0, 2**20)
    rows = machines.update_cells(profile(costs={"update.adam:foreach|x@2": cost, "mm@2": cost._replace(op_class="matmul")}))
    assert rows == [
        {"update": "adam:foreach", "SMs (cores)": "2", "moves": "1 MiB", "warm ms": "1.00", "cold ms": "2.50", "cold / warm": "2.50",
         "spread": "0.0 %"}
    ]  # fmt: skip


def test_an_update_by_several_threads_says_how_many():
    cost = KeyCost(Stats.from_samples([0.001]), None, "update.adam:foreach", 1.0, 2**20)
    (row,) = machines.update_cells(profile(costs={"update.adam:foreach|x@2-threads": cost}))
    assert row["SMs (cores)"] == "2 threads on one op"


def test_a_machine_without_sources_has_no_column_for_them():
    (cells, *_) = machines.specification_cells(replace(load_machine("this-cpu"), sources={}))
    assert list(cells) == ["figure", "value"]


def test_co_runs_by_pair():
    runs = [Interference("compute", "memory", slow, 1.1) for slow in (1.2, 1.4)]
    own = profile(contention=Contention(multipliers={"compute|memory": 1.3}, co_runs=runs, held_out_error=0.1, held_out_error_without=0.2))
    (row,) = machines.co_run_cells(own)
    assert (row["takes longer, measured"], row["multiplier"]) == ("1.20x to 1.40x", "1.30")
    assert machines.co_run_words(own).endswith("10.0 %, no multipliers by 20.0 %: they are used.")
    assert machines.co_run_words(profile()) == ""


def test_a_fresh_profile_of_this_machine_has_no_warnings():
    assert machines.warnings(profile(), profile().identity, NOW) == []
    assert machines.age_words(profile(), NOW) == "Profile of cpu-epyc-2, last measured 2026-05-30, 1 day ago: 0 measured costs."
    assert ", last measured 2026-06-01, today: " in machines.age_words(profile(updated=NOW.isoformat()), NOW)


def test_warnings_about_age_throttling_software_and_failures():
    identity = profile().identity.model_copy(update={"throttle": {"reasons": ["power"]}})
    own = profile(
        identity=identity, updated="2025-01-01T00:00:00+00:00", notes=["clocks drifted by 8 %"], failures={"mm@2": "out of memory"},
        contention=Contention(disturbed=True),
    )  # fmt: skip
    here = profile().identity.model_copy(update={"torch": "2.11.0"})
    assert machines.warnings(own, here, NOW) == [
        "It is of another machine or software: torch is 2.13.0 here, 2.11.0 there.",
        "It is 516 days old; calibrate again if drivers or libraries have changed since.",
        "The device throttled while it was measured: reasons power.",
        "Clocks drifted by 8 %.",
        "Other work ran during the interference runs; they should be measured again.",
        "1 costs could not be measured and are estimated from other ops.",
    ]
    assert machines.age_days(profile(updated="some day"), NOW) is None
    assert {"what": "system", "value": "Linux"} in machines.version_cells(identity)
