"""Machines by name have the figures of the data sheets, each with its source."""

import os
import re

import pytest

from simulator.engine.clock import Clock
from simulator.engine.links import Links
from simulator.machine import this_cpu as cpu_module
from simulator.machine.presets import data, load_machine, machine_names
from simulator.machine.this_cpu import available_cores, this_cpu
from tests.support.refusals import refuses
from traces.documents.profile import Dispatch, Identity, Profile
from traces.errors import Code, UnknownNameError

PRESETS = [name for name in machine_names() if name != "this-cpu"]
#: Memories that are not stacked (HBM) reach less of their bandwidth; see `machines.json`.
GRAPHICS_MEMORY = {
    "k20", "k80x16", "titan-xp", "2xgtx1060", "t4", "16xg4dn-12xlarge", "k80", "titan-x-pascal", "t4-900mhz", "rtx3090", "l4",
    "l40s", "a10", "a40", "rtx-a6000",
    "gtx1080ti", "rtx2070-max-q", "rtx2080-max-q", "quadro-rtx6000", "quadro-rtx8000", "rtx3070", "rtx4090", "rtx-a4000", "rtx-a5000",
    "rtx-a5500", "rtx3060", "rtx4060ti", "rtx-a4500", "rtx6000-ada", "quadro-rtx5000", "titan-rtx", "p40",
}  # fmt: skip


def test_the_machines_that_papers_and_users_ask_for_are_there():
    assert machine_names()[-1] == "this-cpu"
    gpus = {
        "k80x16": 16, "p100": 1, "p100x4": 4, "v100": 1, "titan-xp": 1, "2xgtx1060": 2, "h100": 1, "h200": 1, "2xgpu-pcie": 2,
        "dgx-h100": 8,
    }  # fmt: skip
    assert {name: len(load_machine(name).devices) for name in gpus} == gpus


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_is_complete(name):
    machine = load_machine(name)
    for device in machine.devices:
        memory = machine.memory(device.name)
        assert device.sms > 0
        assert min(device.peak_flops.values()) > 1e9
        assert memory.size_bytes > memory.cache_bytes > 0
        assert 0 < memory.saturation_share <= 1
        assert (machine.host(device.name) is None) == (device.kind == "cpu")
    assert all(machine.sources.values())
    assert {"fp32", "fp64"} <= set(machine.devices[0].peak_flops)


def test_an_h100_has_the_figures_of_its_data_sheet():
    machine = load_machine("h100")
    device = machine.device("cuda:0")
    assert (device.sms, device.peak_flops["tf32"], machine.memory("cuda:0").bandwidth_bytes_per_s) == (132, 494.7e12, 3.35e12)
    assert "data sheet" in machine.sources["bandwidth_bytes_per_s"]
    assert "whitepaper" in machine.sources["peak_flops tf32"]


def test_newer_gpus_have_the_figures_of_their_data_sheets():
    peaks = {name: load_machine(name).devices[0].peak_flops["bf16"] / 1e12 for name in ("b200", "gb200", "gb300", "mi300x", "l40s", "a10")}
    assert peaks == {"b200": 2250, "gb200": 2500, "gb300": 2500, "mi300x": 1307.4, "l40s": 362, "a10": 125}
    assert [load_machine(name).devices[0].sms for name in ("b200", "gb200", "rtx-pro-6000", "a40", "rtx-a6000")] == [148, 152, 188, 84, 84]
    assert load_machine("rtx-pro-6000").memory("cuda:0").bandwidth_bytes_per_s == 1597e9


#: FLOPs of an SM (a compute unit of AMD) per clock in single precision and in 16 bits. The 4096 of Hopper and the 8192 of Blackwell are
#: reached at a lower clock than the boost.
PER_CLOCK = {
    (128, 256), (128, 512), (128, 1024), (128, 2048),
    (256, 512), (256, 1024), (256, 2048), (256, 4096), (256, 3786), (256, 7678), (256, 8000),
}  # fmt: skip


@pytest.mark.parametrize("gpu", [name for name, gpu in data().gpus.items() if gpu.clock_hz[0] and name != "h20"])
def test_peaks_are_those_of_whole_units_at_the_boost_clock(gpu):
    """A typing error in one of a data sheet's figures breaks this. The figures that vendors state of an H20 do not agree."""
    entry = data().gpus[gpu]
    peaks = [entry.peak_flops[name][0] for name in ("fp32", "bf16" if "bf16" in entry.peak_flops else "fp16")]
    per_clock = tuple(peak / entry.sms[0] / entry.clock_hz[0] for peak in peaks)
    assert any(per_clock == pytest.approx(units, rel=0.013) for units in PER_CLOCK), per_clock


