"""The driver of a real GPU, tested with stand-ins for torch.cuda and cuda.bindings.

On a GPU, the probes of calibrate/preflight test the real one.
"""

import ctypes
import gc
import logging
import os
import re
import signal
import threading
from contextlib import contextmanager

import pytest
import torch

from executors.cuda import capture, driver_api, profiled, torch_driver
from executors.cuda.backend import CudaBackend
from executors.cuda.driver import GpuStalledError
from executors.cuda.driver_api import DriverApi
from executors.cuda.partitions import Probe
from executors.cuda.program import FIRST_WAIT_S, LEAST_WAIT_S
from executors.cuda.torch_driver import PATIENCE_S, set_precision, wait_until
from executors.tensors import job_tensors
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from tests.fake_gpu import FakeGpu, Times
from tests.support.fake_cuda import POOLED, Bindings, Stream, Torch
from tests.support.jobs import MLP, planned
from tests.support.kineto_traces import Trace
from tests.support.refusals import refuses
from traces.errors import Code
from traces.formats.kineto import load_trace


@pytest.fixture
def cuda(monkeypatch):
    """A stand-in for torch.cuda on a machine with one GPU, without cuda.bindings."""
    monkeypatch.setattr(torch_driver, "find_driver_api", lambda: None)
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    yield Torch().install(monkeypatch)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)


@pytest.fixture
def bindings(cuda, monkeypatch):
    """The same machine with a stand-in for cuda.bindings."""
    stand_in = Bindings()
    monkeypatch.setattr(torch_driver, "find_driver_api", lambda: DriverApi(stand_in))
    return stand_in


