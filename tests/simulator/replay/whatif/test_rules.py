"""What-if rules on recordings small enough to work out by hand."""

from dataclasses import replace

import pytest

from simulator.replay.replay import RecordedStep, simulated_times
from simulator.replay.whatif import optimizer
from simulator.replay.whatif.edit import device_work, with_tasks
from simulator.replay.whatif.matching import kernel_classes
from simulator.replay.whatif.registry import apply_rules, parse, rules
from tests.support.refusals import refuses
from tests.support.small_replays import host, kernel, launched, random_recording, recording, rows
from traces.errors import Code, SchedcastError


def changed(replay, *texts):
    return rows(apply_rules(replay, texts)[0])


def device_rows(replay, *texts):
    """Without host threads."""
    kernels = {task.name for task in apply_rules(replay, texts)[0].plan.tasks if task.body.kind != "host"}
    return [row for row in changed(replay, *texts) if row[0] in kernels]


@pytest.fixture
def whole_seconds(monkeypatch):
    """Set the least time of a kernel to half a second, so that sums are exact."""
    monkeypatch.setattr(optimizer, "LEAST_KERNEL_S", 0.5)


PLAIN = recording(
    launched("gemm", 4.0), launched("relu", 2.0), launched("gemm2", 4.0), steps=(RecordedStep("step 0", "gemm", "gemm2", 11.0),)
)


def test_without_rules_nothing_changes():
    assert apply_rules(PLAIN, []) == (PLAIN, [])
    assert rows(PLAIN) == [
        ("l.gemm", 0.0, 1.0), ("gemm", 1.0, 5.0), ("l.relu", 1.0, 2.0), ("l.gemm2", 2.0, 3.0), ("relu", 5.0, 7.0),
        ("gemm2", 7.0, 11.0),
    ]  # fmt: skip


def test_kernels_scale_by_name():
    assert device_rows(PLAIN, "kernel:gemm*=0.5") == [("gemm", 1.0, 3.0), ("relu", 3.0, 5.0), ("gemm2", 5.0, 7.0)]
    assert device_rows(PLAIN, "kernel:^gemm$*=2") == [("gemm", 1.0, 9.0), ("relu", 9.0, 11.0), ("gemm2", 11.0, 15.0)]
    assert device_rows(PLAIN, "kernel:gem*=0") == [("gemm", 1.0, 1.0), ("relu", 2.0, 4.0), ("gemm2", 4.0, 4.0)]


