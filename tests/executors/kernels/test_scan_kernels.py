"""The hand-written CUDA kernels of scans, compiled as C++ and run on the host, compared with PyTorch's batched products."""

import logging
import shutil
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from calibrate.numerics import Expected, compare
from executors.binding import Forms
from executors.cuda.backend import CudaBackend
from executors.kernels import jacobians as jacobian_values
from executors.kernels import nvrtc, scan_level
from executors.kernels import scan_kernels as native
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.model.ops.scan_order import order, prefix_order
from simulator.plan.bodies.scan import FUSED_WIDTH, GruSteps, RnnSteps, ScanLevel
from simulator.plan.task import Operand
from simulator.plan.tensors import contiguous
from simulator.strategies.scan.algorithm import exclusive_scan
from tests.fake_gpu import FakeGpu
from tests.support import host_kernels
from tests.support.jobs import planned

COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++, which runs the kernels' source on the host")

#: With 5 units a strip of rows is not full; 20 is the paper's width; with 33 tiles extend beyond the edge of the matrix.
WIDTHS = (1, 5, 20, 33)
SIZES = [(2, 1), (3, 2), (4, 5), (7, 3), (12, 2), (21, 4)]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    return host_kernels.HostCompiler(tmp_path_factory.mktemp("kernels"), COMPILER)


@pytest.fixture(params=["forwards", "backwards"])
def on_host(request, compiler, monkeypatch):
    """Compiles kernels for the host, and runs the threads of a block in this order between barriers."""
    monkeypatch.setattr(nvrtc, "compiled", compiler.compiled)
    native._compiled.cache_clear()
    compiler.backwards, compiler.launches = request.param == "backwards", 0
    yield compiler
    native._compiled.cache_clear()


def assert_close(actual, expected, dtype=torch.float64):
    bound = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)


