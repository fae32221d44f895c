"""The simulated GPU: exact timelines in virtual time, graphs that behave like CUDA's, and detection of races between streams."""

import inspect
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.optim.adam import adam

from executors.cuda import driver
from tests.fake_gpu import FakeEvent, FakeGpu, FakeGpuError, FakeStream, Times
from traces.errors import SchedcastError

US = 1e-6

#: Every kernel takes 10 us, except mm, which takes 50 us.
EXACT = Times(kernel_s=lambda op, size: 50 * US if op == "aten.mm" else 10 * US)


def timeline(gpu: FakeGpu) -> list[tuple[str, int, float, float]]:
    """(op, stream, start, end) of every kernel so far, in microseconds."""
    return [(r.op.removeprefix("aten."), r.stream, round(r.start_s / US, 3), round(r.end_s / US, 3)) for r in gpu.timeline]


@pytest.fixture
def x() -> torch.Tensor:
    """A tensor allocated outside of the simulation."""
    return torch.ones(4, 4)


# Virtual time


def test_a_stream_is_serial_and_the_host_runs_ahead(x):
    with FakeGpu(EXACT) as gpu:
        y = x.mm(x)
        y.t().add_(1)
        assert timeline(gpu) == [("mm", 0, 8, 58), ("add_", 0, 58, 68)]  # the view has no kernel
        assert gpu.now_s() == pytest.approx(17 * US)
        gpu.synchronize()
        assert gpu.now_s() == pytest.approx(68 * US)


def test_small_kernels_are_limited_by_the_host(x):
    with FakeGpu(Times(kernel_s=lambda op, size: 2 * US, op_s_by_name={"aten.neg": 20 * US})) as gpu:
        x.add(1)
        x.neg()
        assert timeline(gpu) == [("add", 0, 8, 10), ("neg", 0, 28, 30)]


def test_two_streams_overlap_unless_an_event_orders_them(x):
    with FakeGpu(EXACT) as gpu:
        first, second, third = gpu.stream(), gpu.stream(), gpu.stream()
        event = gpu.event()
        gpu.use(first)
        y = x.mm(x)
        event.record(first)
        gpu.use(second)
        x.add(1)
        third.wait_event(event)
        gpu.use(third)
        y.add(1)
        assert timeline(gpu) == [("mm", 1, 8, 58), ("add", 2, 17, 27), ("add", 3, 58, 68)]
        gpu.synchronize()


def test_a_full_queue_blocks_the_host(x):
    with FakeGpu(Times(kernel_s=lambda op, size: 100 * US, queue_depth=2)) as gpu:
        for _ in range(4):
            x.add(1)
        assert [start for _, _, start, _ in timeline(gpu)] == [8, 108, 208, 308]
        assert gpu.now_s() == pytest.approx(208 * US)  # the fourth was issued when the second had ended


def test_timing_events(x):
    with FakeGpu(EXACT) as gpu:
        stream = gpu.current
        start, end, plain, unused = gpu.event(True), gpu.event(True), gpu.event(), gpu.event(True)
        start.record(stream)
        x.mm(x)
        end.record(stream)
        plain.record(stream)
        with pytest.raises(FakeGpuError, match="not reached yet"):
            start.elapsed_time(end)
        gpu.synchronize()
        assert start.elapsed_time(end) == pytest.approx(0.058)  # from 1 us, when the host recorded it on an idle stream
        with pytest.raises(FakeGpuError, match="without timing"):
            start.elapsed_time(plain)
        with pytest.raises(FakeGpuError, match="not recorded"):
            start.elapsed_time(unused)


def test_reading_a_scalar_waits_for_its_stream_only(x):
    with FakeGpu(EXACT) as gpu:
        side = gpu.stream()
        gpu.use(side)
        for _ in range(9):
            x.mm(x)
        gpu.use(gpu.streams[0])
        assert x.sum().item() == 16.0
        assert gpu.now_s() < side.tail_s


