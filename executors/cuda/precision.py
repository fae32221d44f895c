"""Sets PyTorch's flags that decide which dense kernels run on float32 operands."""

from typing import Any

import torch


def set_precision(precision: str) -> dict[str, object]:
    """Allow TF32 in matrix products, convolutions and recurrent layers if `precision` is "tf32", and forbid it otherwise.

    With "default", PyTorch's own setting, it is allowed in all of cuDNN (convolutions and recurrent layers) and forbidden in products.

    Also turns autotuning off. Returns the current flags.

    PyTorch has old flags (allow_tf32) and new ones (fp32_precision), and reading an old one raises if the two disagree. When an old one is
    turned off, the new one inherits the setting of a level above, which may be TF32. So this function sets both, the old ones first.
    """
    backends: Any = torch.backends  # has attributes that its type does not list
    matmul, cudnn = backends.cuda.matmul, backends.cudnn
    products, convolutions = precision == "tf32", precision in ("tf32", "default")
    matmul.allow_tf32 = products
    cudnn.allow_tf32 = convolutions
    for backend, on in ((matmul, products), (cudnn.conv, convolutions), (cudnn.rnn, convolutions)):
        backend.fp32_precision = "tf32" if on else "ieee"
    cudnn.benchmark = False  # autotuning may choose another kernel in the next process
    return {
        "matmul_tf32": matmul.allow_tf32,
        "cudnn_tf32": cudnn.allow_tf32,
        "cudnn_enabled": cudnn.enabled,
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_deterministic": cudnn.deterministic,
        "fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "fp16_accumulation": matmul.allow_fp16_accumulation,
    }