def test_cards_differ_where_their_vendor_made_them_differ():
    """An H800 is an H100 with less than half of its NVLink, and half an MI250X is a device."""
    h100, h800, die = load_machine("8xh100"), load_machine("8xh800"), load_machine("mi250x")
    assert h800.devices[0].peak_flops["bf16"] == h100.devices[0].peak_flops["bf16"]
    fastest = [max(link.bandwidth_bytes_per_s for link in machine.links) for machine in (h100, h800)]
    assert fastest == [450e9, 200e9]
    assert (die.devices[0].sms, die.memories[0].size_bytes) == (110, 64 << 30)
    assert load_machine("16xgh200").by_node(["cuda:0", "cuda:1"]) == {0: ["cuda:0"], 1: ["cuda:1"]}


def test_an_h200_has_the_memory_and_the_cache_that_its_driver_reports():
    memory, h100 = load_machine("h200").memory("cuda:0"), load_machine("h100").memory("cuda:0")
    assert (memory.size_bytes, memory.cache_bytes, h100.cache_bytes) == (143_771 << 20, 60 << 20, 50 << 20)
    assert load_machine("h200").sources["cache_bytes"].startswith("the driver's report")


def test_a_k20_has_the_figures_of_its_board_specification():
    machine = load_machine("k20")
    device, memory = machine.device("cuda:0"), machine.memory("cuda:0")
    assert (device.sms, device.peak_flops["fp32"], device.priority_levels) == (13, 3.52e12, 2)
    assert (memory.size_bytes, memory.bandwidth_bytes_per_s, memory.cache_bytes) == (5 * 2**30, 208e9, 1280 * 1024)
    assert {link.bandwidth_bytes_per_s for link in machine.links} == {6e9}
    assert "BD-06455-001" in machine.sources["sms"]


def test_a_locked_clock_scales_the_peaks_and_not_the_memory():
    free, locked = load_machine("t4"), load_machine("t4-900mhz")
    assert locked.devices[0].peak_flops["fp32"] == pytest.approx(free.devices[0].peak_flops["fp32"] * 900 / 1590, rel=0.01)
    assert [memory.bandwidth_bytes_per_s for memory in locked.memories] == [memory.bandwidth_bytes_per_s for memory in free.memories]


@pytest.mark.parametrize(
    ("card", "halved"), [("rtx3070", True), ("rtx4090", True), ("rtx5090", True), ("rtx2080-max-q", True), ("rtx-a4000", False)]
)
def test_tensor_cores_of_a_geforce_add_in_fp32_at_half_the_rate(card, halved):
    """Per SM and clock, which the rate in FP32 stands for: 512 FLOPs of a GeForce, and 1,024 of a card for workstations."""
    peaks = load_machine(card).devices[0].peak_flops
    cores = 64 if card.startswith("rtx20") else 128
    per_sm_and_clock = peaks.get("bf16", peaks.get("fp16")) / peaks["fp32"] * 2 * cores
    assert per_sm_and_clock == pytest.approx(512 if halved else 1024, rel=0.01)


def test_a_kepler_reaches_two_thirds_of_its_peak():
    assert {name for name in PRESETS if load_machine(name).devices[0].reached < 1} == {"k20", "k80x16", "k80"}
    assert load_machine("k80").devices[0].reached == pytest.approx(128 / 192, rel=1e-3)


def test_memories_other_than_hbm_reach_less_of_their_bandwidth():
    assert {load_machine(name).memories[0].reached for name in ("p100", "v100", "a100", "h100", "h200", "rtx-pro-6000")} == {1.0}
    assert all(load_machine(name).memories[0].reached < 1 for name in GRAPHICS_MEMORY - {"rtx3090", "rtx4090"})
    assert {load_machine(name).memories[0].reached for name in ("rtx3090", "rtx4090")} == {1.0}, "GDDR6X"
    measured = Profile(identity=Identity(kind="gpu", gpu="Tesla T4", sms=40), bandwidth_bytes_per_s=2.4e11)
    assert (load_machine("t4", measured).memories[0].reached, load_machine("t4", measured).memories[0].bandwidth_bytes_per_s) == (
        1.0,
        2.4e11,
    )


