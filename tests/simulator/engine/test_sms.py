"""SMs and bandwidth: which kernels run, how fast, and which yield. Ten SMs by default; a kernel of grid 10 is one full wave."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.costs.cost import Cost
from simulator.engine.kernels import shape_of
from simulator.engine.simulation import simulate
from simulator.machine.machine import SmLimits
from simulator.plan.bodies.host import Host
from tests.support.tiny import build, cpu, gpu, rows, starts, task
from traces.documents.timeline import Cause


def run(*timed, machine=None, **options):
    """The spans of one iteration."""
    plan, costs = build(*timed)
    return rows(simulate(plan, machine or gpu(), costs, iterations=1, **options))


def kernel(name, seconds=1.0, stream=0, grid=10, **more):
    """An independent kernel that computes at the full rate of its SMs."""
    return task(name, seconds, reads="x", writes=name, stream=stream, grid=grid, **{"compute_share": 1.0, **more})


def test_a_shape_counts_waves_and_an_sm_for_every_block_of_a_wave_that_does_not_fill_them():
    assert shape_of(Cost("k", 1, 1, grid=25, blocks_per_sm=1), 10, 0.3)[:3] == (3, 10, 5)
    assert shape_of(Cost("k", 1, 1, grid=25, blocks_per_sm=2), 10, 0.3)[:3] == (2, 10, 5)
    assert shape_of(Cost("k", 1, 1, grid=3, blocks_per_sm=2), 10, 0.3)[:3] == (1, 3, 3)
    assert shape_of(Cost("k", 1, 1, grid=13, blocks_per_sm=2), 10, 0.3)[:3] == (1, 10, 10)
    assert shape_of(Cost("k", 1, 1, grid=20, blocks_per_sm=2), 10, 0.3)[:3] == (1, 10, 10)


def test_kernels_that_share_sms_count_places_for_blocks():
    assert shape_of(Cost("k", 1, 1, grid=25, blocks_per_sm=2), 10, 0.3, shared=True)[:3] == (2, 10, 3)
    assert shape_of(Cost("k", 1, 1, grid=3, blocks_per_sm=2), 10, 0.3, shared=True)[:3] == (1, 2, 2)


def test_kernels_that_share_sms_share_what_these_compute():
    """Both have their places, but b needs all computing units: while a takes half of them, b is half as fast."""
    plan, costs = build(kernel("a", grid=5, compute_share=0.5), kernel("b", grid=5, stream=1, compute_share=1.0))
    alone, beside = gpu(), gpu()
    beside = replace(beside, devices=(replace(beside.devices[0], sm=SmLimits(2048, 32, 65536, 65536)),))
    assert rows(simulate(plan, alone, costs, iterations=1)) == [("a", 0.0, 1.0), ("b", 0.0, 1.0)]
    assert rows(simulate(plan, beside, costs, iterations=1)) == [("a", 0.0, 1.0), ("b", 0.0, 1.5)]


def test_full_speed_takes_what_compute_or_bandwidth_needs():
    assert shape_of(Cost("k", 1, 1, grid=15, compute_share=0.5), 10, 0.3)[3:5] == (5.0, 3.0)
    assert shape_of(Cost("k", 1, 1, grid=2, compute_share=0.0), 10, 0.3)[3:5] == (2.0, 2.0)


def arriving(name, at_s, seconds=1.0, priority=-1, stream=1, grid=10, **more):
    """Two tasks: one that takes time but no SMs, then a kernel that arrives at `at_s`."""
    later = task(f"until {name}", reads="x", writes=f"{name}?", stream=stream, body=Host(at_s))
    more = {"compute_share": 1.0, **more}
    return later, task(name, seconds, reads=f"{name}?", writes=name, stream=stream, priority=priority, grid=grid, **more)


def kernels(spans):
    """The rows of kernels, without the tasks before their arrivals."""
    return [row for row in spans if not row[0].startswith("until")]


def streaming(name, share, stream, seconds=1.0, **more):
    """A kernel that draws `share` of the bandwidth with two of ten SMs."""
    return kernel(name, seconds, stream, grid=2, compute_share=0.0, memory_share=share, **more)


EXAMPLES = {
    "two full kernels are serial": ([kernel("a"), kernel("b", stream=1)], [("a", 0.0, 1.0), ("b", 1.0, 2.0)]),
    "two small kernels run side by side": (
        [kernel("a", grid=4), kernel("b", 2.0, stream=1, grid=6)], [("a", 0.0, 1.0), ("b", 0.0, 2.0)],
    ),
    # b has 4 of the 10 SMs it needs until a ends, so 0.4 of its work is done at 1.0; then it runs at full speed.
    "the second kernel gets what the first leaves": ([kernel("a", grid=6), kernel("b", stream=1)], [("a", 0.0, 1.0), ("b", 0.0, 1.6)]),
    "a kernel that needs few SMs for its speed does not suffer": (
        [kernel("a", grid=6), kernel("b", stream=1, compute_share=0.4)], [("a", 0.0, 1.0), ("b", 0.0, 1.0)],
    ),
    # c would fit next to a, but b is first in the queue and takes the last two SMs.
    "only the first in the queue receives SMs": (
        [kernel("a", grid=8), kernel("b", stream=1, grid=4), kernel("c", stream=2, grid=2)],
        [("a", 0.0, 1.0), ("b", 0.0, 1.5), ("c", 1.0, 2.0)],
    ),
    # a: two waves of 1 s on 10 and 5 SMs. b gets 5 SMs at 1.0 and the rest at 2.0.
    "the last wave leaves its surplus": ([kernel("a", 2.0, grid=15), kernel("b", stream=1)], [("a", 0.0, 2.0), ("b", 1.0, 2.5)]),
    # a: four waves of 1 s. u arrives at 1.5, gets all SMs at 2.0, and a goes on at 3.0 where it stopped.
    "a running kernel yields at its next wave border": (
        [kernel("a", 4.0, grid=40), *arriving("u", 1.5)], [("a", 0.0, 5.0), ("u", 2.0, 3.0)],
    ),
    "a kernel that arrives at a border is served at it": (
        [kernel("a", 4.0, grid=40), *arriving("u", 2.0)], [("a", 0.0, 5.0), ("u", 2.0, 3.0)],
    ),
    # a is in its only wave when u arrives; so it ends first.
    "blocks are never preempted": ([kernel("a", 4.0), *arriving("u", 1.5)], [("a", 0.0, 4.0), ("u", 4.0, 5.0)]),
    "equal priority does not yield": (
        [kernel("a", 4.0, grid=40), *arriving("u", 1.5, priority=0)], [("a", 0.0, 4.0), ("u", 4.0, 5.0)],
    ),
    # From 2.0 to 3.0 a keeps 6 of 10 SMs and does 0.6 of a wave.
    "a kernel gives up only the SMs that the urgent one needs": (
        [kernel("a", 4.0, grid=40), *arriving("u", 1.5, grid=4)], [("a", 0.0, 4.4), ("u", 2.0, 3.0)],
    ),
    "two urgent kernels are served at one border in their order": (
        [kernel("a", 2.0, grid=20), *arriving("u", 0.5, grid=4), *arriving("v", 0.25, grid=4, stream=2, priority=-2)],
        [("a", 0.0, 2.8), ("u", 1.0, 2.0), ("v", 1.0, 2.0)],
    ),
    "bandwidth is shared evenly between equal demands": (
        [streaming("a", 1.0, 0), streaming("b", 1.0, 1)], [("a", 0.0, 2.0), ("b", 0.0, 2.0)],
    ),
    # b demands 0.25 and gets it; a gets the other 0.75.
    "a small demand is served in full": ([streaming("a", 1.0, 0, 3.0), streaming("b", 0.25, 1, 4.0)], [("a", 0.0, 4.0), ("b", 0.0, 4.0)]),
    "demands within the bandwidth do not slow each other down": (
        [streaming("a", 0.5, 0), streaming("b", 0.5, 1)], [("a", 0.0, 1.0), ("b", 0.0, 1.0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES)
def test_kernels_run_when_and_as_fast_as(example):
    timed, expected = EXAMPLES[example]
    assert kernels(run(*timed)) == expected


def test_the_most_urgent_waiting_kernel_goes_first_then_the_earliest():
    first = kernel("a", 3.0)
    late = arriving("late", 2.0, priority=0, stream=2), arriving("early", 1.0, priority=0, stream=3), arriving("urgent", 2.5, stream=1)
    spans = kernels(run(first, *(t for pair in late for t in pair)))
    assert spans == [("a", 0.0, 3.0), ("urgent", 3.0, 4.0), ("early", 4.0, 5.0), ("late", 5.0, 6.0)]


def test_waiting_for_sms_is_a_cause():
    plan, costs = build(kernel("a"), kernel("b", stream=1))
    path = simulate(plan, gpu(), costs, iterations=1).critical_path
    assert [(s.task, s.cause) for s in path] == [("a", Cause.START), ("b", Cause.SMS)]


def test_partitions_of_one_gpu_share_its_bandwidth_but_not_its_sms():
    timed = [task("a", 1.0, reads="x", writes="y", on="p0", grid=10, memory_share=1.0)]
    timed += [task("b", 1.0, reads="z", writes="q", on="p1", grid=10, memory_share=1.0)]
    assert run(*timed, machine=gpu("p0", "p1", memory="hbm")) == [("a", 0.0, 2.0), ("b", 0.0, 2.0)]
    assert run(*timed, machine=gpu("p0", "p1")) == [("a", 0.0, 1.0), ("b", 0.0, 1.0)]


def test_pair_multipliers_slow_the_first_class_while_the_second_runs():
    pair = kernel("a", grid=5, op_class="conv"), kernel("b", 3.0, 1, grid=5, op_class="norm")
    assert run(*pair, pair_multipliers={("conv", "norm"): 1.5}) == [("a", 0.0, 1.5), ("b", 0.0, 3.0)]
    assert run(*pair, pair_multipliers={("norm", "conv"): 2.0}) == [("a", 0.0, 1.0), ("b", 0.0, 3.5)]


def test_cores_take_one_task_each():
    timed = [task(name, 1.0, reads="x", writes=name, stream=i) for i, name in enumerate("abc")]
    assert run(*timed, machine=cpu(cores=2)) == [("a", 0.0, 1.0), ("b", 0.0, 1.0), ("c", 1.0, 2.0)]


def test_a_worker_keeps_its_stream_and_takes_what_is_more_urgent_from_others():
    """When a1 ends on the only core, b1 has long been ready. a2 goes first if both are equally urgent, b1 if it is more urgent."""
    timed = [task("a1", 1.0, writes="u"), task("a2", 1.0, reads="u"), task("b1", 1.0, reads="x", stream=1)]
    assert [name for name, *_ in run(*timed, machine=cpu())] == ["a1", "a2", "b1"]
    timed[2] = task("b1", 1.0, reads="u", stream=1, priority=-1)
    assert [name for name, *_ in run(*timed, machine=cpu())] == ["a1", "b1", "a2"]


def test_a_sleeping_worker_must_be_woken():
    """b and c both need a. a's worker goes on with b at once; the other worker, which has slept since the start, is woken for c."""
    machine = cpu(cores=2)
    machine = replace(machine, devices=(replace(machine.devices[0], wake_s=0.25),))
    timed = [task("a", 1.0, reads="x", writes="u"), task("b", 1.0, reads="u", writes="v"), task("c", 1.0, reads="u", stream=1)]
    assert run(*timed, machine=machine)[1:] == [("b", 1.25, 2.25), ("c", 1.5, 2.5)]  # the very first task wakes a worker too