def test_a_short_name_alone_is_that_of_no_other_kernel():
    names = ("void my::tile<4>(int)", "tile_swiglu", "void other<my::tile>(int)")
    replay = recording(*(launched(f"k{number}", 4.0, called=name) for number, name in enumerate(names)))
    assert device_rows(replay, "kernel:/^tile$/ 2x faster") == [("k0", 1.0, 3.0), ("k1", 3.0, 7.0), ("k2", 7.0, 11.0)]
    assert [(each.name, each.pattern, each.seconds) for each in kernel_classes(device_work(replay))] == [
        ("tile", "^tile$", 4.0), ("tile_swiglu", "^tile_swiglu$", 4.0), ("other", "^other$", 4.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("larger_is_faster", "older"),
    [
        ("kernel:/gemm/ 2x faster", "kernel:gemm*=0.5"),
        ("kernel:/gemm/ 1.5x slower", "kernel:/gemm/*=1.5"),
        ("kernel:gemm|relu 4x faster", "kernel:gemm|relu*=0.25"),
        ("kernel:/^a/b$/ 2x faster", "kernel:^a/b$*=0.5"),
        ("kernel:/gemm/ free", "kernel:gemm*=0"),
        ("host 2x faster", "host*=0.5"),
        ("host free", "host*=0"),
        ("network 2x faster", "network*=2"),
        (" network 2X FASTER ", "network*=2"),
        ("network 4x slower", "network*=0.25"),
        ("remove:/relu/", "remove:relu"),
        ("priority:/b/=-1", "priority:b=-1"),
    ],
)
def test_speeds_are_factors_and_the_older_form_scales_durations(larger_is_faster, older):
    assert parse(larger_is_faster) == parse(older)


def test_host_scales_with_its_gaps_but_not_the_waiting():
    replay = recording(launched("a", 4.0), host("gap", 2.0, label="gap"), host("sync", 0.5, after="a"), launched("b", 1.0))
    assert rows(replay)[2:] == [("gap", 1.0, 3.0), ("sync", 5.0, 5.5), ("l.b", 5.5, 6.5), ("b", 6.5, 7.5)]
    assert changed(replay, "host*=0.5") == [
        ("l.a", 0.0, 0.5), ("a", 0.5, 4.5), ("gap", 0.5, 1.5), ("sync", 4.5, 4.75), ("l.b", 4.75, 5.25), ("b", 5.25, 6.25),
    ]  # fmt: skip


def test_removed_kernels_take_their_launches_along():
    edited, assumed = apply_rules(PLAIN, ["remove:relu"])
    assert rows(edited) == [("l.gemm", 0.0, 1.0), ("gemm", 1.0, 5.0), ("l.gemm2", 1.0, 2.0), ("gemm2", 5.0, 9.0)]
    assert assumed[0].startswith("1 kernel (2000 ms) matching 'relu' do not run, nor do 1 launches")


def test_dependents_of_removed_kernels_inherit_what_those_waited_for():
    replay = recording(
        launched("a", 5.0),
        launched("x", 2.0, after="a", stream=8),  # waits for the other stream
        launched("y", 1.0, stream=8),  # after it in its stream
        host("sync", 0.5, after="x"),
        launched("z", 1.0, after="x", stream=9),
    )
    assert device_rows(replay) == [("a", 1.0, 6.0), ("x", 6.0, 8.0), ("y", 8.0, 9.0), ("z", 9.5, 10.5)]
    edited = apply_rules(replay, ["remove:x"])[0]
    assert rows(edited) == [
        ("l.a", 0.0, 1.0), ("a", 1.0, 6.0), ("l.y", 1.0, 2.0), ("y", 6.0, 7.0), ("sync", 6.0, 6.5), ("l.z", 6.5, 7.5),
        ("z", 7.5, 8.5),
    ]  # fmt: skip


def test_a_sync_behind_a_removed_kernel_waits_for_the_kernel_before_it_in_the_stream():
    replay = recording(launched("a", 5.0), launched("b", 1.0), launched("c", 1.0), host("sync", 1.0, after="c"))
    assert changed(replay, "remove:b|c") == [("l.a", 0.0, 1.0), ("a", 1.0, 6.0), ("sync", 6.0, 7.0)]


def test_a_launch_of_several_kernels_stays_while_one_of_them_does():
    replay = recording(host("graph", 1.0), kernel("a", 1.0, after="graph"), kernel("b", 1.0, after="graph"))
    assert changed(replay, "remove:a") == [("graph", 0.0, 1.0), ("b", 1.0, 2.0)]


def test_steps_end_with_what_is_left_of_them():
    steps = (RecordedStep("s0", "a", "b", 2.0), RecordedStep("s1", "c", "d", 2.0), RecordedStep("s2", "e", "e", 1.0))
    replay = recording(*(launched(name, 1.0) for name in "abcde"), steps=steps)
    edited = apply_rules(replay, ["remove:a|d|e"])[0]
    assert edited.steps == (RecordedStep("s0", "b", "b", 2.0), RecordedStep("s1", "c", "c", 2.0))


def test_a_faster_network_shortens_collectives_alone():
    replay = recording(launched("a", 1.0), launched("ncclAllReduce", 8.0, category="collective", stream=20), launched("b", 1.0))
    edited, assumed = apply_rules(replay, ["network*=2"])
    assert [row for row in rows(edited) if row[0] == "ncclAllReduce"] == [("ncclAllReduce", 2.0, 6.0)]
    assert "waiting for the others" in assumed[0]
    with refuses(Code.REQUEST):
        apply_rules(PLAIN, ["network*=2"])


def for_loop(layer="Optimizer.step#Adam.step"):
    """A step whose update is six kernels for two parameters."""
    names = [("f", "gemm", "forward"), ("b2", "gemm", "backward"), ("b1", "gemm", "backward")]
    work = [launched(name, 4.0, called=called, phase=phase) for name, called, phase in names]
    update = []
    for number, called in enumerate(("mul", "add", "div") * 2):
        more = {"called": f"elementwise_kernel<{called}>", "phase": "update", "layer": layer}
        update += [host(f"gap{number}", 0.5, label="gap"), *launched(f"u{number}", 1.0, **more)]
    return recording(*work, update, host("end", 0.25, after="u5"), steps=(RecordedStep("s0", "f", "u5", 18.0),))


def test_merged_updates_move_the_same_bytes_in_fewer_kernels(whole_seconds, monkeypatch):
    monkeypatch.setitem(optimizer._LAUNCHES, "foreach", 3)
    replay = for_loop(layer="")
    assert device_rows(replay)[2:] == [("b1", 9.0, 13.0), *((f"u{n}", 13.0 + n, 14.0 + n) for n in range(6))]
    edited, assumed = apply_rules(replay, ["optimizer=foreach"])
    assert rows(edited) == [
        ("l.f", 0.0, 1.0),
        ("f", 1.0, 5.0),
        ("l.b2", 1.0, 2.0),
        ("l.b1", 2.0, 3.0),
        ("gap0", 3.0, 3.5),
        ("l.u1", 3.5, 4.5),
        ("gap2", 4.5, 5.0),
        ("b2", 5.0, 9.0),
        ("l.u3", 5.0, 6.0),
        ("gap4", 6.0, 6.5),
        ("l.u5", 6.5, 7.5),
        ("b1", 9.0, 13.0),
        ("u1", 13.0, 14.5),  # half a second of least time, and twice half a second of moving
        ("u3", 14.5, 16.0),
        ("u5", 16.0, 17.5),
        ("end", 17.5, 17.75),
    ]
    assert edited.steps == replay.steps
    assert "6 kernels in 1 runs become 3" in assumed[0]


def test_the_fused_form_moves_fewer_bytes(whole_seconds):
    edited, assumed = apply_rules(for_loop(), ["optimizer=fused"])
    moving_s = 3 * 0.5 * (7 / 21)  # fused Adam touches 7 tensors of a parameter's size, the other forms 21
    assert rows(edited)[-3:] == [("u2", 13.0, 13.5 + moving_s), ("u5", 13.5 + moving_s, 14.0 + 2 * moving_s), ("end", 15.0, 15.25)]
    assert "0.33 of the bytes" in assumed[1]


def test_an_update_is_known_by_annotation_by_name_or_behind_backward(whole_seconds):
    for_names = for_loop(layer="")
    plain = with_tasks(for_names, _without_updates(for_names))
    assert device_rows(plain, "optimizer=fused")[2:] == [("b1", 9.0, 13.0), ("u5", 13.0, 16.5)]
    with refuses(Code.REQUEST):
        apply_rules(PLAIN, ["optimizer=fused"])
    foreach = recording(launched("u0", 1.0, called="multi_tensor_apply_kernel"), launched("u1", 1.0, called="multi_tensor_apply_kernel"))
    assert device_rows(foreach, "optimizer=fused") == [("u1", 1.0, 2.5)]
    with refuses(Code.REQUEST):
        apply_rules(foreach, ["optimizer=foreach"])


def test_backward_is_known_by_autograds_thread_or_by_name():
    replay = recording(
        launched("f", 2.0),
        launched("g", 2.0, thread=1),
        launched("u", 1.0, called="multi_tensor_apply"),
        launched("next", 2.0),
    )
    assert device_rows(replay, "backward-fusion=1")[-2:] == [("u fused 0.0", 5.0, 6.0), ("next", 6.0, 8.0)]
    named = recording(launched("f", 2.0), launched("wgrad", 2.0), launched("h", 1.0), launched("u", 1.0, called="adam"))
    assert device_rows(named, "backward-fusion") == [("f", 1.0, 3.0), ("wgrad", 3.0, 5.0), ("u fused", 5.0, 6.0), ("h", 6.0, 7.0)]


def _without_updates(replay):
    return tuple(replace(task, phase="forward") if task.phase == "update" else task for task in replay.plan.tasks)


def test_a_run_of_updates_ends_where_something_waits_for_it(whole_seconds):
    more = {"called": "elementwise", "phase": "update"}
    replay = recording(launched("u0", 1.0, **more), host("item", 1.0, after="u0"), launched("u1", 1.0, **more), launched("u2", 1.0, **more))
    assert changed(replay, "optimizer=fused") == [
        ("l.u0", 0.0, 1.0), ("u0", 1.0, 2.0), ("item", 2.0, 3.0), ("l.u2", 3.0, 4.0), ("u2", 4.0, 5.5),
    ]  # fmt: skip


def test_backward_fusion_updates_behind_each_gradient():
    edited, assumed = apply_rules(for_loop(), ["backward-fusion"])
    assert rows(edited) == [
        ("l.f", 0.0, 1.0),
        ("f", 1.0, 5.0),
        ("l.b2", 1.0, 2.0),
        ("gap3 fused", 2.0, 2.5),  # the second parameter's gradient is the first
        ("l.u3 fused", 2.5, 3.5),
        ("gap4 fused", 3.5, 4.0),
        ("l.u4 fused", 4.0, 5.0),
        ("gap5 fused", 5.0, 5.5),
        ("b2", 5.0, 9.0),
        ("l.u5 fused", 5.5, 6.5),
        ("l.b1", 6.5, 7.5),
        ("l.u0 fused", 7.5, 8.5),
        ("gap1 fused", 8.5, 9.0),
        ("u3 fused", 9.0, 10.0),
        ("l.u1 fused", 9.0, 10.0),
        ("u4 fused", 10.0, 11.0),
        ("gap2 fused", 10.0, 10.5),
        ("l.u2 fused", 10.5, 11.5),
        ("u5 fused", 11.0, 12.0),
        ("gap0", 11.5, 12.0),
        ("b1", 12.0, 16.0),
        ("u0 fused", 16.0, 17.0),
        ("u1 fused", 17.0, 18.0),
        ("u2 fused", 18.0, 19.0),
        ("end", 19.0, 19.25),
    ]
    assert edited.steps == (RecordedStep("s0", "f", "u2 fused", 18.0),)
    assert "in 2 pieces" in assumed[0]


def test_backward_fusion_waits_for_the_collective_and_hides_behind_it(whole_seconds):
    more = {"category": "collective", "stream": 20}
    replay = recording(
        launched("b2", 4.0, phase="backward", launch_s=0.5),
        launched("ncclAllReduce2", 4.0, after="b2", launch_s=0.5, **more),
        launched("b1", 8.0, phase="backward", launch_s=0.5),
        launched("ncclAllReduce1", 4.0, after="b1", launch_s=0.5, **more),
        launched("u", 5.5, called="multi_tensor_apply", phase="update", after="ncclAllReduce1", launch_s=0.5),
        launched("next", 1.0, launch_s=0.5),
    )
    assert device_rows(replay)[-2:] == [("u", 16.5, 22.0), ("next", 22.0, 23.0)]
    edited, assumed = apply_rules(replay, ["backward-fusion=2"])
    kernels = [row for row in rows(edited) if not row[0].startswith("l")]
    assert kernels == [
        ("b2", 0.5, 4.5), ("ncclAllReduce2", 4.5, 8.5), ("b1", 4.5, 12.5), ("u fused 1.0", 8.5, 11.5),
        ("ncclAllReduce1", 12.5, 16.5), ("u fused 0.0", 16.5, 19.5), ("next", 19.5, 20.5),
    ]  # fmt: skip
    assert "collective that reduces them" in assumed[0]
    assert "cut into 2 pieces" in assumed[-2]


def test_the_pieces_of_an_update_share_its_python_time(whole_seconds):
    """An update of three kernels after 6 s of Python is cut into four pieces; their launches take as long as others, not as these did."""
    update = {"called": "multi_tensor_apply", "phase": "update"}
    replay = recording(
        [each for number in range(5) for each in launched(f"b{number}", 1.0, phase="backward", launch_s=0.5)],
        launched("u0", 1.0, launch_s=0.5, **update),
        host("lists", 6.0, label="gap"),
        launched("u1", 1.0, launch_s=2.0, **update),
    )
    edited, _ = apply_rules(replay, ["backward-fusion=4"])
    hosts = {task.name: task.body.duration_s for task in edited.plan.tasks if task.body.kind == "host" and "fused" in task.name}
    assert list(hosts.values()).count(0.5) == 4
    assert sum(seconds for name, seconds in hosts.items() if name.startswith("Python")) == 6.0


def test_backward_fusion_needs_backward():
    with refuses(Code.REQUEST):
        apply_rules(recording(launched("a", 1.0), launched("u", 1.0, phase="update")), ["backward-fusion"])


def test_a_cuda_graph_launches_a_step_at_once(monkeypatch):
    from simulator.replay.whatif import cuda_graph

    monkeypatch.setattr(cuda_graph, "LAUNCH_S", 0.25)
    replay = recording(
        host("data0", 2.0, label="gap"),
        launched("a0", 1.0),
        host("python0", 3.0, label="gap"),
        launched("b0", 1.0),
        host("item0", 0.5, after="b0"),
        host("data1", 2.0, label="gap"),
        launched("a1", 1.0),
        launched("b1", 1.0, thread=1, after="a1"),
        launched("c1", 1.0, stream=8, after="b1"),
        steps=(RecordedStep("s0", "a0", "b0", 6.0), RecordedStep("s1", "a1", "c1", 3.0)),
    )
    edited, assumed = apply_rules(replay, ["cuda-graph"])
    assert rows(edited) == [
        ("data0", 0.0, 2.0), ("graph launch 0", 2.0, 2.25), ("a0", 2.25, 3.25), ("b0", 3.25, 4.25), ("item0", 4.25, 4.75),
        ("data1", 4.75, 6.75), ("graph launch 1", 6.75, 7.0), ("a1", 7.0, 8.0), ("b1", 8.0, 9.0), ("c1", 9.0, 10.0),
    ]  # fmt: skip
    assert assumed[0].startswith("5 launches become 2")
    assert assumed[1].startswith("1 synchronizations stay")
    with refuses(Code.REQUEST):
        apply_rules(edited, ["cuda-graph"])


def test_a_synchronization_between_kernels_ends_a_graph(monkeypatch):
    from simulator.replay.whatif import cuda_graph

    monkeypatch.setattr(cuda_graph, "LAUNCH_S", 0.25)
    item = [host("item", 0.5, after="b"), host("python", 3.0, label="gap")]
    replay = recording(launched("a", 1.0), launched("b", 1.0), *item, launched("c", 1.0), launched("d", 1.0))
    assert changed(replay, "cuda-graph") == [
        ("graph launch 0", 0.0, 0.25), ("a", 0.25, 1.25), ("b", 1.25, 2.25), ("item", 2.25, 2.75), ("python", 2.75, 5.75),
        ("graph launch 1", 5.75, 6.0), ("c", 6.0, 7.0), ("d", 7.0, 8.0),
    ]  # fmt: skip
    with refuses(Code.REQUEST, "no step of the recording has two launches without a synchronization between them"):
        apply_rules(recording(launched("a", 1.0), host("item", 0.5, after="a"), launched("b", 1.0)), ["cuda-graph"])


def test_each_device_has_its_own_graph(monkeypatch):
    from simulator.replay.whatif import cuda_graph

    monkeypatch.setattr(cuda_graph, "LAUNCH_S", 0.25)
    ranks = [launched(f"{name}{rank}", 1.0, thread=rank, device=f"cuda:{rank}") for name in "ab" for rank in range(2)]
    assert changed(recording(*ranks), "cuda-graph") == [
        ("graph launch 0", 0.0, 0.25), ("graph launch 1", 0.0, 0.25), ("a0", 0.25, 1.25), ("a1", 0.25, 1.25), ("b0", 1.25, 2.25),
        ("b1", 1.25, 2.25),
    ]  # fmt: skip


def test_updates_in_a_graph_move_without_their_launch():
    graph = [kernel("f", 1.0, after="graph"), kernel("wgrad", 1.0, after="graph"), kernel("h", 1.0, after="graph")]
    updates = [kernel("u0", 2.0, called="sgd_", after="graph"), kernel("u1", 3.0, called="sgd_", after="graph")]
    assert changed(recording(host("graph", 1.0), *graph, *updates), "backward-fusion") == [
        ("graph", 0.0, 1.0), ("f", 1.0, 2.0), ("wgrad", 2.0, 3.0), ("u1 fused", 3.0, 6.0), ("u0 fused", 6.0, 8.0),
        ("h", 8.0, 9.0),
    ]  # fmt: skip


def test_an_urgent_stream_no_longer_shares():
    replay = recording(launched("a", 8.0), launched("b", 4.0, stream=8), launched("c", 1.0, stream=8))
    assert device_rows(replay) == [("a", 1.0, 9.0), ("b", 2.0, 6.0), ("c", 6.0, 7.0)]
    edited, assumed = apply_rules(replay, ["priority:^b=-1"])
    assert device_rows(edited) == [("a", 1.0, 9.0), ("b", 2.0, 4.0), ("c", 4.0, 4.5)]
    assert {task.name: task.priority for task in edited.plan.tasks if task.body.kind != "host"} == {"a": 0, "b": -1, "c": -1}
    assert "recorded durations include contention" in assumed[1]
    assert device_rows(replay, "priority:^b=-1", "priority:a=-2") == [("a", 1.0, 6.5), ("b", 2.0, 4.0), ("c", 4.0, 4.5)]


def test_small_kernels_had_their_sms_already():
    replay = recording(launched("a", 8.0, grid=54), launched("b", 4.0, stream=8, grid=54))
    assert device_rows(replay, "priority:b=-1") == device_rows(replay)
    part = recording(launched("a", 8.0, grid=10**6), launched("b", 5.0, stream=8, grid=27))
    assert device_rows(part, "priority:b=-1") == [("a", 1.0, 9.0), ("b", 2.0, 6.0)]  # both ran at 4/5 of their speed
    with refuses(Code.REQUEST):
        apply_rules(replay, ["priority:.=-1"])


def test_rules_follow_one_another():
    edited, assumed = apply_rules(PLAIN, ["kernel:gemm*=0.5", "remove:relu", "host*=2"])
    assert device_rows(edited) == [("gemm", 2.0, 4.0), ("gemm2", 4.0, 6.0)]
    assert len(assumed) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kernl:x*=2", "unknown what-if rule 'kernl:x*=2' (did you mean 'kernel'?); expected one of: backward-fusion"),
        ("", "unknown what-if rule ''; expected one of"),
        ("kernel:x", "it has no speed such as 2x faster, 1.5x slower or free; expected kernel:/REGEX/ 2x faster"),
        ("kernel:*=2", "expected kernel:/REGEX/ 2x faster"),
        ("kernel:/x/", "it has no speed"),
        ("kernel:/x 2x faster", "no slash at the end"),
        ("kernel:// 2x faster", "it has no regular expression"),
        ("kernel:/x/ 2x better", "'2x better' is not a speed"),
        ("kernel:/x/ fastx faster", "'fast' is not a finite number"),
        ("kernel:/x/ 0.5x faster", "below 1; write 2x slower if that is meant"),
        ("kernel:/x/ -2x faster", "out of range"),
        ("host 1e400x faster", "'1e400' is not a finite number"),
        ("network 0x slower", "out of range"),
        ("kernel:x*=fast", "'fast' is not a finite number"),
        ("kernel:x*=nan", "'nan' is not a finite number"),
        ("kernel:x*=-1", "out of range"),
        ("host*=inf", "'inf' is not a finite number"),
        ("host", "it has no speed such as 2x faster, 1.5x slower or free; expected host 2x faster"),
        ("network*=0", "out of range"),
        ("remove:", "it has no regular expression"),
        ("optimizer=sparse", "it does not name a form; expected optimizer=foreach|fused|free"),
        ("backward-fusion=0", "not a number of layers"),
        ("cuda-graph=2", "'=2' follows the name"),
        ("priority:x=1", "'1' is not a priority from -5 to -1"),
        ("kernel:(x*=2", "'(x' is not a regular expression (missing )"),
        ("remove:nothing_like_it", "no kernel matches 'nothing_like_it', of 3 names in the recording; the largest are: gemm"),
        ("remove:.", "leaves nothing"),
        ("remove:" + "x" * 400, "has 400 characters; expected at most 300"),
    ],
)
def test_a_mistake_is_one_line(text, said):
    with refuses(Code.REQUEST) as error:
        apply_rules(PLAIN, [text])
    assert said in str(error.value)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rule", ["remove:/(a+)+$/", "kernel:/(a+)+$/ 2x faster", "kernel:(a|aa)+$*=0.5", "priority:/([a-z]*)*$/=-1"])