def test_cards_with_one_kind_of_memory_reach_one_share_of_it():
    """Data-center cards with GDDR6 had the share of GDDR5. A T4 with a locked clock has slower caches, too."""
    kinds = {}
    for name, gpu in data().gpus.items():
        kind = re.search(r"GDDR\w+|HBM", data().sources[gpu.memory_bytes[1]])
        if kind is not None and name != "t4-900mhz":
            kinds.setdefault(kind[0].replace("5X", "5"), set()).add(gpu.bandwidth_reached)
    assert kinds["GDDR6"] == {(0.91, "gddr6")}
    assert kinds["HBM"] == {(1.0, "hbm")}
    assert all(len(shares) == 1 for shares in kinds.values())
    assert {data().gpus[name].bandwidth_reached[0] for name in ("a10", "a40", "l40s", "l4", "t4")} == {0.91}


def test_every_source_is_used():
    loaded = [load_machine(name, host=host) for name in data().machines for host in ("pytorch", "caffe")]
    loaded += [load_machine(f"{2 * node.size}x{node.gpus[0]}") for node in data().nodes.values()]
    used = {source for machine in loaded for source in machine.sources.values()}
    assert used == set(data().sources.values())


def test_n_gpus_of_a_preset_are_nodes_of_eight_on_a_network():
    eight, sixteen = load_machine("8xh100"), load_machine("16xh100")
    names = [device.name for device in sixteen.devices]
    assert (len(eight.devices), eight.library, eight.nodes(names[:8]), sixteen.nodes(names)) == (8, "nccl", 1, 2)
    assert [link.bandwidth_bytes_per_s for link in sixteen.links if link.target == "network"] == [50e9] * 16, "an adapter for every GPU"
    assert "ConnectX-7" in sixteen.sources["network link bandwidth_bytes_per_s"]
    assert "network link bandwidth_bytes_per_s" not in eight.sources
    links = Links(Clock(), sixteen)
    assert links.route("cuda:0", "cuda:7").channels == (("cuda:0", "switch 0"), ("switch 0", "cuda:7"))
    assert ("bridge 0", "network") in links.route("cuda:0", "cuda:8").channels
    four = Links(Clock(), load_machine("4xrtx4090"))
    assert four.route("cuda:0", "cuda:3").channels == (("cuda:0", "bridge 0"), ("bridge 0", "cuda:3")), "over PCI Express"
    assert load_machine("1xh100").links == load_machine("h100").links
    assert load_machine("64xgb200").nodes(names) == 1, "a rack with one NVLink domain"
    assert load_machine("2xgtx1060").name == "2xgtx1060", "a preset of its own"


def test_every_gpu_has_one_usual_node():
    gpus = sorted({entry.gpu for entry in data().machines.values()})
    assert sorted(gpu for node in data().nodes.values() for gpu in node.gpus) == gpus
    for name in ("512xh100", "8xk20", "3xmi300x", "128xgb300", "16xt4"):
        assert len(load_machine(name).devices) == int(name.partition("x")[0])


def test_a_number_of_gpus_that_fills_no_nodes_is_refused():
    for name, message in (
        ("12xh100", "machine 12xh100: nodes of h100 have 8 GPUs; choose at most 8 or a multiple, such as 8"),
        ("0xh100", "machine 0xh100: 0 GPUs requested; choose 1 to 4096"),
        ("8000xh100", "machine 8000xh100: 8000 GPUs requested; choose 1 to 4096"),
    ):
        with refuses(Code.DEVICES, message):
            load_machine(name)
    for unknown in ("8xh10", "2xdgx-h100", "x8h100", "8xnone"):
        with pytest.raises(UnknownNameError):
            load_machine(unknown)


def test_links_reach_every_gpu():
    import networkx

    for name in PRESETS:
        graph = load_machine(name).graph
        assert networkx.is_strongly_connected(graph), name
    assert load_machine("p100x4").graph.has_edge("cuda:0", "cuda:3")


def test_sixteen_k80_share_a_tree_of_slots_and_four_links_to_two_processors():
    links = Links(Clock(), load_machine("k80x16"))
    shared = {pair: set(links.route(*pair).channels) for pair in (("cuda:0", "cuda:4"), ("cuda:1", "cuda:8"), ("cuda:2", "cuda:12"))}
    assert shared["cuda:0", "cuda:4"] & shared["cuda:1", "cuda:8"] == {("bridge 0", "riser 0"), ("riser 0", "host")}
    assert shared["cuda:0", "cuda:4"] & shared["cuda:2", "cuda:12"] == {("riser 0", "host")}
    assert len(links.route("cuda:0", "cuda:1").channels) == 2, "the switch of the board alone"
    assert {link.source for link in load_machine("k80x16").links if link.target == "host"} == {f"riser {n}" for n in range(4)}
    assert len(load_machine("k80x16", devices=6).links) == 2 * (6 + 3 + 2), "the second switch has one board"