def test_workers_that_call_ops_share_the_interpreter():
    """a and b, with one call each, collide once: 0.5 s each. c's ten calls collide with none of d, which ends before c begins."""
    machine = cpu(cores=2)
    machine = replace(machine, devices=(replace(machine.devices[0], shared_overhead_s=0.5),))
    timed = [task("a", 1.0, reads="x", writes="u"), task("b", 1.0, reads="x", writes="v", stream=1)]
    assert run(*timed, machine=machine) == [("a", 0.0, 1.5), ("b", 0.0, 1.5)]
    timed = [task("d", 1.0, reads="x", writes="u", stream=1), task("c", 1.0, reads="u", calls=10)]
    assert run(*timed, machine=machine) == [("d", 0.0, 1.0), ("c", 1.0, 2.0)]


def test_two_workers_collide_at_the_lower_of_their_call_rates():
    """A task of 8 s with one call collides with short tasks of one call each 1/8 times a second: 1/16 s more per second."""
    machine = cpu(cores=2)
    machine = replace(machine, devices=(replace(machine.devices[0], shared_overhead_s=0.5),))
    timed = [task("long", 8.0, reads="x", writes="u")]
    timed += [task(f"short{i}", 1.0, reads="x", writes=f"s{i}", stream=1) for i in range(8)]
    ends = {name: end for name, _, end in run(*timed, machine=machine)}
    assert ends["long"] == pytest.approx(8.5)
    assert ends["short7"] == pytest.approx(8.5)