def test_kernels_slow_down_on_a_partition(x):
    with FakeGpu(Times(least_s=2 * US, kernel_s=lambda op, size: 12 * US)) as gpu:
        (partition, _) = gpu.partitions(2)
        gpu.use(gpu.stream(partition=partition))
        x.add(1)
        start, end = timeline(gpu)[0][2:]
        assert end - start == pytest.approx(2 + 10 * 132 / 64, abs=1e-3)


def test_default_times_count_bytes(x):
    with FakeGpu(Times(bytes_per_s=64 / US, factors={"aten.mul": 3.0})) as gpu:
        x.add(1)
        x.mul(1)
        x.add_(x)
        torch.empty(3)
        lengths = [round(r.end_s - r.start_s, 9) for r in gpu.timeline]
        assert lengths == pytest.approx([4 * US, 8 * US, 5 * US])  # one, one and two reads, and one write each, of 64 bytes


def test_warm_reads_are_cheaper():
    x, y = torch.ones(1000), torch.ones(1 << 20)
    with FakeGpu(Times(bytes_per_s=1e9, least_s=0.0, warm_factor=0.0)) as gpu:
        for tensor in (x, x, y, x):
            tensor.sum()
        lengths = [r.end_s - r.start_s for r in gpu.timeline]
        assert lengths[::3] == pytest.approx([4004e-9] * 2)
        assert lengths[1] == pytest.approx(4e-9)


@pytest.mark.parametrize("in_capture", [False, True])
def test_a_write_that_replaces_one_in_the_cache_is_cheaper(in_capture):
    """A result that is dropped leaves its block to the next one; one that is kept does not."""
    x, kept = torch.ones(1000), []
    with FakeGpu(Times(bytes_per_s=1e9, least_s=0.0, rewrite_factor=0.0)) as gpu:

        def issue():
            for _ in range(2):
                x.neg()
            kept.extend((x.neg(), x.neg()))

        if in_capture:
            with gpu.capture(gpu.stream()) as graph:
                issue()
            graph.replay()
        else:
            issue()
    assert [run.end_s - run.start_s for run in gpu.timeline] == pytest.approx([8e-6, 4e-6, 4e-6, 8e-6])


def test_hot_kernels_slow_down_until_the_gpu_has_cooled():
    x, times = torch.ones(4, 4), Times(kernel_s=lambda op, size: 1e-3, hot=["aten.mm"], cap_after_s=2.9e-3, capped_factor=2.0)
    with FakeGpu(times) as gpu:
        for pause_s in (0, 0, 0, 0, 0, 0, 2e-3, 20e-3):
            gpu.synchronize()
            gpu.clock.spend(pause_s)
            x.mm(x)
    assert [round((run.end_s - run.start_s) * 1e3) for run in gpu.timeline] == [1, 1, 1, 2, 2, 2, 2, 1]


def test_noise_is_seeded(x):
    def lengths(seed: int) -> list[float]:
        with FakeGpu(Times(noise=0.1, noise_seed=seed)) as gpu:
            for _ in range(3):
                x.add(1)
            return [r.end_s - r.start_s for r in gpu.timeline]

    assert lengths(0) == lengths(0) != lengths(1)
    assert len(set(lengths(0))) == 3


def test_copies_over_a_link():
    with FakeGpu() as gpu:
        pinned, pageable = gpu.host_tensor(1 << 20, True), gpu.host_tensor(1 << 20, False)
        target = torch.zeros(1 << 20, dtype=torch.uint8)
        gpu.synchronize()
        begin = gpu.now_s()
        target.copy_(pinned, non_blocking=True)
        assert gpu.now_s() == pytest.approx(begin + 8 * US)
        target.copy_(pageable, non_blocking=True)
        assert gpu.now_s() == pytest.approx(gpu.current.tail_s)
        assert [r.end_s - r.start_s for r in gpu.timeline[-2:]] == pytest.approx([2e-6 + (1 << 20) / rate for rate in (50e9, 10e9)])