def test_machines_of_several_gpus_have_a_library_of_collectives():
    several = {name for name in PRESETS if len(load_machine(name).devices) > 1}
    assert {name for name in PRESETS if load_machine(name).library == "nccl"} == several >= {"k80x16", "2xgpu-pcie", "dgx-h100"}
    assert load_machine("dgx-h100", devices=1).library == ""


def test_one_gpu_is_split_into_partitions():
    machine, whole = load_machine("h100", partitions=3), load_machine("h100")
    assert [(device.name, device.sms) for device in machine.devices] == [("cuda:0/0", 40), ("cuda:0/1", 40), ("cuda:0/2", 40)]
    assert machine.devices[0].peak_flops["tf32"] == pytest.approx(494.7e12 * 40 / 132)
    assert (machine.memories, machine.library) == (whole.memories, "")
    assert machine.sources["sms"] == "40 of 132: the largest multiple of 8 that fits"
    assert load_machine("h100", partitions=1) == load_machine("h100", devices=1) == whole
    measured = Profile(identity=Identity(kind="gpu", gpu="NVIDIA H200", sms=132), partition_sms={"2": 60})
    assert {device.sms for device in load_machine("h200", measured, partitions=2).devices} == {60}
    with refuses(Code.DEVICES, "132 SMs give at most 16 of 8 SMs; choose 1 to 16"):
        load_machine("h100", partitions=17)
    assert [device.sms for device in load_machine("p100x4", devices=1, partitions=2).devices] == [24, 24]
    with refuses(Code.REQUEST, "--partition 2 splits one GPU, and machine p100x4 has 4; add --devices 1"):
        load_machine("p100x4", partitions=2)
    with refuses(Code.REQUEST, "--partition 2 splits a GPU; --devices 2 makes as many groups of this CPU's cores"):
        load_machine("this-cpu", partitions=2)


def test_a_split_machine_knows_the_unsplit_one():
    whole, halves = load_machine("h100"), load_machine("h100", partitions=2)
    assert (halves.whole, whole.whole) == (whole, None)
    assert (halves.for_devices(["cuda:0"]), halves.for_devices(["cuda:0/0", "cuda:0/1"]), whole.for_devices(["cuda:0"])) == (
        whole, halves, whole,
    )  # fmt: skip
    assert (halves.device("cuda:0").sms, halves.host("cuda:0"), halves.memory("cuda:0")) == (132, whole.hosts[0], whole.memories[0])
    assert halves.with_memory_limit(10**9).whole.memories[0].size_bytes == 10**9


def test_more_devices_than_gpus_are_refused_with_what_has_them():
    assert [device.name for device in load_machine("p100x4", devices=2).devices] == ["cuda:0", "cuda:1"]
    for name, devices, message in (
        (
            "h100",
            2,
            r"machine h100 has 1 GPU; split its GPU with --partition 2, or choose a machine with that many such GPUs \(dgx-h100, 2xh100\)",
        ),
        ("dgx-h100", 9, "machine dgx-h100 has 8 GPUs; choose 1 to 8, or choose another machine"),
        ("8xh100", 9, r"machine 8xh100 has 8 GPUs; choose 1 to 8, or choose another machine"),
    ):
        with refuses(Code.DEVICES, message):
            load_machine(name, devices=devices)


def test_an_unknown_machine_is_refused_with_a_hint():
    for name, meant in (("h10", "h100"), ("H100", "h100"), ("Titan_XP", "titan-xp")):
        with pytest.raises(UnknownNameError, match=rf"unknown machine '{name}' \(did you mean '{meant}'\?\)"):
            load_machine(name)


def test_this_cpu_has_the_cores_that_this_process_may_use():
    machine = this_cpu()
    device = machine.device("cpu:0")
    assert device.sms == available_cores() <= len(os.sched_getaffinity(0))
    assert device.peak_flops["fp32"] == pytest.approx(2 * device.peak_flops["fp64"])
    with refuses(Code.DEVICES, "1000 cores requested; there are"):
        this_cpu(cores=1000)


def test_one_core_draws_the_same_alone_however_many_there_are():
    def alone(cores: int) -> float:
        memory = this_cpu(cores=cores).memories[0]
        return memory.bandwidth_bytes_per_s * min(1.0, 1 / cores / memory.saturation_share)

    assert {round(alone(n)) for n in range(1, available_cores() + 1)} == {20_000_000_000}


