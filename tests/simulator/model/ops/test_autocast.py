"""Autocast by the rules of a GPU, on CPU tensors, follows PyTorch's own lists, and the CPU's rules are back afterwards."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from simulator.model.ops.autocast import GPU, LOWER, RESULT, WIDEST, autocast

HALF, FULL = torch.bfloat16, torch.float32


def types_under(kind):
    """The result type, by op, of ops on bfloat16 tensors under autocast."""
    x = torch.ones(2, 4, dtype=HALF)
    with autocast("bfloat16", kind):
        return {
            "linear": functional.linear(x.float(), torch.ones(3, 4)).dtype,
            "softmax": x.softmax(1).dtype,
            "layer_norm": functional.layer_norm(x, (4,)).dtype,
            "sum": x.sum().dtype,
            "exp": x.exp().dtype,
            "norm": x.norm(dim=1).dtype,
            "relu": x.relu().dtype,
            "gelu": functional.gelu(x).dtype,
            "addcmul": torch.addcmul(x, x.float(), x).dtype,
            "mse_loss": functional.mse_loss(x, x).dtype,
            "cat": torch.cat((x, x.float())).dtype,
        }


def test_a_gpu_computes_more_ops_in_float32_than_a_cpu():
    on_both = {"linear": HALF, "relu": HALF, "gelu": HALF, "mse_loss": FULL, "cat": FULL, "addcmul": FULL}
    assert types_under("cpu") == on_both | dict.fromkeys(("softmax", "layer_norm", "sum", "exp", "norm"), HALF)
    assert types_under(GPU) == on_both | dict.fromkeys(("softmax", "layer_norm", "sum", "exp", "norm"), FULL)
    assert types_under("cpu")["softmax"] == HALF  # the rules of a GPU are gone


def test_only_a_gpu_refuses_binary_cross_entropy():
    odds, target = torch.full((3,), 0.5), torch.ones(3)
    with autocast("bfloat16"):
        assert functional.binary_cross_entropy(odds, target).dtype == FULL
    with autocast("bfloat16", GPU), pytest.raises(RuntimeError, match="unsafe to autocast"):
        functional.binary_cross_entropy(odds, target)


def test_the_rules_are_those_of_pytorch():
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()

    def listed(name):
        block = header.partition(f"#define {name}(_)")[2].partition("\n\n")[0]
        return {".".join(filter(None, (part.strip() for part in item.split(",")))) for item in re.findall(r"_\(([^)]*)\)", block)}

    lower, widest = listed("AT_FORALL_LOWER_PRECISION_FP"), listed("AT_FORALL_PROMOTE")
    assert lower | {"cudnn_convolution", "cudnn_convolution_transpose"} >= LOWER
    assert widest >= WIDEST
    assert listed("AT_FORALL_FP32_SET_OPT_DTYPE") - {"prod", "prod.dim_int"} == RESULT
