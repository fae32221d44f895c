"""One name for an op, whatever it is called: by the plan, by a version of PyTorch, in place or not, or by the library that computes it."""

import re
from functools import cache

_CONVOLUTION = ("conv1d", "conv2d", "conv3d", "_convolution", "convolution_overrideable", "cudnn_convolution", "miopen_convolution",
                "thnn_conv2d", "_slow_conv2d_forward", "_conv_depthwise2d", "conv_depthwise3d", "thnn_conv_depthwise2d")  # fmt: skip
_CONVOLUTION_BACKWARD = ("cudnn_convolution_backward", "miopen_convolution_backward", "thnn_conv2d_backward", "_slow_conv2d_backward",
                         "_convolution_double_backward", "thnn_conv_depthwise2d_backward", "_conv_depthwise2d_backward",
                         "convolution_backward_overrideable")  # fmt: skip
_BATCH_NORM = ("batch_norm", "_batch_norm_impl_index", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit",
               "_batch_norm_with_update", "_native_batch_norm_legit_functional")  # fmt: skip
_BATCH_NORM_BACKWARD = ("_batch_norm_impl_index_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward", "batch_norm_backward")
_SAME = {
    **dict.fromkeys(_CONVOLUTION, "convolution"),
    **dict.fromkeys(_CONVOLUTION_BACKWARD, "convolution_backward"),
    **dict.fromkeys(_BATCH_NORM, "native_batch_norm"),
    **dict.fromkeys(_BATCH_NORM_BACKWARD, "native_batch_norm_backward"),
    "layer_norm": "native_layer_norm",
    "group_norm": "native_group_norm",
    "_fused_dropout": "native_dropout",
    "_masked_scale": "native_dropout_backward",
    "_cudnn_rnn": "recurrent",
    "_cudnn_rnn_backward": "recurrent_backward",
}
_ATTENTION = re.compile(r"^_?(?:scaled_dot_product|flash|efficient|cudnn)_\w*attention\w*?(_backward)?$|^scaled_dot_product_attention$")
_BACKWARD = re.compile(r"Backward\d*$|^autograd::engine::evaluate_function")
#: Ops that make views: they launch nothing.
VIEWS = frozenset({
    "view", "t", "transpose", "permute", "reshape", "expand", "unsqueeze", "squeeze", "flatten", "select", "slice", "narrow", "view_as",
    "_unsafe_view", "movedim", "unflatten", "split", "chunk", "unbind", "split_with_sizes",
})  # fmt: skip
#: Ops that allocate a result.
ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "zeros", "zeros_like", "new_empty", "new_zeros"})

FORWARD, BACKWARD, UPDATE, GRADIENT, ZEROING = "forward", "backward", "update", "gradient", "zeroing"


def is_aten(name: str) -> bool:
    """Whether an operator is one of PyTorch's own ops."""
    return name.startswith("aten::")


@cache
def bare(name: str) -> str:
    """The op's name without its namespace and overload: `relu_` of `aten::relu_` and of `aten.relu_.default`."""
    return name.removeprefix("aten::") if "::" in name else name.split(".")[1] if name.startswith("aten.") else name


@cache
def common_name(name: str) -> str:
    """The name under which a plan's op and a recorded operator are the same."""
    text = bare(name)
    text = text[:-1] if text.endswith("_") and not text.endswith("__") else text
    attention = _ATTENTION.match(text)
    if attention:
        return "attention_backward" if attention[1] else "attention"
    return _SAME.get(text, text)


def updates_parameters(name: str) -> bool:
    """Whether an op updates parameters, in a recording without the optimizer's annotations."""
    return name.startswith(("aten::_foreach_", "aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad"))


@cache
def phase_within(name: str) -> str | None:
    """The phase of everything that an operator or range of this name encloses; None if the name does not tell."""
    if name.startswith("Optimizer.step#"):
        return UPDATE
    if name.startswith("Optimizer.zero_grad#"):
        return ZEROING
    if name.endswith("AccumulateGrad"):
        return GRADIENT
    return BACKWARD if _BACKWARD.search(name) else None