def elements(m: int, samples: int, width: int, leftmost: bool, dtype=torch.float64):
    torch.manual_seed(m * 100 + samples)
    jacobians = torch.randn(m - leftmost, samples, width, width, dtype=dtype) / width**0.5
    return jacobians, torch.randn(samples, width, dtype=dtype)


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize("leftmost", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_levels_equal_batched_products(on_host, width, leftmost):
    shape = native.Shape(width, "double")
    for m, samples in SIZES:
        jacobians, gradient = elements(m, samples, width, leftmost)
        first = gradient if leftmost else None
        results = native.up(shape, m, leftmost)(jacobians, first)
        for result, expected in zip(results, scan_level.up(jacobians, first, m), strict=True):
            assert (result is None) == (expected is None)
            if result is not None:
                assert_close(result, expected)
        even = jacobians[: (m + 1) // 2 - leftmost] if (m + 1) // 2 > leftmost else None
        above = torch.randn(m // 2 + 1 - leftmost, samples, width, dtype=torch.float64)
        assert_close(native.down(shape, m)(even, above, first), scan_level.down(even, above, first, m))
        sequence, places = scan_level._sequence(m, leftmost)
        run = native.linear(shape, sequence, places, torch.device("cpu"))
        assert_close(run(jacobians, gradient), scan_level.linear(jacobians, gradient, sequence, places))
    assert on_host.launches == 3 * len(SIZES)


@needs_compiler
def test_a_long_linear_level_in_float32(on_host):
    """With many more steps than are loaded ahead."""
    shape = native.Shape(20, "float")
    jacobians, gradient = elements(45, 3, 20, False, torch.float32)
    sequence, places = scan_level._sequence(45, False)
    prefixes = native.linear(shape, sequence, places, torch.device("cpu"))(jacobians, gradient)
    assert_close(prefixes, scan_level.linear(jacobians, gradient, sequence, places), torch.float32)


@needs_compiler
@pytest.mark.parametrize("leftmost", [False, True])
def test_a_whole_scan_of_kernels_gives_every_prefix(on_host, leftmost):
    """The up-sweep and the down-sweep through all levels, compared with `simulator.strategies.scan`."""
    m, samples, width = 13, 2, 5
    jacobians, gradient = elements(m, samples, width, leftmost)
    shape = native.Shape(width, "double")
    stored = dict(zip(order(m)[leftmost:], jacobians, strict=True))
    chain = ([] if leftmost else [gradient]) + [gradient if leftmost and place == 0 else stored[place] for place in range(m)]
    expected = exclusive_scan(chain, 0, lambda later, earlier: (later @ earlier.unsqueeze(-1)).squeeze(-1))

    def prefixes(count: int, jacobians, first):
        """Runs the levels from this one up, as the tasks of `simulator.strategies.scan` do."""
        if count == 1:
            start = first if leftmost else gradient
            return torch.stack([start] if leftmost else [start, (jacobians[0] @ start.unsqueeze(-1)).squeeze(-1)])
        above = prefixes(count // 2, *native.up(shape, count, leftmost)(jacobians, first))
        even = (count + 1) // 2 - leftmost
        return native.down(shape, count)(jacobians[:even] if even else None, above, first)

    results = prefixes(m, jacobians, gradient if leftmost else None)
    for position, element in enumerate(prefix_order(m, leftmost)):
        assert_close(results[position], expected[element - leftmost])


@needs_compiler
@pytest.mark.parametrize("leftmost", [False, True])
@pytest.mark.parametrize("width", [1, 5, 20])
def test_jacobians_equal_those_of_pytorchs_ops(on_host, width, leftmost):
    m, samples, c_type = 9, 3, partial(torch.rand, dtype=torch.float64)
    places = jacobian_values._steps_in_scan_order(m, leftmost)
    index = torch.tensor(places)
    rnn = (c_type(m, samples, width) - 0.5, c_type(width, width))
    gru = (*(c_type(m, samples, n * width) for n in (1, 2, 1, 1)), c_type(3 * width, width))
    cases = [(RnnSteps("tanh", leftmost), rnn), (RnnSteps("relu", leftmost), rnn), (GruSteps(leftmost), gru)]
    for rule, reads in cases:
        jacobians = native.fused_steps(rule, places, "double", width, torch.device("cpu"))(*reads)
        assert_close(jacobians, jacobian_values._KERNELS[rule.of](rule, index, *reads))
    assert on_host.launches == 3


def job_and_plan(model: str, strategy: str) -> tuple:
    job, machine = Job(model, 3, image_size=11, precision="fp64"), load_machine("h200")
    return job, planned(strategy, job, machine), machine


@pytest.mark.sampled(5)
@needs_compiler
@pytest.mark.parametrize("strategy", ["bppsa:scan=blelloch", "bppsa:scan=linear", "bppsa:scan=blelloch,workers=3"])
@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features"])
def test_a_plan_of_kernels_trains_as_pytorch_does(on_host, monkeypatch, model, strategy):
    """In eager mode, because the simulated GPU does not see these launches and so cannot replay them."""
    job, plan, machine = job_and_plan(model, strategy)
    monkeypatch.setattr(native, "cuda_type", lambda task, binding: "double")
    gpu, built = FakeGpu(races_allowed=True), job.build()
    backend = CudaBackend(machine, gpu, "eager")
    with gpu:
        numerics = compare(job, built, plan, backend, Expected.of(job, built, 2, backend), 2)
    assert numerics.equal("fp64"), numerics
    assert on_host.launches >= sum(task.body.kind in ("scan-level", "jacobian-values") for task in plan.tasks)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("strategy", ["bppsa:scan=blelloch", "bppsa:scan=linear", "bppsa"])
@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features"])
def test_without_kernels_pytorchs_products_give_the_same_numbers(model, strategy, mode):
    job, plan, machine = job_and_plan(model, strategy)
    gpu, built = FakeGpu(), job.build()
    backend = CudaBackend(machine, gpu, mode)
    with gpu:
        numerics = compare(job, built, plan, backend, Expected.of(job, built, 9, backend), 9)
    assert numerics.equal("fp64"), numerics


def level_task(width: int, dtypes: str | tuple[str, str], device: str = "cuda"):
    """A task of a linear level with 4 elements, and its binding. `dtypes`: one for all operands, or (of reads, of writes)."""
    read, written = (dtypes, dtypes) if isinstance(dtypes, str) else dtypes
    shapes = ((4, 2, width, width), (2, width)), (5, 2, width)
    reads = tuple(Operand(name, shape, contiguous(shape), read) for name, shape in zip("jg", shapes[0], strict=True))
    task = SimpleNamespace(
        body=ScanLevel("linear", 4, False), device=device, inputs=reads, writes=(Operand("p", shapes[1], contiguous(shapes[1]), written),)
    )
    return task, SimpleNamespace(forms=Forms(cuda=True), device=torch.device)


def test_kernels_are_used_on_cuda_for_two_dtypes_and_narrow_layers():
    c_types = {
        name: native.cuda_type(*level_task(width, dtypes, device))
        for name, width, dtypes, device in [
            ("float", 20, "float32", "cuda"), ("double", 20, "float64", "cuda"), ("half", 20, "bfloat16", "cuda"),
            ("mixed", 20, ("float32", "float64"), "cuda"), ("wide", FUSED_WIDTH + 1, "float32", "cuda"), ("cpu", 20, "float32", "cpu"),
        ]
    }  # fmt: skip
    assert c_types == {"float": "float", "double": "double", "half": None, "mixed": None, "wide": None, "cpu": None}
    task, binding = level_task(20, "float32")
    binding.forms = replace(binding.forms, cuda=False)
    assert native.cuda_type(task, binding) is None


def test_without_nvrtc_a_warning_says_what_runs_instead(monkeypatch, caplog):
    def refuse(source, name):
        raise nvrtc.SchedcastError("no NVRTC library")

    monkeypatch.setattr(nvrtc, "compiled", refuse)
    native._compiled.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert native.up(native.Shape(20, "float"), 4, False) is None
    assert "batched products, with several kernels instead of one: no NVRTC library" in caplog.text
    native._compiled.cache_clear()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("leftmost", [False, True])
@pytest.mark.parametrize("width", [*WIDTHS, FUSED_WIDTH])
def test_kernels_on_a_gpu(width, leftmost, dtype):
    """Issued and replayed from a graph, compared with batched products on the CPU."""
    m, samples, cuda = 37, 6, torch.device("cuda", torch.cuda.current_device())
    shape = native.Shape(width, native.C_TYPES[dtype])
    jacobians, gradient = elements(m, samples, width, leftmost, getattr(torch, dtype))
    first = gradient if leftmost else None
    above = torch.randn(m // 2 + 1 - leftmost, samples, width, dtype=jacobians.dtype)
    even = jacobians[: (m + 1) // 2 - leftmost]
    sequence, places = scan_level._sequence(m, leftmost)
    copies = {id(t): t.to(cuda) for t in (jacobians, gradient, above, even)}
    copies[id(None)] = None
    linear = partial(scan_level.linear, sequence=sequence, places=places)
    runs = [
        (native.up(shape, m, leftmost), partial(scan_level.up, elements=m), (jacobians, first)),
        (native.down(shape, m), partial(scan_level.down, elements=m), (even, above, first)),
        (native.linear(shape, sequence, places, cuda), linear, (jacobians, gradient)),
    ]
    bound = 1e-4 if dtype == "float32" else 1e-11
    for run, expected, operands in runs:
        on_gpu = [copies[id(tensor)] for tensor in operands]
        issued = run(*on_gpu)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run(*on_gpu)
        graph.replay()
        for result in (issued, captured):
            torch.testing.assert_close(result, expected(*operands), check_device=False, rtol=bound, atol=bound)
