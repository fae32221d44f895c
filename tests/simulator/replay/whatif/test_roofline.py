"""FLOPs and bytes of recorded ops, worked out by hand, and what the kernels of recorded traces reach. Times are microseconds."""

import pytest

from simulator.replay.whatif.replayed import replayed
from simulator.replay.whatif.roofline import op_work, roofline
from tests.support.kineto_traces import Trace
from tests.support.shared_data import shared_folder
from traces.formats.kineto import load_trace
from traces.formats.recording import Operator
from ui.present import replays

V100 = {"id": 0, "name": "Tesla V100-SXM2-16GB", "numSms": 80}


def work_of(name, shapes, types=(), results=None):
    return op_work(Operator(name, 0, 0.0, 1.0, tuple(map(tuple, shapes)), -1, tuple(types)), results or {})


@pytest.mark.parametrize(
    ("name", "shapes", "types", "flops", "moved", "precision"),
    [
        ("aten::mm", [[2, 3], [3, 5]], ["float"] * 2, 60, 4 * (6 + 15 + 10), "fp32"),
        ("aten::addmm", [[5], [2, 3], [3, 5]], ["c10::Half"] * 3, 60, 2 * (5 + 6 + 15 + 10), "bf16"),
        ("aten::bmm", [[7, 2, 3], [7, 3, 5]], [], 420, 4 * (42 + 105 + 70), "fp32"),
        # the input 2x3x8x8 and the weight 4x3x3x3, whose result is 2x4x6x6: 288 outputs of 27 products, two gradients
        ("aten::convolution_backward", [[2, 4, 6, 6], [2, 3, 8, 8], [4, 3, 3, 3]], [], 31104, 4 * (288 + 384 + 108 + 384), "fp32"),
        ("aten::cudnn_convolution_backward", [[2, 3, 8, 8], [2, 4, 6, 6], [4, 3, 3, 3]], [], 31104, 4 * (288 + 384 + 108 + 384), "fp32"),
        ("aten::_scaled_dot_product_flash_attention", [[1, 2, 8, 4]] * 3, [], 4 * 64 * 8, 4 * 4 * 64, "fp32"),
        ("aten::_scaled_dot_product_flash_attention_backward", [[1, 2, 8, 4]] * 4, [], 10 * 64 * 8, 5 * 4 * 64, "fp32"),
        ("aten::add", [[10, 10], [10, 10], []], [], 0, 4 * 300, "fp32"),
        ("aten::copy_", [[100], [100]], ["c10::BFloat16", "float"], 0, 600, "bf16"),
        ("aten::sum", [[100]], [], 0, 400, "fp32"),
    ],
)  # fmt: skip
def test_the_least_work_of_an_op(name, shapes, types, flops, moved, precision):
    assert work_of(name, shapes, types) == (flops, moved, precision)


def test_a_forward_convolution_is_known_by_its_backward():
    shapes = [[2, 3, 8, 8], [4, 3, 3, 3]]
    assert work_of("aten::cudnn_convolution", shapes) is None
    assert work_of("aten::cudnn_convolution", shapes, results={((2, 3, 8, 8), (4, 3, 3, 3)): (2, 4, 6, 6)}).flops == 2 * 288 * 27


@pytest.mark.parametrize(("name", "shapes"), [("aten::embedding", [[9, 9], [4]]), ("mine::op", [[9]]), ("aten::add", [[], []])])
def test_ops_whose_work_is_not_known(name, shapes):
    assert work_of(name, shapes) is None


def write(tmp_path, shapes):
    """A product of 4096 x 4096 matrices that takes 10 ms, in an op that also launches a kernel of another class."""
    trace = Trace()
    trace.gpus.append(V100)
    trace.op("aten::mm", 0, 30, shapes, **({"Input type": ["float", "float"]} if shapes else {}))
    trace.kernel("volta_sgemm_128x64_nn", 1, 10, 10_000)
    trace.op("aten::add_", 40, 20, shapes and [[4096, 4096], [4096, 4096], []])
    trace.kernel("vectorized_elementwise_kernel", 41, 10_010, 500)
    return load_trace(trace.save(tmp_path / "trace.json"))