def test_a_hostile_regular_expression_is_stopped(rule):
    """Backtracking over these names would take years. The search gets a second of processor time."""
    replay = recording(launched("a", 1.0, called="a" * 60 + "!"))
    with refuses(Code.REQUEST, "takes too long on the kernel names; write a simpler one"):
        apply_rules(replay, [rule])


def test_a_regular_expression_too_large_for_memory_is_stopped():
    with refuses(Code.REQUEST):
        apply_rules(PLAIN, ["remove:/" + "(" * 4 + "a" + "{1,9999}){1,9999}" * 4 + "/"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(12))
def test_whatever_rules_do_the_plan_stays_sound(seed):
    replay = random_recording(seed)
    texts = ["kernel:gemm*=0.5", "host*=0.5", "network*=2", "remove:elementwise", "optimizer=foreach", "optimizer=fused"]
    for text in [*texts, "backward-fusion", "backward-fusion=3", "cuda-graph", "priority:nccl=-1", "priority:gemm=-2"]:
        try:
            edited, assumed = apply_rules(replay, [text])
        except SchedcastError:
            continue  # the recording has nothing that the rule could change
        rows(edited)  # validates the plan and simulates it to its end
        order = [task.name for task in edited.plan.tasks]
        assert assumed
        assert all(order.index(step.first_task) <= order.index(step.last_task) for step in edited.steps)


@pytest.mark.parametrize("seed", range(6))
def test_larger_is_faster(seed):
    """Without contention, nothing ends later when something takes less time."""
    replay = random_recording(seed)
    for what in ("host", "kernel:/./"):
        ends = [
            max(end_s for _, end_s in simulated_times(apply_rules(replay, [f"{what} {speed}"])[0]).values())
            for speed in ("3x slower", "1.5x slower", "1x faster", "2x faster", "10x faster", "free")
        ]
        assert ends == sorted(ends, reverse=True)
        assert ends[0] > ends[-1]


def test_every_rule_says_how_it_is_written():
    assert [rule.form for rule in rules()] == [
        "backward-fusion[=LAYERS]", "cuda-graph", "host 2x faster", "kernel:/REGEX/ 2x faster",
            "loader workers=4|2x faster|free", "network 2x faster",
        "optimizer=foreach|fused|free", "priority:/REGEX/=-1", "remove:/REGEX/",
    ]  # fmt: skip
    assert all(rule.about for rule in rules())


def test_every_rule_says_what_is_built_and_tried_of_it():
    for rule in rules():
        for text in (*rule.built, *rule.tried, *rule.bounds):
            assert parse(text.format(regex="gemm", speed="2x faster"))[0] is rule


def test_a_change_of_durations_shares_the_rows():
    edited = apply_rules(PLAIN, ["kernel:/gemm/ 2x faster"])[0]
    assert edited.rows is PLAIN.rows
    assert [task.body.duration_s for task in edited.tasks] == edited.durations_s == [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]
    assert PLAIN.durations_s == [1.0, 4.0, 1.0, 2.0, 1.0, 4.0]
