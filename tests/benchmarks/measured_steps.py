"""Published training steps (`measured_steps.csv` of the shared data) as jobs on presets, and why some rows cannot be predicted.

The table is not in this repository. A row is predicted as plain PyTorch on one GPU, without the update where none was timed, and as one
CUDA graph of the `baseline` where the whole step was captured. `year`: that of the software, by the row's source.
"""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import UPDATE
from simulator.predict.forecast import Forecast, forecast, plan_strategy
from simulator.predict.preset import preset_costs

#: The file's name in the folder of shared data.
TABLE = "measured_steps.csv"
#: GPU of the table -> preset.
PRESETS = {
    "A100-40GB-PCIe": "a100-40gb-pcie", "A100-40GB-SXM4": "a100-40gb", "A100-80GB-PCIe": "a100-pcie", "A100-80GB-SXM4": "a100",
    "H100-80GB-PCIe": "h100-pcie", "H100-80GB-SXM5": "h100", "H100": "h100", "K80 (one die)": "k80", "L4": "l4", "P100": "p100",
    "RTX3090": "rtx3090", "T4 locked at 900 MHz": "t4-900mhz", "Titan-X-Pascal": "titan-x-pascal", "V100": "v100", "V100-16GB": "v100",
    "V100-32GB": "v100-32gb", "V100-PCIe-32GB": "v100-pcie-32gb",
}  # fmt: skip
#: Model of the table -> workload. Models without an entry have the workload of the same name, or none.
MODELS = {
    "alexnet (BVLC, grouped)": "alexnet_grouped", "alexnet (tf_cnn)": "alexnet", "googlenet (Inception-V1, soumith Torch)": "googlenet",
    "inception_v3": "inception_v3_no_aux", "resnet50 (v1.5)": "resnet50", "resnet50 (mxnet symbol)": "resnet50",
    "resnet50 (arXiv 1512.03385)": "resnet50_v1", "resnet152 (arXiv 1512.03385)": "resnet152_v1", "gpt2 (124M LM)": "gpt2",
    "gpt2-large": "gpt2_large", "bert-base (BertForMaskedLM)": "bert_base", "bert-large (BertLMHead)": "bert_large",
    "bert-base (BertForQuestionAnswering)": "bert_base_qa", "bert-large (BertForQuestionAnswering)": "bert_large_qa",
    "bert-large (pretraining MLM+NSP)": "bert_large_qa",  # its head predicts the masked tokens alone, one in seven
    "alexnet": "alexnet", "densenet121": "densenet121", "densenet161": "densenet161", "densenet201": "densenet201",
    "mobilenet_v2": "mobilenet_v2", "mobilenetv2_100": "mobilenet_v2",
    "resnext50_32x4d": "resnext50_32x4d", "resnext101_32x4d": "resnext101_32x4d",
    **{f"resnet{depth}": f"resnet{depth}" for depth in (18, 34, 50, 101, 152)},
    **{f"vgg{depth}": f"vgg{depth}" for depth in (11, 13, 16, 19)},
}  # fmt: skip
#: Optimizer of the table -> optimizer and form, by the first words; "" if no update was timed.
OPTIMIZERS = {
    "none": ("", ""), "fused LAMB, once": ("", ""), "SGD momentum": ("momentum", "for"), "sgd": ("sgd", "for"),
    "Adam (for-loop": ("adam", "for"),
    "BertAdam for-loop": ("adamw", "for"), "apex FusedAdam": ("adamw", "fused"), "SGD (timm": ("momentum", "for"),
}  # fmt: skip
#: Source of the table -> year of the software that ran.
YEARS = {
    "jcjohnson": 2016, "rejunity": 2017, "tensorflow": 2017, "u39kun": 2017, "apache": 2018, "ryujaehun": 2020, "NVIDIA": 2021,
    "pytorch": 2021,
    "lambdal": 2022, "sitar-lab": 2023, "huggingface": 2022,
}  # fmt: skip
#: Sources whose steps copy the batch to the GPU and wait for the GPU; there all models but VGGs wait for the host.
SYNCHRONIZED = frozenset({"ryujaehun"})