def test_the_host_copies_within_its_memory_at_once(x):
    """It waits for no stream and issues nothing. x counts as host memory, because no op of the GPU has allocated it."""
    with FakeGpu() as gpu:
        first, second = (gpu.host_tensor(64, True).view(torch.float32).view(4, 4) for _ in range(2))
        begin = gpu.now_s()
        first.copy_(x)
        second.copy_(first)
        assert gpu.now_s() == pytest.approx(begin + 2 * 64 / gpu.times.host_bytes_per_s)
        assert gpu.timeline == []
        assert second.eq(1).all()


def test_a_host_write_to_memory_that_a_stream_still_reads_is_a_race(x):
    with FakeGpu(races_allowed=True) as gpu:
        pinned = gpu.host_tensor(64, True).view(torch.float32).view(4, 4)
        pinned.copy_(x)
        stream, fetched = gpu.stream(), gpu.event()
        gpu.use(stream)
        pinned.to("cpu", non_blocking=True, copy=True)
        fetched.record(stream)
        pinned.to("cpu", non_blocking=True, copy=True)
        fetched.synchronize()
        pinned.copy_(x)
        assert list(map(str, gpu.races)) == ["write after read: aten._to_copy on stream 1, aten.copy_ by the host"]
        gpu.races.clear()
        gpu.synchronize()
        pinned.copy_(x)
        assert gpu.races == []


def test_kernels_cannot_access_host_memory(x):
    with FakeGpu() as gpu, pytest.raises(FakeGpuError, match=r"aten.add_ on memory of the host"):
        (x + 1).view(torch.uint8).view(-1).add_(gpu.host_tensor(64, True))


# Graphs


def captured(gpu: FakeGpu, body):
    """The graph of `body()` on a stream of its own."""
    stream = gpu.stream()
    with gpu.capture(stream) as graph:
        body()
    gpu.use(stream)
    return graph


def test_a_capture_does_not_execute(x):
    with FakeGpu() as gpu:
        results, ints, empty = [], [], []

        def body() -> None:
            x.add_(1)
            results.append(x * 2)
            ints.append(x.argmax())
            empty.append(torch.empty(3))

        graph = captured(gpu, body)
        assert x.eq(1).all()
        assert results[0].isnan().all()
        assert empty[0].isnan().all()
        assert ints[0].item() == torch.iinfo(torch.int64).max
        address = results[0].data_ptr()
        graph.replay()
        graph.replay()
        assert x.eq(3).all()
        assert results[0].eq(6).all()
        assert results[0].data_ptr() == address
        assert ints[0].item() == 0


def test_host_values_are_fixed_at_capture(x):
    with FakeGpu() as gpu:
        rate = 0.5
        graph = captured(gpu, lambda: x.mul_(rate))
        rate = 0.25
        graph.replay()
        assert x.eq(0.5).all()


def test_every_replay_draws_new_random_numbers(x):
    with FakeGpu() as gpu:
        results = []
        gpu.seed(7)
        graph = captured(gpu, lambda: results.append(torch.rand(5)))
        graph.replay()
        first = results[0].clone()
        graph.replay()
        assert not torch.equal(first, results[0])
        gpu.seed(7)
        graph.replay()
        assert torch.equal(first, results[0])  # the capture itself has not advanced the generator


def test_batch_norm_statistics_are_restored_and_replayed():
    norm, batch = torch.nn.BatchNorm1d(3), torch.randn(5, 3)
    with FakeGpu() as gpu, torch.no_grad():
        graph = captured(gpu, lambda: norm(batch))
        assert norm.running_mean.eq(0).all()
        graph.replay()
        assert torch.allclose(norm.running_mean, 0.1 * batch.mean(0))


def test_views_and_several_results(x):
    with FakeGpu() as gpu:
        results = []
        graph = captured(gpu, lambda: results.extend(x.t()[1:].reshape(-1).max(0)))
        x.copy_(torch.arange(16.0).view(4, 4))
        graph.replay()
        assert results[0].item() == 15