def test_shares_of_peak_bandwidth_and_roofline(tmp_path):
    reached = roofline(write(tmp_path, [[4096, 4096], [4096, 4096]]), 20e-3)
    product, plus = reached.kernels
    assert (product.name, product.seconds, product.known_share) == ("matrix products", pytest.approx(10e-3), 1.0)
    assert product.peak_share == pytest.approx(2 * 4096**3 / 15.7e12 / 10e-3)
    assert product.roofline_share == product.peak_share
    assert (plus.name, plus.flops) == ("element-wise operations", 0.0)
    assert plus.bandwidth_share == plus.roofline_share == pytest.approx(3 * 4 * 4096**2 / 900e9 / 0.5e-3)
    assert reached.mfu == pytest.approx(product.peak_share / 2), "the step is twice as long"
    assert replays.use_words(reached) == ["Matrix products and convolutions use 43.8 % of the FLOP/s of the Tesla V100-SXM2-16GB (MFU)."]
    assert replays.use_cells(reached.kernels)[0] == {
        "kernels": "matrix products", "ms": "10.0", "of the kernels": "95.2 %", "TFLOP": "0.137", "of peak": "87.5 %",
        "of bandwidth": "2.2 %", "of the roofline": "87.5 %",
    }  # fmt: skip


def test_without_shapes_it_says_how_to_record_them(tmp_path):
    reached = roofline(write(tmp_path, None), 20e-3)
    assert "record_shapes=True" in replays.use_words(reached)[0]
    assert [row["of peak"] for row in replays.use_cells(reached.kernels)] == ["-", "-"]


def test_kernels_that_take_no_time_use_nothing(tmp_path):
    trace = Trace()
    trace.kernel("volta_sgemm_128x64_nn", 1, 10, 1e-9)
    assert roofline(load_trace(trace.save(tmp_path / "trace.json")), 1e-3).kernels == ()


FOLDER = shared_folder("kineto")


@pytest.mark.thorough
@pytest.mark.skipif(FOLDER is None, reason="no shared/data/kineto beside the repository; SCHEDCAST_SHARED may name another place")
def test_the_flops_of_a_real_step_are_those_of_its_model():
    """ResNet-50 takes 4.09 GMAC an image of 224 x 224 forward, three times as much in all but for the gradient of the images."""
    result = replayed([FOLDER / "v100_resnet50_bs32_1gpu_oldschema.json.gz"]).result
    flops = sum(row.flops for row in result.roofline.kernels)
    assert flops == pytest.approx(32 * 3 * 2 * 4.09e9, rel=0.02)
    assert result.roofline.mfu == pytest.approx(flops / 15.7e12 / result.gpu_period_measured_s, rel=0.01)


def peaks(tmp_path, *changes):
    trace = Trace()
    trace.gpus.append(V100 | {"totalGlobalMem": 16 * 2**30})
    trace.kernel("gemm", 0, 10, 20)
    for at, args in enumerate(changes):
        trace.events.append(
            {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": {"Device Id": 0, "Device Type": 1} | args}
        )
    return replayed([trace.save(tmp_path / "trace.json")]).result.memory


def test_the_peak_of_memory_is_that_of_all_changes_on_the_gpu(tmp_path):
    totals = [{"Bytes": size, "Total Allocated": held, "Total Reserved": 9 * 2**30} for size, held in ((5, 2**30), (7, 2**31), (-7, 2**30))]
    on_host = {"Bytes": 1, "Total Allocated": 2**40, "Total Reserved": 0, "Device Type": 0}
    assert replays.memory_words(peaks(tmp_path, *totals, on_host)) == ["Peak memory: 2 GiB allocated, 9 GiB reserved, of 16 GiB."]


def test_older_traces_say_how_much_memory_grew(tmp_path):
    found = peaks(tmp_path, {"Bytes": 2**31}, {"Bytes": -(2**30)}, {"Bytes": 2**29}, {"Bytes": 2**28})
    assert replays.memory_words(found) == ["Peak memory: 2 GiB above what was allocated when the recording began."]


def test_a_backward_kernel_belongs_to_the_module_of_its_forward_op(tmp_path):
    """Module `Net_0` calls `Linear_0`, and adds by itself; autograd's thread launches the gradient of the product alone."""
    trace = Trace()
    trace.op("nn.Module: Net_0", 0, 100, cat="python_function")
    trace.op("nn.Module: Linear_0", 10, 30, cat="python_function")
    trace.op("aten::addmm", 12, 20, **{"Sequence number": 5})
    trace.kernel("gemm", 13, 200, 40)
    trace.op("aten::add", 60, 20, **{"Sequence number": 6})
    trace.kernel("add", 61, 240, 10)
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", 120, 50, thread=2, **{"Sequence number": 5})
    trace.op("aten::mm", 125, 30, thread=2)
    trace.kernel("gemm", 126, 300, 60, thread=2)
    trace.op("Optimizer.step#SGD.step", 180, 20, cat="user_annotation")
    trace.kernel("multi_tensor_apply", 185, 400, 7)
    reached = roofline(load_trace(trace.save(tmp_path / "trace.json")), 1e-3)
    seconds = {row.name: round(row.seconds * 1e6) for row in reached.modules}
    assert seconds == {"Linear": 100, "Net": 10, "optimizer": 7}