class Row(NamedTuple):
    """A published step that can be predicted."""

    number: int
    source: str
    year: int
    gpu: str
    machine: str
    workload: str
    job: Job
    updates: bool
    mode: str
    published_s: float
    synchronized: bool

    @property
    def chip(self) -> str:
        """The GPU that is left out as a whole: boards with the same chip count as one."""
        return re.split(r"[- ]", self.gpu)[0]

    @property
    def mixed(self) -> bool:
        """Whether it trains in mixed precision."""
        return self.job.precision.startswith("amp")

    @property
    def model(self) -> str:
        """The model that is left out as a whole: heads and positions of strides make no other model."""
        return re.sub(r"_(v1|qa|no_aux)$", "", self.workload)


class LeftOut(NamedTuple):
    """A row that is not predicted."""

    number: int
    why: str


def read(path: Path) -> tuple[list[Row], list[LeftOut]]:
    """The rows of the table that can be predicted, and the others with reasons."""
    rows, left_out = [], []
    with path.open(newline="") as file:
        for number, record in enumerate(csv.DictReader(file)):
            why = _refused(record)
            if why:
                left_out.append(LeftOut(number, why))
            else:
                rows.append(_row(number, record))
    return rows, left_out


def _refused(record: dict[str, str]) -> str:
    """Why a row is not predicted; "" if it is."""
    gpu, precision, optimizer = record["gpu"], record["precision"], record["optimizer"]
    if "tier C" in record["note"]:
        return "tier C: input-bound or of variable length"
    if "only" in record["what"] and "step()" in record["what"]:
        return "times the optimizer alone"
    if record["what"].startswith("sum of op"):
        return "a sum of op times, not a step"
    if re.match(r"\d+x", gpu):
        return "several GPUs"
    if "pretraining" in record["model"] and record["image_or_seq"] == "seq512":
        return "implausible: in FP32 the table's V100 computes 20 TFLOP/s at this length, more than its peak"
    if "half" in precision or "O2" in precision:
        return "all of the model in fp16, which is no precision of a job"
    if gpu not in PRESETS:
        return f"no preset for {gpu}"
    if _workload(record["model"]) is None:
        return f"no workload for {record['model']}"
    if _optimizer(optimizer) is None:
        return f"no optimizer for {optimizer}"
    return ""


def _workload(model: str) -> str | None:
    return MODELS.get(model.removeprefix("timm "))


def _optimizer(text: str) -> tuple[str, str] | None:
    return next((value for start, value in OPTIMIZERS.items() if text.startswith(start)), None)


def _precision(text: str) -> str:
    return "amp-fp16" if "amp" in text else "tf32" if text.startswith("tf32") else "fp32"


def _row(number: int, record: dict[str, str]) -> Row:
    source = record["source"].partition("/")[0]
    optimizer, form = _optimizer(record["optimizer"])
    job = Job(
        _workload(record["model"]),
        int(record["batch"]),
        image_size=int(record["image_or_seq"].removeprefix("seq")),
        optimizer=optimizer or "sgd",
        form=form or "foreach",
        clip_norm=1.0 if "clip" in record["optimizer"] else None,
        precision=_precision(record["precision"]),
        layout="nhwc" if record["layout"] == "NHWC" else "nchw",
    )
    return Row(
        number,
        source,
        YEARS[source],
        record["gpu"],
        PRESETS[record["gpu"]],
        _workload(record["model"]),
        job,
        bool(optimizer),
        "graph" if "captured" in record["optimizer"] else "eager",
        float(record["value_ms"]) / 1e3,
        source in SYNCHRONIZED and not record["model"].startswith("vgg"),
    )


def plan_of(row: Row) -> tuple[Plan, Machine, CostModel]:
    """The plan of a row with its machine and costs."""
    machine, model = preset_costs(row.job, row.machine)
    plan = plan_strategy("pytorch" if row.mode == "eager" else "baseline", {}, row.job, machine, model)
    if not row.updates:
        segments = (replace(segment, tasks=tuple(t for t in segment.tasks if t.phase != UPDATE)) for segment in plan.segments)
        plan = replace(plan, segments=tuple(segments))
    return plan, machine, model


def predicted(row: Row) -> Forecast:
    """The forecast of a row."""
    plan, machine, model = plan_of(row)
    return forecast(plan, machine, model, row.mode)