def test_timeline_of_a_replay(x):
    with FakeGpu(EXACT) as gpu:
        main, side = gpu.stream(), gpu.stream()
        fork, join = gpu.event(), gpu.event()
        with gpu.capture(main) as graph:
            y = x.mm(x)
            fork.record(main)
            side.wait_event(fork)
            gpu.use(side)
            y.add(1)
            join.record(side)
            gpu.use(main)
            y.mul(2)
            main.wait_event(join)
            y.sub_(1)
        assert timeline(gpu) == []
        begin = gpu.now_s()
        gpu.use(main)
        graph.replay()
        t = round(begin / US) + 10
        nodes = [("mm", 1, 0, 50), ("add", 2, 52.5, 62.5), ("mul", 1, 51, 61), ("sub_", 1, 65, 75)]
        assert timeline(gpu) == [(op, stream, t + start, t + end) for op, stream, start, end in nodes]
        assert gpu.now_s() == pytest.approx(begin + 10 * US)
        other = gpu.stream()
        gpu.use(other)
        graph.replay()  # the same graph never overlaps itself
        gpu.use(main)
        x.neg()
        assert timeline(gpu)[4] == ("mm", 1, t + 75, t + 125)
        assert timeline(gpu)[8] == ("neg", 1, t + 75, t + 85)
        gpu.synchronize()


def test_external_events_are_reached_in_every_replay(x):
    with FakeGpu(EXACT) as gpu:
        stream = gpu.stream()
        start, end = gpu.event(True, True), gpu.event(True, True)
        with gpu.capture(stream) as graph:
            start.record(stream)
            x.mm(x)
            end.record(stream)
        with pytest.raises(FakeGpuError, match="not reached in a replay"):
            start.elapsed_time(end)
        gpu.use(stream)
        graph.replay()
        gpu.synchronize()
        assert start.elapsed_time(end) == pytest.approx(0.052)  # a record is a node: a gap before the kernel, and one after
        before = end.mark.time_s
        graph.replay()
        gpu.synchronize()
        assert end.mark.time_s > before
        start.record(stream)  # outside of a capture an external event is like any other
        end.record(stream)
        gpu.synchronize()
        assert start.elapsed_time(end) == pytest.approx(0.001)


def test_waiting_in_a_capture_for_an_earlier_event_is_refused(x):
    with FakeGpu() as gpu:
        stream, event = gpu.stream(), gpu.event()
        event.record(gpu.current)
        with pytest.raises(FakeGpuError, match="recorded outside"), gpu.capture(stream):
            stream.wait_event(event)


def test_a_failed_capture_leaves_no_trace(x):
    with FakeGpu() as gpu:
        with pytest.raises(RuntimeError, match="must match the size"), gpu.capture(gpu.stream()) as graph:
            x.add_(torch.ones(5))
        assert x.eq(1).all()
        with pytest.raises(FakeGpuError, match="did not end well"):
            graph.replay()


def test_an_error_in_a_capture_cannot_be_ignored(x):
    with FakeGpu() as gpu, pytest.raises(FakeGpuError, match="invalidated: synchronize"), gpu.capture(gpu.stream()):  # noqa: SIM117
        with pytest.raises(FakeGpuError):
            gpu.synchronize()


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda gpu, x: gpu.synchronize(), "synchronize during"),
        (lambda gpu, x: gpu.seed(0), "seed during"),
        (lambda gpu, x: x.sum().item(), "_local_scalar_dense makes the host wait"),
        (lambda gpu, x: x[x > 0], "aten.index makes the host wait"),
        (lambda gpu, x: torch.rand(2, generator=torch.Generator()), "generator"),
        (lambda gpu, x: gpu.capture(gpu.stream()).__enter__(), "a capture during"),
        (lambda gpu, x: (gpu.use(gpu.stream()), x.add(1)), "without waiting for an event"),
        (lambda gpu, x: (gpu.use(gpu.stream()), torch.empty(1)), "without waiting for an event"),
        (lambda gpu, x: gpu.event().record(gpu.streams[0]), "without waiting for an event"),
        (lambda gpu, x: x.view(torch.uint8).view(-1).copy_(gpu.host_tensor(64, False), non_blocking=True), "between host and device"),
    ],
)
def test_calls_that_a_capture_refuses(misuse, message, x):
    with FakeGpu() as gpu, pytest.raises(FakeGpuError, match=message), gpu.capture(gpu.stream()):
        misuse(gpu, x)