@pytest.fixture
def restored_precision():
    """Resets PyTorch's precision flags to those of a fresh process."""
    yield
    for backend in (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
        backend.fp32_precision = "none"
    torch.backends.fp32_precision = "none"
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a build of PyTorch without CUDA")
def test_a_build_without_cuda_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    with refuses(Code.DEVICES, r"built without CUDA; install a CUDA build, or use the device cpu$"):
        torch_driver.TorchDriver()


def test_the_owner_of_an_amd_gpu_is_not_told_to_install_a_cuda_build(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with refuses(Code.DEVICES, r"built for AMD GPUs, and plans run on NVIDIA GPUs only; use the device cpu"):
        torch_driver.TorchDriver()


def test_a_gpu_that_cannot_be_used_is_an_error_with_the_reason(cuda, monkeypatch):
    with refuses(Code.DEVICES, "no GPU 3; expected one of 0 to 0"):
        torch_driver.TorchDriver(3)

    def busy(_device):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(torch.cuda, "set_device", busy)
    with refuses(Code.REQUEST, r"^GPU 0 cannot be used \(CUDA error: all CUDA-capable devices are busy\); see nvidia-smi"):
        torch_driver.TorchDriver()

    def old():
        import warnings

        warnings.warn("The NVIDIA driver on your system is too old\nplease update", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", old)
    with refuses(Code.DEVICES, r"no GPU \(The NVIDIA driver on your system is too old\)"):
        torch_driver.TorchDriver()


def test_hardware_queues_are_requested_before_cuda_starts(cuda, monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen.append(os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]) or True)
    assert torch_driver.TorchDriver().connections == "32"
    assert seen == ["32"]


def test_a_users_setting_and_a_request_that_came_too_late_are_reported(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert torch_driver.TorchDriver().software()["max_connections"].startswith("default: CUDA had started")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in os.environ
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert torch_driver.TorchDriver().connections == "8"


def test_facts_come_from_pytorch_and_from_the_driver(bindings):
    facts = torch_driver.TorchDriver().facts
    assert (facts.name, facts.sms, facts.capability, facts.blocks_per_sm, facts.priority_levels) == ("NVIDIA H200", 132, (9, 0), 32, 6)


def test_without_bindings_priorities_are_limited_to_pytorchs(cuda):
    driver = torch_driver.TorchDriver()
    assert (driver.facts.priority_levels, driver.facts.blocks_per_sm) == (4, 32)
    assert [driver.stream(priority).priority for priority in (1, 0, -3, -4)] == [0, 0, -3, -3]


def test_no_two_streams_are_the_same_queue(bindings):
    driver = torch_driver.TorchDriver()
    streams = [driver.stream(priority) for priority in (0, -3) for _ in range(POOLED + 3)]
    assert len({stream.cuda_stream for stream in streams}) == len(streams)
    assert sorted(bindings.priorities.values()) == [-3] * 3 + [0] * 3


def test_with_bindings_priorities_reach_the_drivers_limit(bindings):
    driver = torch_driver.TorchDriver()
    streams = [driver.stream(priority) for priority in (-4, -5, -6)]
    assert [bindings.priorities[stream.cuda_stream] for stream in streams] == [-4, -5, -5]


def test_an_unused_queue_is_reused_for_its_partition_and_priority(bindings):
    driver = torch_driver.TorchDriver()
    for _program in range(50):
        partitions = driver.partitions(2)
        lanes = [driver.stream(-4)] + [driver.stream(priority, partition) for partition in partitions for priority in (0, -1)]
        assert len({lane.cuda_stream for lane in lanes}) == 5
        on_stream = [bindings.on_stream[lane.cuda_stream] for lane in lanes[1:]]
        assert on_stream == [(partition.handle, priority) for partition in driver.partitions(2) for priority in (0, -1)]
        del lanes
    assert len(bindings.priorities) == 5


def test_a_process_has_one_driver_per_gpu(cuda, monkeypatch):
    monkeypatch.setattr(torch_driver, "_drivers", {})
    assert torch_driver.gpu() is torch_driver.gpu(0)


def test_without_bindings_the_33rd_stream_is_refused(cuda):
    driver = torch_driver.TorchDriver()
    streams = [driver.stream(-1) for _ in range(POOLED)]
    with refuses(Code.REQUEST, "only 32 distinct streams of priority -1; install the package cuda-bindings"):
        driver.stream(-1)
    driver.stream(0)
    free = streams.pop(7).cuda_stream
    assert driver.stream(-1).cuda_stream == free


@pytest.fixture
def library(monkeypatch):
    """A stand-in for libcuda that records calls of cuLaunchHostFunc and returns `result`, which a test may change."""

    class Library:
        calls, result = [], 0

        def cuLaunchHostFunc(self, stream, function, data):  # noqa: N802
            self.calls.append((stream, function, data))
            return self.result

        def cuGetErrorName(self, code, name):  # noqa: N802
            name._obj.value = {1: b"CUDA_ERROR_INVALID_VALUE"}.get(code)
            return 0

    stand_in = Library()
    stand_in.calls = []
    monkeypatch.setattr(driver_api, "_driver", lambda: stand_in)
    return stand_in


def test_a_stream_calls_usleep_of_the_c_library_with_the_duration(cuda, library, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: cuda.current)
    driver = torch_driver.TorchDriver()
    stream = driver.stream()
    driver.use(stream)
    for duration_s in (0.0, 2e-3, 4294.967295):
        driver.call_host(duration_s)
    libc = ctypes.CDLL(None)
    labs, usleep = (ctypes.cast(function, ctypes.c_void_p).value for function in (libc.labs, libc.usleep))
    handle = stream.cuda_stream
    assert library.calls == [(handle, labs, 0), (handle, usleep, 2000), (handle, usleep, 2**32 - 1)]
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    for _, address, argument in library.calls[:2]:
        function(address)(argument)  # both can be called with one pointer, as the driver calls them


def test_a_duration_out_of_range_or_a_failed_call_is_an_error_of_one_line(library):
    for duration_s in (4294.9673, -1e-3):
        with refuses(Code.REQUEST, rf"^a stream of a GPU cannot call the host for {duration_s} s; expected 0 to 4294 s$"):
            driver_api.call_host(0x1, duration_s)
    assert library.calls == []
    for code, name in ((1, "CUDA_ERROR_INVALID_VALUE"), (7, "error 7")):
        library.result = code
        with refuses(Code.REQUEST, rf"^cuLaunchHostFunc failed with {name}; see"):
            driver_api.call_host(0x1, 0.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_the_drivers_library_streams_cannot_call_the_host():
    with refuses(Code.REQUEST, r"^streams cannot call the host: libcuda\.so\.1 or its cuLaunchHostFunc is missing; update"):
        driver_api.call_host(0x1, 0.0)


def test_the_priority_range_needs_a_current_context(bindings):
    bindings.current = False
    with refuses(Code.REQUEST, "cuCtxGetStreamPriorityRange failed with CUDA_ERROR_INVALID_CONTEXT"):
        torch_driver.TorchDriver()


def test_a_capture_ends_on_its_stream_and_leaves_the_current_one(cuda):
    driver = torch_driver.TorchDriver()
    lane, side = driver.stream(), driver.stream()
    cuda.log.clear()
    with driver.capture(lane) as graph:
        assert cuda.current is lane
        driver.use(side)
    assert cuda.log == ["synchronize", "empty_cache", "begin", "end"]
    assert cuda.current is cuda.default
    assert not cuda.recording
    assert cuda.pool_users[graph.pool()] == 1
    graph.replay()


def test_a_graph_keeps_what_a_capture_allocates_on_other_gpus(cuda, monkeypatch):
    """A capture makes a pool for the GPU on which it begins. Each other GPU gets one that lives as long as the graph."""

    class Pool:
        def __init__(self):
            cuda.log.append("pool")

    @contextmanager
    def use_mem_pool(pool, device):
        cuda.log.append(f"allocate on {device}")
        yield
        cuda.log.append(f"no more on {device}")

    monkeypatch.setattr(torch.cuda, "MemPool", Pool)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use_mem_pool)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    first, second = torch_driver.TorchDriver(0), torch_driver.TorchDriver(1)
    cuda.log.clear()
    with first.capture(first.stream(), [second]) as graph:
        assert second.free_workspaces() == 0, "the graph may use them"
    assert cuda.log == ["pool", "allocate on cuda:1", "synchronize", "empty_cache", "begin", "end", "no more on cuda:1"]
    assert len(graph.pools) == 1


@pytest.mark.parametrize("unjoined", [False, True])
def test_an_error_within_a_capture_ends_it_and_is_raised(cuda, monkeypatch, unjoined):
    monkeypatch.setattr(capture, "_RESET_RELEASES", False)
    driver = torch_driver.TorchDriver()
    lane, side = driver.stream(), driver.stream()
    with pytest.raises(ZeroDivisionError), driver.capture(lane) as graph:  # noqa: PT012
        driver.use(side)
        cuda.unjoined = unjoined
        raise ZeroDivisionError
    _usable_again(cuda, driver, lane, graph)


@pytest.mark.parametrize("reset_releases", [False, True])
def test_a_capture_that_the_driver_refuses_to_end_leaves_pytorch_usable(cuda, monkeypatch, reset_releases):
    monkeypatch.setattr(capture, "_RESET_RELEASES", reset_releases)
    cuda.reset_releases = reset_releases
    driver = torch_driver.TorchDriver()
    lane = driver.stream()
    with pytest.raises(RuntimeError, match="unjoined work"), driver.capture(lane) as graph:
        cuda.unjoined = True
    _usable_again(cuda, driver, lane, graph)


def _usable_again(cuda, driver, lane, graph):
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    assert cuda.current is cuda.default
    assert not cuda.recording
    assert not any(cuda.pool_users.values())
    assert not cuda.generator_capturing
    assert cuda.graph_in_capture is None
    with driver.capture(lane) as second:
        pass
    second.replay()


@pytest.mark.usefixtures("restored_precision")
@pytest.mark.parametrize("before", ["none", "tf32"])
def test_tf32_is_on_for_tf32_and_off_for_other_precisions(before):
    torch.backends.fp32_precision = before
    for precision in ("tf32", "fp32", "tf32", "bf16"):
        flags, on = set_precision(precision), precision == "tf32"
        assert (flags["matmul_tf32"], flags["cudnn_tf32"], flags["cudnn_benchmark"]) == (on, on, False)
        effective = {
            backend.fp32_precision for backend in (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
        }
        assert effective == {"tf32" if on else "ieee"}


@pytest.mark.usefixtures("restored_precision")
def test_determinism_is_the_users_choice():
    torch.backends.cudnn.deterministic = True
    try:
        assert set_precision("fp32")["cudnn_deterministic"] is True
    finally:
        torch.backends.cudnn.deterministic = False


def test_kernels_belong_to_the_work_that_launched_them(tmp_path):
    trace = Trace()
    for number, begin in enumerate((100, 300, 500)):
        trace.annotate(f"ProfilerStep#{number}", begin, 150)
    shape = {"grid": [4, 2, 1], "block": [128, 2, 1], "registers per thread": 40, "shared memory": 2048}
    trace.kernel("before", 50, 60, 10)
    trace.kernel("gemm", 110, 130, 20, **shape)
    trace.work("Memset", 150, 5, trace.call("cudaMemsetAsync", 120, 5), cat="gpu_memset")
    trace.kernel("early by its own clock", 501, 499, 3, **shape)
    kernels = profiled.by_range(load_trace(trace.save(tmp_path / "t.json")), 3)
    assert [[kernel.name for kernel in of_work] for of_work in kernels] == [["gemm"], [], ["early by its own clock"]]
    gemm = kernels[0][0]
    assert (gemm.grid, gemm.block, gemm.registers, gemm.shared_bytes, gemm.seconds) == (8, 256, 40, 2048, pytest.approx(20e-6))


def test_a_lost_range_returns_none_instead_of_a_guess(tmp_path, caplog):
    trace = Trace()
    trace.annotate("ProfilerStep#1", 300, 150)
    trace.kernel("gemm", 310, 330, 20)
    assert profiled.by_range(load_trace(trace.save(tmp_path / "t.json")), 2) is None
    assert "1 of 2 ranges" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_refused_profiler_is_logged(monkeypatch, caplog):
    done = []
    with caplog.at_level(logging.WARNING):
        assert profiled.kernels([lambda: done.append(1)], torch.device("cpu")) is None
    assert re.search("kernels cannot be listed", caplog.text)


class StandInKernel:
    """Marks the SMs 4 to 7, as a kernel in a partition would, and refuses arguments that the real launch refuses."""

    def __init__(self):
        self.launches = []

    def __call__(self, grid, block, args, shared_mem=0, stream=None):
        seen, room, _cycles = args
        assert len(grid) == len(block) == 3
        assert seen.dtype == torch.int32
        assert seen.numel() == room
        self.launches.append((grid[0], torch.cuda.is_in_capture()))
        seen[4:8] = 1


def test_the_probe_loads_its_kernel_before_a_capture(cuda, monkeypatch):
    from torch.utils import cpp_extension

    kernel, homes = StandInKernel(), []

    def compiled(source, name):
        homes.append(cpp_extension.CUDA_HOME)
        assert name in source
        return kernel

    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", compiled)
    monkeypatch.setattr(torch.cuda, "is_in_capture", lambda: cuda.graph_in_capture is not None, raising=False)
    driver = torch_driver.TorchDriver()
    driver.device = torch.device("cpu")
    stream = driver.stream()
    assert driver.sm_ids(stream) == {4, 5, 6, 7}
    assert driver.sm_ids(stream, replayed=True) == frozenset()  # the stand-in graph launches nothing
    assert kernel.launches == [(528, False), (528, False), (528, True)]
    assert (len(homes), homes[0], cpp_extension.CUDA_HOME) == (1, torch.__path__[0], None)


def test_a_kernel_that_cannot_be_compiled_is_an_error_of_one_line(monkeypatch):
    def refuse(*_):
        raise RuntimeError("Kernel compilation failed:\nline 3")

    monkeypatch.setattr(torch.cuda, "_compile_kernel", refuse)
    with refuses(Code.REQUEST, r"cannot be compiled \(Kernel compilation failed: line 3\); install"):
        Probe()


# The wait for the GPU: it ends with the work, reports what never ends, and Ctrl-C ends it.


class Clock:
    """A clock that each pause advances by `step_s`."""

    def __init__(self, step_s: float):
        self.now_s, self.step_s = 0.0, step_s

    def pause(self, _seconds: float) -> None:
        self.now_s += self.step_s

    def read(self) -> float:
        self.now_s += 1e-4
        return self.now_s


def test_a_wait_that_takes_very_long_is_reported_each_time_it_has_doubled(caplog):
    clock, asked = Clock(PATIENCE_S / 10), []
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: clock.now_s > 5 * PATIENCE_S, lambda: asked.append(1) or "plan p", clock.read, clock.pause)
    assert caplog.messages[0] == "the GPU has not finished after 60 s, with plan p in flight; Ctrl-C ends the wait"
    assert len(caplog.messages) == len(asked) == 3


def test_short_waits_are_not_reported(caplog):
    clock = Clock(0.1)
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: clock.now_s > PATIENCE_S / 2, None, clock.read, clock.pause)
    assert caplog.messages == []


def test_ctrl_c_ends_a_wait_for_a_gpu_that_never_finishes():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        wait_until(lambda: False)


def test_the_driver_asks_its_streams_before_it_blocks(monkeypatch):
    cuda = Torch().install(monkeypatch)
    monkeypatch.setattr(torch_driver, "find_driver_api", lambda: None)
    driver = torch_driver.TorchDriver()
    stream, event = driver.stream(), driver.event()
    event.record(stream)
    cuda.log.clear()
    blocked_with = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: blocked_with.append(Stream.busy))
    Stream.busy = 5
    driver.synchronize()
    assert blocked_with == [0]
    Stream.busy = 3
    driver.wait_for(event)
    assert Stream.busy == 0


class Slow(FakeGpu):
    """A GPU whose waits take `wait_s` more seconds than its work, and are reported as those of a real one."""

    wait_s = 0.0

    def synchronize(self, in_flight=None):
        if in_flight is not None:
            end_s = self.clock.now_s + self.wait_s
            wait_until(lambda: self.clock.now_s >= end_s, in_flight, lambda: self.clock.spend(0.5) or self.clock.now_s, lambda _: None)
        super().synchronize()


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_wait_far_longer_than_those_before_raises(mode):
    """Steps of 10 s may take 20 times as long. A GPU that takes 240 s for its first steps is given up, one that was fast after 60 s."""
    job, machine = Job(MLP, 4), load_machine("h200")
    plan, tensors = planned("baseline", job, machine), job_tensors(job, job.build(), job.graph())
    with Slow() as gpu:
        program = CudaBackend(machine, gpu, mode).load(plan, tensors)
        program.run(12)
        gpu.wait_s = 59.0
        program.run(1)
        gpu.wait_s = 20 * 59 - 1.0
        program.run(1)
    for before_s, longest_s in ((None, FIRST_WAIT_S), (0.0, LEAST_WAIT_S)):
        with Slow() as gpu:
            program = CudaBackend(machine, gpu, mode).load(plan, tensors)
            if before_s is not None:
                program.run(12)
            gpu.wait_s = 2 * longest_s + 1  # it is looked at when it is reported
            with pytest.raises(GpuStalledError, match=rf"never finished plan baseline .* at most {longest_s:.0f} s"):
                program.run(12)


class Stuck(FakeGpu):
    """A GPU that does not finish. It asks what is in flight whenever the host would wait for it."""

    waits, seen = False, ()

    def synchronize(self, in_flight=None):
        if self.waits and in_flight is not None:
            self.seen = (*self.seen, in_flight())
        super().synchronize()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("eager", r"plan turbodl \(cuda:0 stream \d in period 3, at \S+ or before; cuda:0 stream \d in period 3"),
        ("graph", r"plan turbodl \(3 of 3 graphs of 4 periods with 16 tasks on 3 lanes\)$"),
    ],
)
def test_a_program_says_which_tasks_are_in_flight(mode, words):
    job = Job(MLP, 4)
    plan = planned("turbodl", job, load_machine("h200"))
    with Stuck(Times(kernel_s=lambda op, size: 1e-3)) as gpu:  # the host runs far ahead
        program = CudaBackend(load_machine("h200"), gpu, mode).load(plan, job_tensors(job, job.build(), job.graph()))
        program.run(3)
        gpu.waits = True
        program.run(5 if mode == "eager" else 12)
    assert [text for text in gpu.seen if re.match(words, text)], gpu.seen
    assert program.in_flight() == "plan turbodl (all lanes done)"


