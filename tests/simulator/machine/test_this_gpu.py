"""A calibrated GPU as a machine: measured figures, and those of the preset of the same product for the rest."""

from dataclasses import replace

import pytest

from simulator.engine.links import Links
from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, Link
from simulator.machine.presets import data, gpu_machine, load_machine, one_gpu, product_of, together
from tests.support.refusals import refuses
from tests.support.tiny import build, copy, rows, task
from traces.documents.profile import Dispatch, Identity, KeyCost, Profile, Stats, Transfer
from traces.documents.shipped import FILES, shipped_profile
from traces.errors import Code

KEY = KeyCost(Stats(1e-5, 1e-5, 1e-5, 1e-5, 9), op_class="matmul", issue_s=7e-6)


def h200(**more) -> Profile:
    """A profile of an H200 with only its name, its SMs and the given figures."""
    return Profile(identity=Identity(kind="gpu", gpu="NVIDIA H200", sms=132), updated="2026-01-02T03:04:05+00:00", **more)


def measured() -> Profile:
    """A profile with every figure."""
    return h200(
        costs={"aten.mm.default|[]@132": KEY},
        dispatch=Dispatch(
            dispatch_s=2e-6,
            record_s=0.5e-6,
            wait_s=0.4e-6,
            graph_launch_s=8e-6,
            node_gap_s=0.0,
            cross_gap_s=1.5e-6,
            callback_s=2e-5,
            call_s=3e-6,
        ),
        transfers={"host>cuda:0": Transfer(latency_s=1e-5, bytes_per_s=5e10), "cuda:0>host": Transfer(latency_s=2e-5, bytes_per_s=4e10)},
        cache_bytes=60 * 2**20,
        memory_bytes=140 * 10**9,
        bandwidth_bytes_per_s=4.2e12,
        peak_flops={"fp32": 5e13},
        priority_levels=6,
        partition_sms={"2": 64},
    )


def test_measured_figures_replace_the_presets():
    machine, preset = gpu_machine(measured()), load_machine("h200")
    device, memory, host = machine.device("cuda:0"), machine.memory("cuda:0"), machine.host("cuda:0")
    assert (machine.name, device.sms, device.priority_levels) == ("this-gpu", 132, 6)
    assert device.peak_flops == {**preset.devices[0].peak_flops, "fp32": 5e13}
    assert (memory.size_bytes, memory.bandwidth_bytes_per_s, memory.cache_bytes) == (140 * 10**9, 4.2e12, 60 * 2**20)
    assert (host.dispatch_s, host.record_s, host.wait_s, host.graph_launch_s) == (2e-6, 0.5e-6, 0.4e-6, 8e-6)
    assert (host.node_gap_s, host.cross_gap_s, host.queue_depth) == (0.0, 1.5e-6, 1000)
    assert (host.callback_s, host.call_s) == (2e-5, 3e-6)
    assert set(machine.links) == {Link("host", "cuda:0", 1e-5, 5e10), Link("cuda:0", "host", 2e-5, 4e10)}
    note = "measured: profile of NVIDIA H200 of 2026-01-02T03:04:05+00:00"
    names = {name for name, source in machine.sources.items() if source == note}
    assert names == {
        "sms", "priority_levels", "cache_bytes", "memory_bytes", "bandwidth_bytes_per_s", "bandwidth_reached", "peak_flops fp32",
        "dispatch_s", "record_s", "wait_s", "graph_launch_s", "node_gap_s", "cross_gap_s", "callback_s", "call_s", "host link latency_s",
        "host link bandwidth_bytes_per_s",
    }  # fmt: skip
    assert machine.sources["costs"] == f"1 keys {note}"
    assert machine.sources["peak_flops tf32"] == preset.sources["peak_flops tf32"]


def test_figures_that_were_not_measured_are_those_of_the_preset():
    machine, preset = gpu_machine(h200(), name="h200"), load_machine("h200")
    assert machine == replace(preset, sources=machine.sources)
    assert {name for name, source in machine.sources.items() if source.startswith("measured")} == {"sms"}