def test_a_side_stream_must_be_joined(x):
    with FakeGpu() as gpu:
        main, side, event = gpu.stream(), gpu.stream(), gpu.event()

        def body() -> None:
            event.record(main)
            side.wait_event(event)
            gpu.use(side)
            x.add(1)

        with pytest.raises(FakeGpuError, match="stream 2 was not joined to stream 1"), gpu.capture(main):
            body()


def test_an_external_event_neither_forks_nor_joins(x):
    with FakeGpu() as gpu:
        main, event = gpu.stream(), gpu.event(True, True)
        with pytest.raises(FakeGpuError, match="plain events"), gpu.capture(main):
            _ = event.record(main), gpu.stream().wait_event(event)


def test_no_replay_during_a_capture(x):
    with FakeGpu() as gpu:
        graph = captured(gpu, lambda: x.add_(1))
        with pytest.raises(FakeGpuError, match="replay of a graph during"), gpu.capture(gpu.stream()):
            graph.replay()


def test_an_event_of_a_capture_is_unusable_outside(x):
    with FakeGpu() as gpu:
        event, stream = gpu.event(True), gpu.stream()
        with gpu.capture(stream):
            x.add(1)
            event.record(stream)
        with pytest.raises(FakeGpuError, match="recorded in it"):
            stream.wait_event(event)
        with pytest.raises(FakeGpuError, match="not recorded"):
            event.elapsed_time(event)


def test_a_graph_does_not_keep_its_inputs_alive():
    with FakeGpu() as gpu:
        x = torch.ones(3)
        gpu.synchronize()
        graph = captured(gpu, partial(x.add_, 1))
        graph.replay()
        gpu.synchronize()
        del x
        with pytest.raises(FakeGpuError, match=r"was freed: 12 bytes that aten\.add_ uses"):
            graph.replay()


def test_a_stream_may_be_forked_twice_and_unused(x):
    with FakeGpu() as gpu:
        main, side, event = gpu.stream(), gpu.stream(), gpu.event()
        with gpu.capture(main):
            for _ in range(2):
                event.record(main)
                side.wait_event(event)


# Races


def races(gpu: FakeGpu) -> list[tuple[str, str, str]]:
    return [(race.kind, race.first_op.removeprefix("aten."), race.second_op.removeprefix("aten.")) for race in gpu.races]


ACCESSES = {
    "read after write": (lambda x: x.add_(1), lambda x: x.neg(), ("add_", "neg")),
    "write after read": (lambda x: x.neg(), lambda x: x.add_(1), ("neg", "add_")),
    "write after write": (lambda x: x.fill_(1), lambda x: x.add_(1), ("fill_", "add_")),
}


@pytest.mark.parametrize("kind", ACCESSES)
@pytest.mark.parametrize(
    ("in_capture", "ordered_by"),
    [
        *((False, order) for order in ("nothing", "event", "stream", "synchronize")),
        *((True, order) for order in ("nothing", "event", "stream")),
    ],
)
def test_conflicting_accesses(kind, ordered_by, in_capture, x):
    earlier, later, ops = ACCESSES[kind]
    with FakeGpu(races_allowed=True) as gpu:
        main, side = gpu.stream(), gpu.stream()
        results = []

        def wait(stream, for_stream) -> None:
            event = gpu.event()
            event.record(for_stream)
            stream.wait_event(event)

        def body() -> None:
            gpu.use(main)
            wait(side, main)
            results.append(earlier(x))  # keeps the result alive, so that its memory is not reused
            if ordered_by == "event":
                wait(side, main)
            if ordered_by == "synchronize":
                gpu.synchronize()
            gpu.use(main if ordered_by == "stream" else side)
            results.append(later(x))
            wait(main, side)

        if in_capture:
            with gpu.capture(main):
                body()
        else:
            body()
        expected = [(kind, *ops)] if ordered_by == "nothing" else []
        assert races(gpu) == expected


