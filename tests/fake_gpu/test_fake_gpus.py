"""Several simulated GPUs on one clock: what a copy from one to another waits for, and the mistakes that real GPUs do not forgive."""

import pytest
import torch

from executors.cuda.issue import fork, join
from tests.fake_gpu import FakeGpuError, FakeGpus, Times

US = 1e-6
#: Every kernel takes 10 us, except mm, which takes 50 us. A byte from one GPU to another takes a microsecond.
EXACT = Times(
    kernel_s=lambda op, size: 50 * US if op == "aten.mm" else 10 * US, op_s=0.0, record_s=0.0, wait_s=0.0,
    peer_latency_s=4 * US, peer_bytes_per_s=1 / US,
)  # fmt: skip
FIRST, SECOND = torch.device("cpu", 0), torch.device("cpu", 1)


def timeline(gpus) -> list[tuple[str, int, float, float]]:
    """(op, GPU, start, end) of every kernel and copy so far, in microseconds."""
    gpu_of = {stream.index: gpu.number for gpu in gpus for stream in gpu.streams}
    return [(r.op.removeprefix("aten."), gpu_of[r.stream], round(r.start_s / US, 3), round(r.end_s / US, 3)) for r in gpus[0].timeline]


def streams(*gpus):
    """A stream of each, which is the current one there; that of the last is current."""
    opened = [gpu.stream() for gpu in gpus]
    for gpu, stream in zip(gpus, opened, strict=True):
        gpu.use(stream)
    return opened


def test_an_op_runs_on_the_gpu_that_has_its_operands():
    with FakeGpus(2, EXACT) as gpus:
        first, second = torch.ones(4, 4, device=FIRST), torch.ones(4, 4, device=SECOND)
        first.mm(first)
        second.mm(second)
        streams(*gpus)
        torch.ones(4, 4)
    assert timeline(gpus)[-3:] == [("mm", 0, 10, 60), ("mm", 1, 10, 60), ("ones", 1, 0, 10)], "two GPUs work at the same time"


def test_a_copy_runs_on_the_sources_stream_and_both_streams_wait_for_it():
    with FakeGpus(2, EXACT) as gpus:
        x = torch.ones(4, device=FIRST)
        gpus[0].synchronize()
        _, arrival = streams(*gpus)
        torch.ones(4, 4, device=SECOND)
        y = x.to(SECOND, copy=True)
        y.add(1)
        assert gpus[1].memories.find(y).owner == arrival.index, "allocated for the target's current stream"
    assert timeline(gpus)[1:] == [("ones", 1, 10, 20), ("_to_copy", 0, 20, 40), ("add", 1, 40, 50)]


def test_copies_between_two_gpus_take_turns_in_each_direction():
    """Two streams of the first GPU send to the second, and a third one receives: 4 us and a microsecond for each of 16 bytes."""
    with FakeGpus(2, EXACT) as gpus:
        x, y = torch.ones(4, device=FIRST), torch.ones(4, device=SECOND)
        for gpu in gpus:
            gpu.synchronize()
        for source, target in ((x, SECOND), (x, SECOND), (y, FIRST)):
            streams(*gpus)
            source.to(target, copy=True)
        for gpu in gpus:
            gpu.synchronize()
    assert timeline(gpus)[2:] == [("_to_copy", 0, 10, 30), ("_to_copy", 0, 30, 50), ("_to_copy", 1, 10, 30)]


def test_what_is_in_another_gpus_memory_can_only_be_copied():
    with FakeGpus(2) as gpus:
        x, y = torch.ones(4, device=FIRST), torch.ones(4, device=SECOND)
        for op in (lambda: x + y, lambda: x.add_(y), lambda: torch.cat([x, y]), lambda: torch._foreach_add_([x], [y])):
            with pytest.raises(FakeGpuError, match=r"memory of GPUs \[0, 1\], and runs on one: copy it there first"):
                op()
        gpus[0].synchronize()
        assert (x + y.to(FIRST, copy=True)).tolist() == [2.0] * 4