def test_costs_include_the_gap_between_nodes_measured_or_not():
    lanes = [gpu_machine(h200(costs=measured().costs)).hosts[0], gpu_machine(h200()).hosts[0], load_machine("h200").hosts[0]]
    assert [lane.node_gap_s for lane in lanes] == [0.0] * 3
    assert min(lane.cross_gap_s for lane in lanes) > 0


def test_a_gpu_without_a_preset_must_be_measured():
    profile = measured()
    unknown = profile.model_copy(update={"identity": profile.identity.model_copy(update={"gpu": "NVIDIA B900", "sms": 200})})
    machine = gpu_machine(unknown)
    assert (machine.devices[0].sms, dict(machine.devices[0].peak_flops)) == (200, {"fp32": 5e13})
    assert machine.hosts[0].dispatch_s == 2e-6
    assert all(machine.sources.values())
    with refuses(
        Code.REQUEST,
        "the profile of NVIDIA B900 lacks the peak FLOP/s in fp32, the size of its cache, and this GPU has no preset; calibrate it",
    ):
        gpu_machine(unknown.model_copy(update={"peak_flops": {"tf32": 1e14}, "cache_bytes": None}))


def test_presets_are_found_by_the_drivers_name():
    assert product_of("h200") == "NVIDIA H200"
    assert product_of("this-cpu") == product_of("none") == ""
    assert one_gpu("NVIDIA H100 80GB HBM3").name == "h100"
    assert one_gpu("TITAN Xp").name == one_gpu("NVIDIA TITAN Xp").name == "titan-xp"
    assert one_gpu("NVIDIA H200 NVL") is None
    assert one_gpu("NVIDIA GeForce GTX 1060 6GB") is None, "every machine with this GPU has two"
    products = [gpu.product for gpu in data().gpus.values()]
    assert len(set(products)) == len(products)


def test_partitions_share_memory_host_and_links():
    machine = gpu_machine(measured(), partitions=2)
    assert [(d.name, d.sms, d.memory) for d in machine.devices] == [(f"cuda:0/{i}", 64, "memory of cuda:0") for i in range(2)]
    assert machine.devices[0].peak_flops["fp32"] == pytest.approx(5e13 * 64 / 132)
    assert machine.host("cuda:0/0") is machine.host("cuda:0/1") is not None
    assert "as the driver split them" in machine.sources["sms"]
    from simpy import Environment

    links = Links(Environment(), machine)
    assert links.route("cuda:0/0", "cuda:0/1").alias
    to_first, to_second, back = links.route("host", "cuda:0/0"), links.route("host", "cuda:0/1"), links.route("cuda:0/0", "host")
    assert (to_first.bandwidth_bytes_per_s, back.bandwidth_bytes_per_s) == (5e10, 4e10)
    assert to_first.channels == to_second.channels != back.channels


def test_several_gpus_of_one_process_share_its_thread():
    profile = measured()
    machine = together(gpu_machine(profile), 3, {"cuda:0>cuda:1": Transfer(latency_s=5e-6, bytes_per_s=3e11)})
    assert [(d.name, d.sms, d.memory) for d in machine.devices] == [(f"cuda:{i}", 132, f"memory of cuda:{i}") for i in range(3)]
    (host,) = machine.hosts
    assert (host.devices, machine.library) == (("cuda:0", "cuda:1", "cuda:2"), ""), "plans have the copies of sums, and no library's calls"
    assert [d.name for d in machine.for_pytorch.devices] == ["cuda:0"], "plain PyTorch uses one"
    from simpy import Environment

    links = Links(Environment(), machine)
    peer, staged = links.route("cuda:0", "cuda:1"), links.route("cuda:1", "cuda:2")
    assert (peer.latency_s, peer.bandwidth_bytes_per_s) == (5e-6, 3e11)
    assert (staged.bandwidth_bytes_per_s, len(staged.channels)) == (4e10, 2), "through the host, if no copy between the two was measured"