def test_a_race_fails_the_block(x):
    with pytest.raises(AssertionError, match=r"read after write: aten\.add_ on stream 0, aten\.neg on stream 1"), FakeGpu() as gpu:
        _ = x.add_(1), gpu.use(gpu.stream()), x.neg()


def test_order_is_transitive_and_reads_do_not_conflict(x):
    with FakeGpu() as gpu:
        streams = [gpu.stream() for _ in range(3)]
        gpu.use(streams[0])
        x.add_(1)
        for before, after in pairwise(streams):
            event = gpu.event()
            event.record(before)
            after.wait_event(event)
        gpu.use(streams[2])
        x.neg()
        gpu.use(streams[1])
        x.neg()


def test_slices_that_do_not_overlap(x):
    with FakeGpu(races_allowed=True) as gpu:
        gpu.use(gpu.stream())
        x[:2].add_(1)
        gpu.use(gpu.stream())
        x[2:].mul_(2)
        assert races(gpu) == []
        x[1:3].sub_(1)
        assert races(gpu) == [("write after write", "add_", "sub_")]


def test_columns_that_do_not_overlap(x):
    with FakeGpu(races_allowed=True) as gpu:
        gpu.use(gpu.stream())
        x[:, :2].add_(1)
        gpu.use(gpu.stream())
        x[:, 2:].mul_(2)
        assert races(gpu) == []
        x.view(torch.int32)[:, 1].sub_(1)
        assert races(gpu) == [("write after write", "add_", "sub_")]


def test_views_that_overlap_themselves():
    x = torch.ones(12)
    with FakeGpu(races_allowed=True) as gpu:
        gpu.use(gpu.stream())
        x[8:].add_(1)
        gpu.use(gpu.stream())
        results = [x[:8].unfold(0, 4, 2) * 2, x[:1].expand(3) * 2]
        assert races(gpu) == []
        results.append(x.unfold(0, 4, 2) * 2)
        assert races(gpu) == [("read after write", "add_", "mul")]


