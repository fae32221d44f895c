"""Bytes over time. Every value has 400 bytes; names that begin with w are parameters, with x inputs."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from simulator.engine.costs.model import CostModel
from simulator.engine.memory.contents import at_peak, memory_by_kind, peak_words
from simulator.engine.memory.over_time import (
    access_counts,
    carried_bytes,
    memory_over_time,
    peaks,
    summed_over_devices,
    thinned,
    workspace_bytes,
)
from simulator.engine.memory.release import owners
from simulator.engine.simulation import simulate
from simulator.machine.machine import Link
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.bodies.copy import ALIAS, Copy
from simulator.plan.task import GRADIENT, INPUT, OPTIMIZER_STATE, Operand
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from tests.support import mlp
from tests.support.jobs import planned
from tests.support.small_plans import W1, W2, H, X, Y, machine, mm, plan_of
from tests.support.tiny import build, copy, cpu, gpu, task
from traces.documents.timeline import HeldByKind, Holder, Span

# What the library of matrix products keeps allocated for each lane is part of the predicted memory.


SIZE = 32 << 20


def keeping(size: int):
    """A GPU whose lanes keep `size` bytes each."""
    plain = machine()
    return replace(plain, devices=tuple(replace(device, workspace_bytes=size) for device in plain.devices))


def two_lanes():
    return plan_of([mm("first", X, W1, H), mm("second", H, W2, Y, stream=1)], [X, W1, W2, H, Y])


def test_every_lane_with_a_product_keeps_a_workspace():
    assert workspace_bytes(two_lanes(), keeping(SIZE)) == {"cuda:0": 2 * SIZE}
    assert workspace_bytes(two_lanes(), keeping(0)) == {}


def test_the_peak_and_what_it_consists_of_include_them():
    plan = two_lanes()
    with_them, without = (forecast(plan, Target.of(CostModel(m))) for m in (keeping(SIZE), keeping(0)))
    assert with_them.peak_bytes["cuda:0"] == without.peak_bytes["cuda:0"] + 2 * SIZE
    assert with_them.memory_bytes["memory:0"] == without.memory_bytes["memory:0"] + 2 * SIZE
    assert with_them.at_peak[0].bytes == with_them.peak_bytes["cuda:0"]
    assert with_them.at_peak[0].by_kind["scratch"] == 2 * SIZE
    assert "scratch" not in without.at_peak[0].by_kind
    assert set(with_them.timeline.memory_kinds["cuda:0"].held_bytes["scratch"]) == {2 * SIZE}


# Memory under autocast: casts of weights live until backward has read them, and activations have half the size.


def forecast_of(model, batch, precision):
    job, machine = Job(model, batch, precision=precision), load_machine("a100")
    return forecast(planned("baseline", job, machine), Target.of(CostModel(machine)))


def test_the_cast_of_a_weight_is_held_until_the_gradient_by_the_layers_input_is_known():
    plan = forecast_of(f"{mlp.__file__}:wide", 4, "amp").plan
    casts = {task.reads[0].value: task.writes[0] for task in plan.tasks if "_to_copy" in task.name and task.phase == "forward"}
    readers = {name: [task.name for task in plan.tasks if cast.value in {o.value for o in task.reads}] for name, cast in casts.items()}
    assert readers["1.weight"] == ["1/addmm", "1/mm.dX"]
    assert readers["0.weight"] == ["0/addmm"], "nobody asks for the gradient by the model's input"
    assert casts["1.weight"].bytes == 2 * 3 * 5


def test_a_cnn_takes_little_more_than_half_the_memory_besides_its_parameters():
    held = {}
    for precision in ("fp32", "bf16", "amp"):
        predicted = forecast_of("resnet18", 64, precision)
        held[precision] = sum(predicted.memory_bytes.values()) - sum(carried_bytes(predicted.plan).values())
    assert 0.5 * held["fp32"] <= held["bf16"] < held["amp"] < 0.6 * held["fp32"]


def training():
    return build(
        task("f", 1.0, reads="x w", writes="y"),
        task("b", 1.0, reads="x y w", writes="g"),
        task("u", 1.0, reads="g", mutates="w"),
    )


def test_accesses_and_carried_bytes_are_counted():
    plan, _ = training()
    assert access_counts(plan) == {"x": 2, "y": 2, "g": 2}
    assert carried_bytes(plan) == {"d": 400}


def test_activations_live_from_first_write_to_last_read():
    plan, costs = training()
    timeline = simulate(plan, cpu(), costs, iterations=1)
    # w always; x from the start to the end of b; y likewise; g while b and u run.
    assert timeline.memory == {"d": ((0.0, 1200), (1.0, 1600), (2.0, 800), (3.0, 400))}
    assert [(use.name, use.peak_bytes) for use in timeline.devices] == [("d", 1600)]


def test_an_input_is_allocated_before_it_is_read():
    plan, costs = build(task("first", 1.0, reads="x1", writes="y"), task("second", 1.0, reads="x2 y", writes="z"))
    assert simulate(plan, cpu(), costs, iterations=1).memory == {"d": ((0.0, 1200), (1.0, 1200), (2.0, 0))}
    fed_late = build(task("first", 1.0, reads="x1", writes="y"), task("second", 1.0, reads="y", writes="q"), kinds={"q": INPUT})
    assert simulate(fed_late[0], cpu(), fed_late[1], iterations=1).memory["d"][0] == (0.0, 1200)


def test_a_lag_keeps_an_instance_into_the_next_period():
    plan, costs = build(task("u", 1.0, reads="g", mutates="w", lag=1), task("f", 1.0, reads="x w", writes="g"))
    timeline = simulate(plan, cpu(), costs, iterations=2)
    assert [(s.task, s.period, s.iteration) for s in timeline.spans] == [("f", 0, 0), ("u", 1, 0), ("f", 1, 1), ("u", 2, 1)]
    assert timeline.memory == {"d": ((0.0, 1200), (1.0, 800), (2.0, 1200), (3.0, 800), (4.0, 400))}


def test_each_device_holds_its_own_storages():
    plan, costs = build(
        task("f", 1.0, reads="x w", writes="y", on="p"), copy("c", "p", "q", "y", "z"), task("g", 1.0, reads="z", writes="v", on="q")
    )
    timeline = simulate(plan, gpu("p", "q", links=(Link("p", "q", 0.0, 400.0),)), costs, iterations=1)
    assert timeline.memory == {"p": ((0.0, 1200), (1.0, 800), (2.0, 400)), "q": ((0.0, 0), (1.0, 400), (2.0, 800), (3.0, 0))}
    assert peaks(timeline.memory) == {"p": 1200, "q": 800}


def test_on_a_gpu_a_stream_has_memory_again_once_it_is_ordered_after_all_that_read_it():
    """`side` reads `a` on a stream of its own, and the first stream waits for it before `join`, long after `side` has ended."""
    tasks = (
        task("f", 1.0, reads="x", writes="a"), task("side", 1.0, reads="a", writes="b", stream=1), task("g", 3.0, reads="a", writes="c"),
        task("join", 1.0, reads="b c", writes="d"),
    )  # fmt: skip
    plan, costs = build(*tasks)
    timeline = simulate(plan, gpu("d"), costs, iterations=1)
    assert dict(timeline.memory["d"])[4.0] == 1600
    assert dict(memory_over_time(plan, timeline.spans)["d"])[4.0] == 1200, "b, c and d: nobody reads a any more"


def test_an_instance_without_its_last_access_is_not_freed():
    plan, costs = training()
    spans = simulate(plan, cpu(), costs, iterations=1).spans
    assert memory_over_time(plan, spans[:1]) == {"d": ((0.0, 1200),)}
    assert memory_over_time(plan, ()) == {"d": ((0.0, 400),)}


def aliased():
    """The input is on the host; the fetch gives it a second name, which is still read when the first no longer is."""
    fetch = task("fetch", 1.0, reads="x", writes="y", body=Copy("host", "d", means=ALIAS))
    plan, costs = build(fetch, task("f", 1.0, reads="y w", writes="z"), task("g", 1.0, reads="z", writes="v"))
    values = {**plan.values, "x": replace(plan.values["x"], device="host")}
    return replace(plan, values=values, storages={**plan.storages, "x": replace(plan.storages["x"], device="host")}), costs


def test_an_alias_takes_no_memory():
    plan, _ = aliased()
    assert owners(plan) == {"y": "x"}
    spans = [Span(name, "d", "0", float(start), start + 1.0, "forward") for start, name in enumerate(("fetch", "f", "g"))]
    assert memory_over_time(plan, spans) == {
        "d": ((0.0, 400), (1.0, 800), (2.0, 1200), (3.0, 400)),  # w always; z through f and g, v while g runs
        "host": ((0.0, 400), (2.0, 0)),  # until f has read it under its second name
    }


def test_devices_of_one_memory_add_up_moment_by_moment():
    first, second = ((0.0, 100), (1.0, 300), (2.0, 100)), ((0.0, 50), (2.0, 300), (3.0, 50))
    assert summed_over_devices({"a": first, "b": second}) == ((0.0, 150), (1.0, 350), (2.0, 400), (3.0, 150))
    assert sum(peaks({"a": first, "b": second}).values()) == 600, "more than the devices ever hold at once"


def test_thinning_keeps_ends_and_peaks():
    steps = tuple((float(i), 7 * i % 11) for i in range(100))
    few = thinned(steps, 12)
    assert len(few) <= 12
    assert (few[0], few[-1]) == (steps[0], steps[-1])
    assert max(held for _, held in few) == 10
    assert set(few) <= set(steps)
    assert thinned(steps, 100) is steps


def test_bytes_by_kind():
    plan, costs = build(
        task("f", 1.0, reads="x w", writes="y"),
        task("b", 1.0, reads="x y w", writes="g"),
        task("u", 1.0, reads="g", mutates="w m"),
        kinds={"g": GRADIENT, "m": OPTIMIZER_STATE},
    )
    spans = simulate(plan, cpu(), costs, iterations=1).spans
    held = {"parameter": (400, 400, 400), "optimizer-state": (400, 400, 400)}
    held |= {"input": (400, 400, 0), "activation": (400, 400, 0), "gradient": (0, 400, 400)}
    assert memory_by_kind(plan, spans, (0.0, 3.0)) == {"d": HeldByKind((0.0, 1.0, 2.0), held)}
    (highest,) = memory_by_kind(plan, spans, (0.0, 3.0), most=1).values()
    assert highest == HeldByKind((1.0,), {kind: counts[1:2] for kind, counts in held.items()}), "the instant of the peak"
    (late,) = memory_by_kind(plan, spans, (2.5, 3.0)).values()
    assert (late.time_s, late.held_bytes["gradient"], late.held_bytes["input"]) == ((2.5,), (400,), (0,))


def test_contents_of_the_memory_at_its_peak():
    plan, costs = build(
        task("f", 1.0, reads="x w", writes="y"),
        task("b", 1.0, reads="x y w", writes="g"),
        task("u", 1.0, reads="g", mutates="w"),
        lengths={"y": 300},
        kinds={"g": GRADIENT},
    )
    timeline = simulate(plan, cpu(), costs, iterations=1)
    (peak,) = at_peak(plan, timeline)
    assert (peak.device, peak.bytes, peak.time_s, peak.task, peak.layer) == ("d", 2400, 1.0, "b", "b")
    assert list(peak.by_kind.items()) == [("activation", 1200), ("gradient", 400), ("input", 400), ("parameter", 400)]
    assert peak.largest[0] == Holder(storage="y", kind="activation", layer="f", bytes=1200)
    assert [holder.storage for holder in peak.largest] == ["y", "g", "x"]
    assert peak.replicated_bytes == 0
    assert peak_words(peak) == (
        "peak of 2.34 KiB allocated on d at 1000 ms in b forward: activations 1.17 KiB (largest: f 1.17 KiB), gradients 400 B (largest:"
        " b 400 B), inputs 400 B (largest: f 400 B), parameters 400 B"
    )


def test_copies_on_several_devices_are_counted():
    plan, costs = build(
        task("f", 1.0, reads="w1", writes="y", on="p"),
        task("g", 1.0, reads="w2", writes="z", on="q"),
        task("h", 1.0, reads="w3", writes="v", on="q"),
    )
    same = Operand("weight", (100,), (1,), "float32")
    values = {name: replace(v, source=same) if name in ("w1", "w2") else v for name, v in plan.values.items()}
    plan = replace(plan, values=values)
    timeline = simulate(plan, gpu("p", "q"), costs, iterations=1)
    assert [(peak.device, peak.replicated_bytes) for peak in at_peak(plan, timeline)] == [("p", 400), ("q", 400)]


def test_sums_over_kinds_are_the_bytes_held():
    plan, costs = training()
    timeline = simulate(plan, cpu(), costs, iterations=3)
    (by_kind,) = memory_by_kind(plan, timeline.spans, (0.0, 9.0)).values()
    total = [sum(counts) for counts in zip(*by_kind.held_bytes.values(), strict=True)]
    assert list(zip(by_kind.time_s, total, strict=True)) == [step for step in timeline.memory["d"] if step[0] < 9.0]
    (peak,) = at_peak(plan, timeline)
    assert peak.bytes == sum(peak.by_kind.values()) == max(total)


@pytest.mark.thorough
def test_updates_in_backward_save_what_pytorchs_tutorial_measures():
    """ViT-L with one image in fp32 and Adam: about 6 GB, and 4 GB with the optimizer's step fused into backward.

    With more images the peak is the begin of backward, where no gradient is freed. ("How to save memory by fusing the optimizer step into
    the backward pass", PyTorch's tutorials.)
    """
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    target = Target.of(CostModel(load_machine("a100")))

    def peak(images: int, text: str) -> tuple[int, str]:
        forecasted = forecast(planned(text, Job("torchvision:vit_l_16", images, optimizer="adam"), target.machine, target.costs), target)
        return round(max(forecasted.memory_bytes.values()) / 1e9), forecasted.at_peak[0].phase

    assert (peak(1, "baseline"), peak(1, "backward-fusion")) == ((6, "update"), (4, "update"))
    assert peak(8, "baseline") == peak(8, "backward-fusion") == (6, "backward")