KERNELS = st.builds(
    dict,
    seconds=st.floats(1e-9, 1e3),
    grid=st.integers(1, 100),
    blocks_per_sm=st.integers(1, 4),
    compute_share=st.floats(0.0, 1.0),
    memory_share=st.floats(0.0, 1.0),
    priority=st.integers(-2, 0),
)


@given(KERNELS, st.floats(1e-3, 10.0))
def test_alone_a_kernel_takes_its_solo_time_to_the_bit(one, begin):
    # A kernel of another lane makes the device shared; it has ended when this one arrives.
    plan, costs = build(*arriving("k", begin, **one), kernel("other", begin / 2, grid=3))
    spans = {name: (start, end) for name, start, end in rows(simulate(plan, gpu(), costs, iterations=1))}
    assert spans["k"] == (begin, begin + one["seconds"])


@given(st.lists(KERNELS, min_size=1, max_size=6))
def test_kernels_take_no_less_than_the_work_and_no_more_than_the_sum(several):
    plan, costs = build(*(task(f"k{i}", reads="x", writes=f"k{i}", stream=i, **one) for i, one in enumerate(several)))
    timeline = simulate(plan, gpu(), costs, iterations=1)
    seconds = [one["seconds"] for one in several]
    assert timeline.step_s >= max(seconds) * (1 - 1e-9)
    assert timeline.step_s <= sum(seconds) * (1 + 1e-9)
    assert timeline.step_s >= sum(s * one["memory_share"] for s, one in zip(seconds, several, strict=True)) * (1 - 1e-9)


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.1, 5.0), st.floats(0.0, 4.0))
def test_the_urgent_kernel_waits_at_most_for_running_blocks(grid, urgent_grid, seconds, at_s):
    plan, costs = build(kernel("a", seconds, grid=grid), *arriving("u", at_s, grid=urgent_grid))
    begin = starts(simulate(plan, gpu(), costs, iterations=1))["u"][0]
    waves = -(-grid // 10)
    assert begin <= at_s + seconds / waves * (1 + 1e-9)