@pytest.mark.parametrize("in_capture", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_memory_is_reused_by_the_stream_that_allocated_it(in_capture, joined, x):
    with FakeGpu(races_allowed=True) as gpu:
        main, side = gpu.stream(), gpu.stream()

        def body() -> None:
            gpu.use(main)
            event = gpu.event()
            y = x + 1
            event.record(main)
            side.wait_event(event)
            gpu.use(side)
            z = y * 2
            event.record(side)
            if joined:
                main.wait_event(event)
            del y
            main.wait_event(event)
            gpu.use(main)
            z.neg()
            event.record(main)
            side.wait_event(event)

        if in_capture:
            with gpu.capture(main):
                body()
        else:
            body()
        assert races(gpu) == ([] if joined else [("reuse", "mul", "released")])


def test_a_view_keeps_its_memory_alive(x):
    with FakeGpu(races_allowed=True) as gpu:
        main, side, event = gpu.stream(), gpu.stream(), gpu.event()
        with gpu.capture(main):
            y = x + 1
            view = y[1:]
            event.record(main)
            side.wait_event(event)
            gpu.use(side)
            del y
            z = view * 2
            event.record(side)
            main.wait_event(event)
            del view, z
        assert races(gpu) == []


def test_replays_race_with_eager_work(x):
    with FakeGpu(races_allowed=True) as gpu:
        graph = captured(gpu, lambda: x.add_(1))
        graph.replay()
        gpu.use(gpu.stream())
        graph.replay()  # runs after the graph's previous replay, on whichever stream that was launched
        assert races(gpu) == []
        gpu.use(gpu.stream())
        x.neg()
        assert races(gpu) == [("read after write", "graph", "neg")]


# The rest of the driver


@pytest.mark.parametrize(("protocol", "fake"), [(driver.Driver, FakeGpu), (driver.Stream, FakeStream), (driver.Event, FakeEvent)])
def test_methods_have_the_parameters_of_the_protocol(protocol, fake):
    for name, method in inspect.getmembers(protocol, inspect.isfunction):
        if not name.startswith("_"):
            assert list(inspect.signature(getattr(fake, name)).parameters) == list(inspect.signature(method).parameters), name


def test_kernels_are_reported_per_op(x):
    with FakeGpu(EXACT, launch=lambda op, elements: (elements, 64, 16, 1)) as gpu:
        graph = captured(gpu, lambda: x.add_(1))
        first, second = gpu.kernels([lambda: x.t().mm(x), graph.replay])
        assert [(k.name, k.grid, k.block, k.registers, k.shared_bytes) for k in first] == [("aten.mm.default", 16, 64, 16, 1)]
        assert [(k.name, k.seconds) for k in second] == [("aten.add_.Tensor", pytest.approx(10 * US))]
    assert FakeGpu(profiler=False).kernels([]) is None


def test_partitions_are_disjoint():
    gpu = FakeGpu()
    partitions = gpu.partitions(4)
    ids = [gpu.sm_ids(gpu.stream(partition=partition)) for partition in partitions]
    assert [partition.sms for partition in partitions] == [32] * 4
    assert len(frozenset().union(*ids)) == 128
    assert len(gpu.sm_ids(gpu.stream())) == 132


@pytest.mark.parametrize(
    "call",
    [
        lambda: FakeGpu(partitionable=False).partitions(2),
        lambda: FakeGpu().partitions(17),
        lambda: FakeGpu(compiler=False).sm_ids(None),
        lambda: FakeGpu(streams=0).stream(),
    ],
)
def test_missing_capabilities_are_refused(call):
    with pytest.raises(SchedcastError):
        call()


def test_priorities_are_clipped():
    gpu = FakeGpu()
    assert [gpu.stream(priority).priority for priority in (0, -2, -9, 3)] == [0, -2, -5, 0]


def test_memory_is_counted():
    with FakeGpu(round_bytes=512) as gpu:
        x = torch.zeros(100)
        y = x[1:]
        assert gpu.allocated_bytes() == 512
        del x
        assert gpu.allocated_bytes() == 512
        z = y + 1
        del y
        assert gpu.allocated_bytes() == 512
        assert gpu.peak_bytes(reset=True) == 1024
        assert gpu.peak_bytes() == 512
        gpu.host_tensor(1 << 20, True)
        assert gpu.peak_bytes() == 512
        del z
        assert gpu.allocated_bytes() == 0
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(9 << 30, dtype=torch.uint8)


def test_ops_outside_of_the_block_are_not_issued_to_the_gpu(x):
    gpu = FakeGpu()
    x.add(1)
    gpu.activate()
    x.add(1)
    gpu.deactivate()
    x.add(1)
    assert len(gpu.timeline) == 1


def test_capturable_adam_runs():
    weights, grads, means, squares = ([torch.ones(3) for _ in range(2)] for _ in range(4))
    steps = [torch.zeros(()) for _ in range(2)]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0, "maximize": False, "amsgrad": False}
    for foreach in (False, True):
        with FakeGpu() as gpu:

            def body(foreach: bool = foreach) -> None:
                adam(weights, grads, means, squares, [], steps, foreach=foreach, capturable=True, **options)

            graph = captured(gpu, body)
            graph.replay()
    assert [step.item() for step in steps] == [2, 2]


def test_a_graph_of_two_thousand_ops(x):
    with FakeGpu() as gpu:

        def body() -> None:
            y = x
            for _ in range(2000):
                y = y + 1

        graph = captured(gpu, body)
        graph.replay()
        assert len(gpu.timeline) == 2000
