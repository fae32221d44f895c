"""The flags of PyTorch that decide which dense kernels run on float32 operands."""

import torch


def set_precision(precision: str) -> dict[str, object]:
    """TF32 in matrix products, convolutions and recurrent layers for `tf32` and nothing else; no autotuning. Returns all flags as they are.

    PyTorch keeps the old flags (allow_tf32) beside the new ones (fp32_precision), and reading an old one raises where the two disagree.
    Turning an old one off leaves the new one to what a level above says, which may be TF32. So both are set, the old ones first.
    """
    on = precision == "tf32"
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    matmul.allow_tf32 = on
    cudnn.allow_tf32 = on
    for part in (matmul, cudnn.conv, cudnn.rnn):
        part.fp32_precision = "tf32" if on else "ieee"
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
