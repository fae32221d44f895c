"""The code around the call of cuDNN, with PyTorch's CPU layers in place of the call. No GPU is needed, and cuDNN itself is not tested."""

import pytest
import torch

from calibrate.numerics import Expected, compare
from executors.cuda.backend import CudaBackend
from executors.kernels.lowering import recurrent
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.model.ops import recurrent_steps
from tests.fake_gpu import FakeGpu
from tests.support.jobs import planned


def run_on_cpu(x, weights, stride, buffer, h0, c0, mode, hidden, *_):
    """The results of aten._cudnn_rnn that are used: the output and the last state."""
    assert stride == len(weights)
    assert all(tensor.is_contiguous() for tensor in (x, h0))
    layer = {0: torch.rnn_relu, 1: torch.rnn_tanh, 3: torch.gru}[mode]
    return layer(x, h0, weights, len(weights) == 4, 1, 0.0, False, False, False)


@pytest.fixture
def cudnn(monkeypatch):
    """Replaces cuDNN's functions. Returns the list of arguments that its flattening was called with."""
    flattened = []
    monkeypatch.setattr(recurrent, "cudnn_usable", lambda task, binding: True)
    monkeypatch.setattr(recurrent, "_run_cudnn", run_on_cpu)
    monkeypatch.setattr(recurrent, "_flatten", lambda weights, *options: flattened.append(options) or torch.zeros(1))
    return flattened


@pytest.mark.sampled(4)
@pytest.mark.parametrize("strategy", ["baseline", "bppsa:scan=blelloch"])
@pytest.mark.parametrize(("model", "mode"), [("rnn_bitstream", 1), ("gru_features", 3)])
def test_a_plan_with_cudnns_forward_trains_as_pytorch_does(cudnn, model, mode, strategy):
    """Weights are copied to cuDNN's buffer in every step, and flattened once."""
    job, machine = Job(model, 3, image_size=9, precision="fp64", optimizer="adam"), load_machine("h200")
    plan, built, gpu = planned(strategy, job, machine), job.build(), FakeGpu()
    backend = CudaBackend(machine, gpu, "eager")
    with gpu:
        numerics = compare(job, built, plan, backend, Expected.of(job, built, 3, backend), 3)
    assert numerics.equal("fp64"), numerics
    features = 1 if model == "rnn_bitstream" else 38
    assert set(cudnn) == {(4, features, mode, 20, 0, 1, False, False)}


def test_a_layer_that_cudnn_refuses_runs_step_by_step_with_a_warning(cudnn, monkeypatch, caplog):
    def refuse(*_):
        raise RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(recurrent, "_run_cudnn", refuse)
    job, machine = Job("rnn_bitstream", 3, image_size=9, precision="fp64"), load_machine("h200")
    plan, built, gpu = planned("baseline", job, machine), job.build(), FakeGpu()
    backend = CudaBackend(machine, gpu, "eager")
    with gpu:
        numerics = compare(job, built, plan, backend, Expected.of(job, built, 3, backend), 3)
    assert numerics.equal("fp64"), numerics
    assert "because cuDNN refuses it: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED" in caplog.text


@pytest.mark.parametrize("biases", [True, False])
def test_gates_can_be_computed_from_the_states(biases):
    x, h0 = torch.randn(7, 3, 4, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    shapes = [(15, 4), (15, 5), *([(15,), (15,)] if biases else [])]
    weights = [*(torch.randn(shape, dtype=torch.float64) for shape in shapes), None, None][:4]
    states, *expected = recurrent_steps.gru(x, h0, *weights)
    for gate, expected_gate in zip(recurrent_steps.gru_gates_from_states(x, states, *weights), expected, strict=True):
        torch.testing.assert_close(gate, expected_gate, rtol=1e-12, atol=1e-12)


def test_the_arguments_match_the_ops_schemas():
    """Every build of PyTorch has the schemas of cuDNN's ops."""
    named = {op: [argument.name for argument in op._schema.arguments] for op in (recurrent._run_cudnn, recurrent._flatten)}
    call, flatten = named.values()
    assert call[:7] == ["input", "weight", "weight_stride0", "weight_buf", "hx", "cx", "mode"]
    assert call[7:] == [
        "hidden_size", "proj_size", "num_layers", "batch_first", "dropout", "train", "bidirectional", "batch_sizes", "dropout_state"
    ]  # fmt: skip
    assert flatten == [
        "weight_arr", "weight_stride0", "input_size", "mode", "hidden_size", "proj_size", "num_layers", "batch_first", "bidirectional"
    ]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(("mode", "gates"), [(0, 1), (1, 1), (3, 3)])
@pytest.mark.parametrize("biases", [True, False])
def test_cudnns_states_on_a_gpu(mode, gates, biases):
    """Issued twice with different weights, which must reach the buffer, and replayed from a graph."""
    x, h0 = torch.randn(9, 4, 3, dtype=torch.float64), torch.randn(4, 20, dtype=torch.float64)
    shapes = [(20 * gates, 3), (20 * gates, 20), *([(20 * gates,)] * 2 if biases else [])]
    flat = recurrent.FlatWeights()
    for _ in range(2):
        weights = [*(torch.randn(shape, dtype=torch.float64) / 5 for shape in shapes), None, None][:4]
        expected = recurrent_steps.gru(x, h0, *weights)[0] if mode == 3 else recurrent_steps.rnn(x, h0, *weights, ("relu", "tanh")[mode])
        on_gpu = [tensor if tensor is None else tensor.cuda() for tensor in (x, h0, *weights)]
        issued = recurrent.states(flat, mode, *on_gpu)
        torch.testing.assert_close(issued.cpu(), expected, rtol=1e-9, atol=1e-9)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = recurrent.states(flat, mode, *on_gpu)
    graph.replay()
    torch.testing.assert_close(captured.cpu(), expected, rtol=1e-9, atol=1e-9)