# The workspaces that PyTorch keeps for each stream that has run a matrix product, with a stand-in for its allocator.


WORKSPACE = 32 << 20


@pytest.fixture
def driver(monkeypatch) -> torch_driver.TorchDriver:
    """A driver of a GPU whose matrix products allocate a workspace at their stream's first."""
    cuda = Torch().install(monkeypatch)
    monkeypatch.setattr(torch_driver, "find_driver_api", lambda: None)
    driver = torch_driver.TorchDriver()
    streams: set[int] = set()
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: WORKSPACE * len(streams))
    monkeypatch.setattr(torch, "mm", lambda a, b, out: streams.add(cuda.current.cuda_stream))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", streams.clear, raising=False)
    driver._workspaces._device = torch.device("cpu")
    return driver


def run_product(driver: torch_driver.TorchDriver) -> None:
    stream = driver.stream()
    with torch.cuda.stream(stream):
        torch.mm(None, None, out=None)


def test_the_size_is_measured_once_whatever_ran_before(driver):
    run_product(driver)
    assert [driver.workspace_bytes() for _ in range(2)] == [WORKSPACE] * 2


def test_all_workspaces_are_freed_together(driver):
    for _ in range(3):
        run_product(driver)
    assert driver.free_workspaces() == 3 * WORKSPACE
    assert driver.free_workspaces() == 0


def test_nothing_is_freed_while_a_graph_exists(driver):
    run_product(driver)
    with driver.capture(driver.stream()) as graph:
        pass
    assert driver.free_workspaces() == 0
    assert driver.allocated_bytes() == WORKSPACE
    del graph
    gc.collect()
    assert driver.free_workspaces() == WORKSPACE


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch sees none")
def test_the_workspaces_of_a_real_gpu():
    driver = torch_driver.gpu()
    assert driver.workspace_bytes() > 1 << 20
    assert driver.free_workspaces() >= 0