def test_a_plan_runs_on_partitions():
    timed = [
        task("f", 1e-3, reads="x", writes="y", on="cuda:0/0"),
        copy("send", "cuda:0/0", "cuda:0/1", "y", "z"),
        task("g", 1e-3, reads="z", writes="v", on="cuda:0/1"),
    ]
    plan, costs = build(*timed)
    spans = rows(simulate(plan, gpu_machine(measured(), partitions=2), costs, iterations=1, mode="graph"))
    assert [name for name, *_ in spans] == ["f", "send", "g"]
    assert [start for _, start, _ in spans] == pytest.approx([8e-6, 1.0095e-3, 1.0095e-3])


@pytest.mark.parametrize(("count", "sms"), [(1, 132), (2, 64), (4, 32), (3, 40), (8, 16), (16, 8)])
def test_partitions_have_a_multiple_of_eight_sms(count, sms):
    assert {d.sms for d in gpu_machine(h200(), partitions=count).devices} == {sms}


@pytest.mark.parametrize(("count", "message"), [(17, "132 SMs give at most 16 of 8 SMs; choose 1 to 16"), (0, "expected at least 1")])
def test_impossible_numbers_of_partitions_are_refused(count, message):
    with refuses(Code.DEVICES, message):
        gpu_machine(h200(), partitions=count)


def test_shipped_profiles_lie_by_product_and_precision(tmp_path, monkeypatch):
    assert shipped_profile("NVIDIA H200", False, tmp_path) is None
    assert shipped_profile("", False, tmp_path) is None
    saved = measured()
    saved.save(tmp_path / "nvidia-h200" / "profile.json.gz")
    assert shipped_profile("NVIDIA H200", False, tmp_path) == saved
    assert shipped_profile("NVIDIA H200", True, tmp_path) is None
    monkeypatch.setenv("SCHEDCAST_SHIPPED", str(tmp_path))
    assert shipped_profile("NVIDIA H200", False) == saved
    (tmp_path / "nvidia-h200" / FILES[True]).write_text("{")
    with refuses(Code.FILE):
        shipped_profile("NVIDIA H200", True)


def test_a_profile_gives_every_gpu_of_a_machine_its_figures_and_its_link_to_the_host_but_none_between_gpus():
    profile = measured().model_copy(update={"identity": Identity(kind="gpu", gpu=product_of("dgx-h100"), sms=132)})
    machine, preset = load_machine("dgx-h100", profile), load_machine("dgx-h100")
    assert {d.peak_flops["fp32"] for d in machine.devices} == {5e13}
    assert {m.bandwidth_bytes_per_s for m in machine.memories} == {4.2e12}
    assert [h.name for h in machine.hosts] == [h.name for h in preset.hosts]
    assert {(h.dispatch_s, h.node_gap_s) for h in machine.hosts} == {(2e-6, 0.0)}, "the issue times of its keys replace the preset's"
    of_hosts, others = ([link for link in machine.links if (HOST in (link.source, link.target)) == own] for own in (True, False))
    assert others == [link for link in preset.links if HOST not in (link.source, link.target)]
    assert len(of_hosts) == 16
    assert {link.latency_error for link in of_hosts} == {0.0}
    assert {link.bandwidth_bytes_per_s for link in of_hosts if link.source == HOST} == {profile.transfers["host>cuda:0"].bytes_per_s}
    assert machine.rated == preset


def test_a_link_that_gpus_share_is_not_the_one_that_was_measured():
    profile = measured().model_copy(update={"identity": Identity(kind="gpu", gpu=product_of("p100"), sms=56)})
    assert load_machine("8xp100", profile).links == load_machine("8xp100").links


def test_what_was_measured_has_no_error_of_a_preset():
    of_loops = {"loop_s", "forward_step_s", "backward_step_s", "batch_s", "sample_s"}
    assert set(gpu_machine(measured()).host("cuda:0").errors) == of_loops, "a profile has its own times of loops, and of recurrent ops"
    assert set(gpu_machine(h200(dispatch=Dispatch(dispatch_s=2e-6))).host("cuda:0").errors) == set(load_machine("h200").hosts[0].errors) - {
        "dispatch_s"
    }
