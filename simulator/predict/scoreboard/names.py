"""What tables of measured steps call GPUs, models, precisions and optimizers, and what they are called here.

Every name that a job or `--machine` takes is understood as it is; these are the others. A row that names anything else is not predicted.
"""

import re

from simulator.machine.presets import THIS_GPU, machine_names, one_gpu
from simulator.model.job import PRECISIONS
from simulator.model.libraries import LIBRARIES
from simulator.model.workloads import registry as workloads
from simulator.plan.bodies.update import FORMS, STATE

#: GPU of a table -> preset, where it is neither a preset's name nor the driver's name of its GPU.
GPUS = {
    "B200-SXM": "b200", "H100-80GB": "h100", "H100-96GB HBM2e (500 W)": "h100-96gb",
    "A100-40GB-SXM4": "a100-40gb", "A100-80GB-PCIe": "a100-pcie", "A100-80GB-SXM4": "a100", "H100-80GB-PCIe": "h100-pcie",
    "H100-80GB-SXM5": "h100", "K80 (one die)": "k80", "T4 locked at 900 MHz": "t4-900mhz", "V100-16GB": "v100", "GTX 1060": "2xgtx1060",
    "GTX 1080 Ti": "gtx1080ti", "RTX 2070 Max-Q": "rtx2070-max-q", "RTX 2080 Max-Q": "rtx2080-max-q", "RTX 2080 Ti": "rtx2080ti",
    "RTX 3070": "rtx3070", "RTX 3090": "rtx3090", "RTX 4090": "rtx4090", "RTX 5090": "rtx5090",
    "Quadro RTX 6000": "quadro-rtx6000", "Quadro RTX 8000": "quadro-rtx8000",
}  # fmt: skip
_TORCHVISION = (
    "efficientnet_b0", "efficientnet_b4", "mnasnet1_0", "resnext101_32x8d", "shufflenet_v2_x1_0", "squeezenet1_0", "wide_resnet50_2",
)  # fmt: skip
#: Model of a table -> workload or library's model, where it has another name here.
MODELS = {
    "alexnet (BVLC, grouped)": "alexnet_grouped", "alexnet (tf_cnn)": "alexnet", "googlenet (Inception-V1, soumith Torch)": "googlenet",
    "inception_v3": "inception_v3_no_aux", "resnet50 (v1.5)": "resnet50", "resnet50 (mxnet symbol)": "resnet50",
    "resnet50 (arXiv 1512.03385)": "resnet50_v1", "resnet152 (arXiv 1512.03385)": "resnet152_v1", "gpt2 (124M LM)": "gpt2",
    "gpt2-large": "gpt2_large", "bert-base (BertForMaskedLM)": "bert_base", "bert-large (BertLMHead)": "bert_large",
    "bert-base (BertForQuestionAnswering)": "bert_base_qa", "bert-large (BertForQuestionAnswering)": "bert_large_qa",
    "bert_base (SQuAD fine-tuning)": "bert_base_qa", "bert_large (SQuAD fine-tuning)": "bert_large_qa",
    "bert-large (pretraining MLM+NSP)": "bert_large_qa",  # its head predicts the masked tokens alone, one in seven
    "resnet56 (CIFAR, basic blocks)": "resnet56", **{f"resnet{depth} (CIFAR)": f"resnet{depth}" for depth in (110, 224, 362)},
    "mobilenetv2_100": "mobilenet_v2", **{name: f"torchvision:{name}" for name in _TORCHVISION},
}  # fmt: skip
#: Optimizer of a table -> optimizer and form, by the first words; "" if no update was timed.
OPTIMIZERS = {
    "none": ("", ""), "fused LAMB, once": ("", ""), "SGD momentum": ("momentum", "for"), "SGD with momentum": ("momentum", "for"),
    "SGD (timm": ("momentum", "for"), "RMSprop": ("rmsprop", "for"), "Adam (for-loop": ("adam", "for"), "BertAdam": ("adamw", "for"),
    "apex FusedAdam": ("adamw", "fused"), "AdamW (fused": ("adamw", "fused"),
    "Adam (Megatron": ("adamw", "fused"),  # TransformerEngine's FusedAdam (megatron/core/optimizer)
    "decoupled AdamW": ("adamw", "for"),  # Composer's loop over parameters (composer/optim/decoupled_weight_decay.py)
}  # fmt: skip


def preset_of(gpu: str) -> str | None:
    """The machine of a table's GPU: a preset's name, this machine's, or the driver's name of a GPU; None if there is none."""
    name = re.sub(r"[\s_]+", "-", gpu.strip().lower())
    if gpu in GPUS or name in (*machine_names(), THIS_GPU):
        return GPUS.get(gpu, name)
    alike = one_gpu(gpu)
    return alike.name if alike is not None else None


def model_of(text: str) -> str | None:
    """The job's model for a table's; None if there is none. Whether a library has a model is seen when it is built."""
    name = text.removeprefix("timm ")
    if name in MODELS:
        return MODELS[name]
    if workloads.is_built_in(name) or name.partition(":")[0] in LIBRARIES:
        return name
    return f"timm:{name}" if text != name else None


def optimizer_of(text: str) -> tuple[str, str] | None:
    """The optimizer and its form, ("", "") if no update was timed; None for one that is unknown."""
    name, _, form = text.partition(":")
    if name in STATE and form in ("", *FORMS):
        return name, form or "for"
    return next((value for start, value in OPTIMIZERS.items() if text.startswith(start)), None)


def precision_of(text: str) -> str:
    """The job's precision: that of this name, else mixed precision, TF32 or FP32 by what the text says."""
    if text in PRECISIONS:
        return text
    return "amp-fp16" if "amp" in text else "tf32" if text.startswith("tf32") else "fp32"