def test_a_missing_event_between_two_gpus_is_a_race():
    """The copy runs on a stream of the first GPU, which does not wait for the stream that writes the source."""

    def copied(waits: bool) -> None:
        with FakeGpus(2, EXACT) as gpus:
            writes, sends = gpus[0].stream(), gpus[0].stream()
            gpus[0].use(writes)
            x = torch.ones(4, device=FIRST)
            if waits:
                event = gpus[0].event()
                event.record(writes)
                sends.wait_event(event)
            gpus[0].use(sends)
            x.to(SECOND, copy=True)
            for gpu in gpus:
                gpu.synchronize()

    copied(waits=True)
    with pytest.raises(AssertionError, match=r"read after write: aten\.ones on stream 2, aten\._to_copy on stream 3"):
        copied(waits=False)


def test_a_block_that_another_gpu_still_reads_must_not_be_freed():
    """The copy reads memory of the stream `computes` on a stream that it does not wait for, so a later tensor could replace it."""

    def sent(waits: bool) -> None:
        with FakeGpus(2, EXACT) as gpus:
            computes, sends = gpus[0].stream(), gpus[0].stream()
            gpus[0].use(computes)
            x = torch.ones(4, device=FIRST)
            gpus[0].synchronize()
            gpus[0].use(sends)
            x.to(SECOND, copy=True)
            if waits:
                event = gpus[0].event()
                event.record(sends)
                computes.wait_event(event)
            del x

    sent(waits=True)
    with pytest.raises(AssertionError, match=r"reuse: aten\._to_copy on stream 3, released on stream 2"):
        sent(waits=False)


def test_a_block_that_arrived_belongs_to_the_stream_that_was_current_on_the_target():
    """Another stream of the target reads it, and the owner does not wait for that stream."""
    with pytest.raises(AssertionError, match=r"reuse: aten\.add on stream 4, released on stream 3"), FakeGpus(2, EXACT) as gpus:  # noqa: PT012
        _, arrives = streams(*gpus)
        y = torch.ones(4, device=FIRST).to(SECOND, copy=True)
        reads, event = gpus[1].stream(), gpus[1].event()
        event.record(arrives)
        reads.wait_event(event)
        gpus[1].use(reads)
        y.add(1)
        del y


@pytest.mark.parametrize("named", [True, False])
def test_a_graph_has_streams_of_the_gpus_that_its_capture_names(named):
    """The allocator keeps what is allocated in a capture for the graph, on these GPUs only."""

    def captured(gpus) -> None:
        first, second = streams(*gpus)
        x = torch.ones(4, device=FIRST)
        gpus[0].synchronize()
        with gpus[0].capture(first, gpus[1:] if named else ()) as graph:
            fork(gpus[0], first, [second])
            gpus[0].use(first)
            y = x.to(SECOND, copy=True)
            join(gpus[0], [second], first)
        graph.replay()
        for gpu in gpus:
            gpu.synchronize()
        assert y.to("cpu", copy=True).tolist() == [1.0] * 4

    with FakeGpus(2) as gpus:
        if named:
            captured(gpus)
        else:
            with pytest.raises(FakeGpuError, match="stream 3 is of a GPU whose allocations the graph does not keep"):
                captured(gpus)


def test_the_clocks_of_two_gpus_differ():
    with FakeGpus(2) as gpus:
        first, second = (gpu.event(timing=True) for gpu in gpus)
        for event, stream in zip((first, second), streams(*gpus), strict=True):
            event.record(stream)
            gpus[0].synchronize()
        with pytest.raises(FakeGpuError, match="events of two GPUs"):
            first.elapsed_time(second)
        with pytest.raises(FakeGpuError, match="an event of cpu:0 is recorded on a stream of cpu:1"):
            first.record(gpus[1].stream())


def test_every_gpu_has_its_own_memory():
    with FakeGpus(2) as gpus:
        x = torch.ones(100, device=FIRST)
        y = x.to(SECOND, copy=True)
        assert [gpu.allocated_bytes() for gpu in gpus] == [400, 400]
        gpus[0].synchronize()
        z = y.to("cpu", copy=True)
        del x, y
        assert [gpu.allocated_bytes() for gpu in gpus] == [0, 0]
        assert [gpu.peak_bytes() for gpu in gpus] == [400, 400]
        assert (z + z).sum() == 200.0, "an op of the host"
        assert len(timeline(gpus)) == 3