def test_hyper_threads_of_one_core_count_once(monkeypatch):
    monkeypatch.setattr(cpu_module, "_read", lambda name: "0,4" if name.startswith(("cpu0/", "cpu4/")) else "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4})
    assert available_cores() == 2


def test_measured_figures_replace_nominal_ones():
    profile = Profile(
        identity=Identity(kind="cpu", cores=1),
        peak_flops={"fp32": 9e10},
        bandwidth_bytes_per_s=3e10,
        dispatch=Dispatch(task_overhead_s=1e-5),
    )
    machine = this_cpu(profile, cores=1)
    assert machine.device("cpu:0").peak_flops["fp32"] == 9e10
    assert machine.memory("cpu:0").bandwidth_bytes_per_s == 3e10
    assert machine.device("cpu:0").task_overhead_s == 1e-5


def test_unreadable_figures_have_defaults(monkeypatch):
    monkeypatch.setattr(cpu_module, "_read", lambda name: "")
    monkeypatch.setattr(cpu_module, "cpu_flags", frozenset)
    monkeypatch.setattr("psutil.cpu_freq", lambda: None)
    assert cpu_module.cache_bytes() == 8 * 2**20
    assert cpu_module.nominal_flops_per_core() == 8 * 2.5e9


def test_every_assumed_figure_has_an_error_and_every_error_a_source():
    numbers = [number for entry in data().hosts.values() for name, number in entry if name != "queue_depth"]
    links = [link for entry in (*data().machines.values(), *data().nodes.values()) for link in entry.links]
    numbers += [number for link in links for number in (link.latency_s, link.bandwidth_bytes_per_s)]
    numbers += [node.latency for node in data().nodes.values()]
    numbers += [value for entry in data().protocols.values() for name, value in entry if name != "form" and value[1]]
    assert {source for _, source in numbers} == set(data().errors)
    assert {source for _, source in data().errors.values()} == set(data().error_sources)
    assert all(0.1 <= error <= 2.0 for error, _ in data().errors.values())


def test_a_host_is_a_choice():
    python, caffe = (load_machine("p100", host=host).hosts[0] for host in ("pytorch", "caffe"))
    assert (python.dispatch_s, python.loop_s) == (1e-5, 3.3e-5)
    assert (caffe.dispatch_s, caffe.loop_s, caffe.errors["dispatch_s"]) == (3e-6, 0.0, 0.4)
    assert load_machine("p100") == load_machine("p100", host="pytorch")
    with pytest.raises(UnknownNameError, match="host 'caff'"):
        load_machine("p100", host="caff")
    with refuses(Code.REQUEST, "the launches of p100 were measured with PyTorch; drop it"):
        load_machine("p100", Profile(identity=Identity(kind="gpu"), dispatch=Dispatch(dispatch_s=1e-5)), host="caffe")


def test_a_preset_knows_how_wrong_its_host_and_its_links_may_be():
    machine = load_machine("p100x4")
    assert machine.hosts[0].errors["dispatch_s"] == 0.4
    assert set(machine.hosts[0].errors) == {field for field, _ in data().hosts["2016"]} - {"queue_depth"}
    (between,) = (link for link in machine.links if (link.source, link.target) == ("cuda:0", "cuda:1"))
    assert (between.latency_error, between.bandwidth_error) == (1.0, 0.55)


def test_an_uncalibrated_cpu_does_not_know_its_overheads():
    assert set(this_cpu(cores=1).devices[0].errors) == {"task_overhead_s", "shared_overhead_s", "wake_s"}
    measured = Profile(identity=Identity(kind="cpu", cores=1), dispatch=Dispatch(task_overhead_s=1e-5))
    assert set(this_cpu(measured, cores=1).devices[0].errors) == {"shared_overhead_s", "wake_s"}


def test_a_network_has_the_rate_that_is_stated_for_each_gpu():
    """Two GPUs of a DGX A100 share two adapters. What lies within a node stays; one node has no network."""
    own, slow = load_machine("16xa100"), load_machine("16xa100").with_network(6.25e9)
    changed = {(a.source, a.target): b.bandwidth_bytes_per_s for a, b in zip(own.links, slow.links, strict=True) if a != b}
    assert changed == {ends: 12.5e9 for number in range(8) for ends in ((f"bridge {number}", "network"), ("network", f"bridge {number}"))}
    assert own.with_network(None) is own
    with refuses(Code.DEVICES, "machine 8xa100 is one node, which has no network between nodes; name several, such as 16xh100"):
        load_machine("8xa100").with_network(6.25e9)
