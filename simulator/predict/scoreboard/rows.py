"""Measured training steps in tables (CSV, plain or gzip) as jobs on machines, and why some rows cannot be predicted.

The form, one row per step, is also that of users' own tables:

gpu             a machine's name (`schedcast machines`), this-gpu, or the driver's name of the card
model           as `--model` takes it
batch           samples of a step
value_ms        the measured step, in milliseconds
image_or_seq    side of the images or tokens of a sequence; empty: the model's own
precision       as `--precision` takes it; empty: fp32
layout          NCHW or NHWC; empty: NCHW
optimizer       NAME or NAME:FORM; none if no update was timed; empty: SGD with momentum, as a for-loop
source, what, note    where it comes from, what was timed, and remarks

Only the first four are required, and other columns are ignored. Tables that have the same information in other columns are read as `FORMS`
describes. A row is predicted as plain PyTorch on one GPU, without the update where none was timed, and as one CUDA graph of its kernels
where the whole step was captured. Rows of transformers on several GPUs are predicted as `fsdp`, if nothing but their batch and their
parameters is divided.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from simulator.machine.presets import card_of
from simulator.model.attention import CUDNN, PYTORCH
from simulator.model.job import Job
from simulator.model.libraries import LIBRARIES
from simulator.model.workloads.language_models import PREFIX
from simulator.predict.scoreboard import names
from simulator.strategies.registry import with_options
from traces.errors import Code, SchedcastError
from traces.files import Table, kind_at, read_table
from traces.units import read_integer, read_number

#: Rows of a table of which a sample is predicted.
LARGE = 500
REQUIRED = ("gpu", "model", "batch", "value_ms")
#: A count in a table at most.
_MOST = 10**9


class _Record(dict[str, str]):
    """The cells of a row by their columns; "" in a column that the table lacks."""

    def __missing__(self, column: str) -> str:
        return ""

    def count(self, column: str, missing: int | None = None) -> int:
        """The count in a column. `missing`: that of an empty cell. Raises SchedcastError for anything that is no count."""
        number = read_integer(self[column], 1, _MOST) if self[column] or missing is None else missing
        if number is None:
            raise SchedcastError(f"{column} is {self[column][:40]!r}; expected a whole number from 1 to {_MOST:,}")
        return number

    def measured(self, column: str) -> float:
        """The measurement in a column. Raises SchedcastError for anything that is no number above 0."""
        number = read_number(self[column])
        if number is None or not 0 < number < _MOST:
            raise SchedcastError(f"{column} is {self[column][:40]!r}; expected a number above 0")
        return number


class Row(NamedTuple):
    """A measured step that can be predicted. `synchronized`: every step copies its batch to the GPU and waits for the GPU.

    `peaks`: the published peaks of a GPU's memory, in bytes, by what they count: what is "reserved" by PyTorch's allocator, what is
    "allocated", or "" if the table does not say.
    """

    number: int
    source: str
    gpu: str
    machine: str
    workload: str
    job: Job
    updates: bool
    mode: str
    published_s: float
    synchronized: bool
    file: str = ""
    strategy: str = "pytorch"
    peaks: tuple[tuple[str, float], ...] = ()

    @property
    def chip(self) -> str:
        """The card as it is excluded as a whole: variants in memory size or board form are the same card."""
        return card_of(self.machine)

    @property
    def mixed(self) -> bool:
        """Whether it trains in mixed precision."""
        return self.job.precision.startswith(("amp", "mixed"))

    @property
    def model(self) -> str:
        """The model as it is excluded as a whole: variants in heads, stride positions or a library's name are the same model."""
        if self.job.model.startswith(PREFIX):
            return self.workload
        library, _, name = self.workload.partition(":")
        return re.sub(r"_(v1|qa|no_aux)$", "", name if library in LIBRARIES else self.workload)


class LeftOut(NamedTuple):
    """A row that is not predicted. `job`: of a run that failed, a row of what it tried, without a measured time."""

    number: int
    why: str
    file: str = ""
    job: Row | None = None


def read_folder(folder: Path) -> tuple[list[Row], list[LeftOut]]:
    """The rows of all tables of a folder and its subfolders that can be predicted, and the others with reasons.

    Files without the required columns are passed over, such as tables of single kernels. Raises SchedcastError if nothing is left.
    """
    if kind_at(folder) != "folder":
        raise SchedcastError(f"{folder} is no folder; expected one with tables of measured steps (*.csv, *.csv.gz)", Code.FILE)
    rows, left_out = [], []
    for path in sorted([*folder.rglob("*.csv"), *folder.rglob("*.csv.gz")]):
        some, others = read(path, path.relative_to(folder).as_posix())
        rows += some
        left_out += others
    if not rows and not left_out:
        raise SchedcastError(
            f"{folder} has no table of measured steps; expected *.csv or *.csv.gz with the columns {', '.join(REQUIRED)}", Code.FILE
        )
    return rows, left_out


def sampled(rows: Iterable[Row], most: int, large: int = LARGE) -> tuple[list[Row], list[LeftOut]]:
    """All rows, but of a table with more than `large` rows `most` at most: those of models in an order that no measurement decides."""
    chosen, left_out = [], []
    for _, table in groupby(rows, lambda row: row.file):
        own = list(table)
        counts = Counter(row.workload for row in own)
        order, kept, count = sorted(counts, key=_digest), set(), 0
        for model in order if len(own) > large else ():
            count += counts[model]
            kept |= {model} if count <= most else set()
        for row in own:
            if len(own) <= large or row.workload in kept:
                chosen.append(row)
            else:
                left_out.append(LeftOut(row.number, "not in the sample of a large table", row.file))
    return chosen, left_out


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode()).hexdigest()


def read(path: Path, name: str = "", opened: Table | None = None) -> tuple[list[Row], list[LeftOut]]:
    """The rows of one table, called `name`; none of a table in no known form. Raises SchedcastError if it cannot be read.

    `opened`: the table, if its header has been read.
    """
    rows, left_out = [], []
    table = opened or read_table(path, "table of steps")
    form = _form({*table.columns})
    if form is None:
        return [], []
    for number, (line, record) in enumerate(table.rows):
        try:
            row = _damaged(name, line, record) if isinstance(record, str) else form(_Record(record), number)
        except SchedcastError as error:
            row = _damaged(name, line, str(error))
        if isinstance(row, Row):
            rows.append(row._replace(file=name))
        else:
            left_out.append(row._replace(file=name) if isinstance(row, LeftOut) else LeftOut(number, row, name))
    return rows, left_out


def _damaged(name: str, line: int, why: str) -> str:
    """Why an implausible row is skipped."""
    return f"line {line} of {name or 'the table'}: {why}"


def _form(columns: set[str]) -> Callable[[_Record, int], Row | LeftOut | str] | None:
    return next((form for needed, form in FORMS if columns.issuperset(needed)), None)


def _measured(record: _Record, number: int) -> Row | str:
    """A row of the documented form, or why it cannot be predicted."""
    return _refused(record) or _row(record, number)


def _refused(record: _Record) -> str:
    """Why a row is not predicted; "" if it is."""
    gpu, precision, what = record["gpu"], record.get("precision", ""), record.get("what", "")
    if "tier C" in record.get("note", ""):
        return "tier C: input-bound or of variable length"
    if "only" in what and "step()" in what:
        return "times the optimizer alone"
    if what.startswith("sum of op"):
        return "a sum of op times, not a step"
    if re.match(r"\d+x", gpu):
        return "several GPUs"
    if "pretraining" in record["model"] and record.get("image_or_seq") == "seq512":
        return "implausible: in FP32 the table's V100 computes 20 TFLOP/s at this length, more than its peak"
    if "half" in precision or "O2" in precision or ("amp" in precision and "BertAdam" in record.get("optimizer", "")):
        return "all of the model in fp16, which is no precision of a job"
    if names.preset_of(gpu) is None:
        return f"no preset for {gpu}"
    if names.model_of(record["model"]) is None:
        return f"no workload for {record['model']}"
    if names.optimizer_of(record.get("optimizer") or "momentum") is None:
        return f"no optimizer for {record['optimizer']}"
    numbers = map(read_number, (record["batch"], record["value_ms"], record.get("image_or_seq", "").removeprefix("seq") or "1"))
    return "" if all(number and 0 < number < _MOST for number in numbers) else "its batch, size or time is no positive number"


def _row(record: _Record, number: int) -> Row:
    text = record.get("optimizer") or "momentum"
    optimizer, form = names.optimizer_of(text) or ("", "")
    model, size = names.model_of(record["model"]) or "", record.get("image_or_seq", "").removeprefix("seq")
    job = Job(
        model,
        int(float(record["batch"])),
        image_size=int(float(size)) if size else None,
        optimizer=optimizer or "sgd",
        form=form or "foreach",
        clip_norm=1.0 if "clip" in text else None,
        precision=names.precision_of(record.get("precision") or "fp32"),
        layout="nhwc" if record.get("layout", "").upper() == "NHWC" else "nchw",
    )
    return Row(
        number,
        source=record.get("source", "").partition("/")[0].partition(",")[0] or "own rows",
        gpu=record["gpu"],
        machine=names.preset_of(record["gpu"]) or "",
        workload=model,
        job=job,
        updates=bool(optimizer),
        mode="graph" if "captured" in text else "eager",
        published_s=float(record["value_ms"]) / 1e3,
        synchronized="H2D copy" in record.get("what", ""),
    )


def _timm(record: _Record, number: int) -> Row | str:
    """A row of timm's benchmark of training on an RTX 3090, in fp16. It has no gradient scaler, whose pass over the gradients is short.

    A job in bf16 has none either, but PyTorch normalizes images in bf16 with other kernels (`costs.channel_blocks`).
    """
    if record["torch"] != "1.12":
        return "the same job with an older PyTorch"
    same = {
        "source": "timm", "gpu": "RTX 3090", "model": names.MODELS.get(record["model"], f"timm:{record['model']}"),
        "batch": record["batch"], "value_ms": record["step_ms"], "image_or_seq": record["image"], "precision": "amp-fp16",
        "layout": record["layout"], "optimizer": "momentum:for",
    }  # fmt: skip
    return _measured(_Record(same), number)


#: What is said of checkpointing -> `--checkpoint`.
_CHECKPOINTS = {"none": "none", "full": "full", "selective": "selective", "selective op": "selective"}
#: What a note says of a loss whose kernel makes no copy of the logits.
_FUSED_LOSS = "fused cross entropy"
#: Degrees of parallelism that are not read: several stages per device.
_OTHER_DEGREES = ("vp",)
#: What is said of experts and of latent attention, with the options of `lm:`.
_EXPERTS = re.compile(
    r"(MLA q_lora (?P<q_lora>\d+) kv_lora (?P<kv_lora>\d+) rope (?P<rope_dim>\d+) v (?P<head_dim>\d+); )?"
    r"(?P<dense_layers>first layer dense( \(dense_layers=1\))?; )?"
    r"(?P<experts>\d+) (routed )?experts top (?P<active>\d+), expert ffn (?P<expert_ffn>\d+)(, shared (?P<shared_ffn>\d+))?"
)


def _transformer(record: _Record, number: int) -> Row | LeftOut | str:
    """A row of a table of trainings of transformers: sizes of the model, and how it is divided over GPUs."""
    if OUT_OF_MEMORY.upper() in record.get("note", ""):
        tried = _transformer(_Record({**record, "note": "", "step_ms": "1"}), number)
        return LeftOut(number, OUT_OF_MEMORY, job=tried) if isinstance(tried, Row) else tried
    why = _untrained(record)
    if why:
        return why
    gpus, accumulate, tensor, stages, context = (record.count(name, 1) for name in ("gpus", "accumulation", "tp", "pp", "cp"))
    replicas = gpus // (tensor * stages * context)
    form, positions = ("llama", "rotary") if record["ffn_kind"] == "swiglu" else ("gpt", "learned")
    sizes = ",".join(f"{name}={record.count(name)}" for name in ("layers", "d_model", "heads", "ffn", "vocab"))
    more = f"kv_heads={record.count('kv_heads', record.count('heads'))},tied={'on' if record['tied_embeddings'] == 'yes' else 'off'}"
    if (
        form == "llama"
        and record["kv_heads"] in ("", record["heads"])
        and any(name in record["software"] for name in ("Megatron", "nanotron"))
    ):
        more += ",fused=on"
    more += _experts(record)
    mpt = "MPT" in record["arch"]
    more += f",positions={positions}" + (",norm=low" if mpt else "")
    more += ",loss=fused" if mpt or _FUSED_LOSS in record.get("note", "") else ""
    model = f"{PREFIX}form={form},{sizes},{more}"
    job = Job(
        model,
        record.count("micro_batch") * accumulate * replicas,
        image_size=record.count("seq"),
        optimizer="adamw",
        form=(names.optimizer_of(record.get("optimizer", "")) or ("adamw", "foreach"))[1],
        clip_norm=1.0 if stages == 1 else None,  # no stage has all gradients
        accumulate=accumulate,
        precision=_trained_in(record),
        attention=CUDNN if "TransformerEngine" in record.get("attention", "") else PYTORCH,
        checkpoint=_CHECKPOINTS[record["activation_checkpointing"]],
    )
    card = names.preset_of(record["gpu"]) or ""
    peaks = {name: record.measured(f"peak_{name}_gib") for name in ("reserved", "allocated") if record[f"peak_{name}_gib"]}
    keeps = {"GRAD_OP": "reshard=off", "ZeRO-1": "shard=1"}
    options = [option for word, option in keeps.items() if word in record["shard"]] + ([f"tp={tensor}"] if tensor > 1 else [])
    options += ["gradients=fused"] if "Megatron" in record.get("software", "") and "shard=1" in options else []
    options += [f"cp={context}"] if context > 1 else []
    options += [f"ep={record['ep']}"] if record["ep"] not in ("", "1") else []
    strategy = ":".join(filter(None, ("fsdp", ",".join(options))))
    return Row(
        number,
        source=record["source"].partition(" ")[0],
        gpu=record["gpu"],
        machine=f"{gpus}x{card}" if gpus > 1 else card,
        workload=record["arch"],
        job=job,
        updates=True,
        mode="eager",
        published_s=record.measured("step_ms") / 1e3,
        synchronized=False,
        strategy=strategy if stages == 1 else _pipeline(stages, accumulate, replicas, tensor, "ZeRO-1" in record["shard"], _MEGATRON_LM),
        peaks=tuple((name, size * 2**30) for name, size in peaks.items()),
    )


def _experts(record: _Record) -> str:
    """The experts of a model, and its latent attention, as options of `lm:`."""
    sizes = _EXPERTS.fullmatch(record["moe"])
    if sizes is None:
        return ""
    given = sizes.groupdict() | {"dense_layers": sizes["dense_layers"] and "1"}
    return "".join(f",{name}={number}" for name, number in given.items() if number)


#: Options of Megatron-LM's pipelines.
_MEGATRON_LM = "gradients=fused,placement=even"


def _pipeline(stages: int, microbatches: int, replicas: int, tensor: int, shards: bool, others: str) -> str:
    """A pipeline in replicas as the text of a strategy. `shards`: optimizer state over the replicas. `others`: other options."""
    more = (f",replicas={replicas}" if replicas > 1 else "") + (f",tp={tensor}" if tensor > 1 else "")
    more += ",shard=1" if shards and replicas > 1 else ""
    return f"1f1b:stages={stages},microbatches={microbatches}{more},{others}"


def _trained_in(record: _Record) -> str:
    """The precision of a training: under autocast, with parameters in bf16, or with float32 ones of which bf16 copies compute.

    The last is what FSDP2's mixed precision, DeepSpeed's bf16 and nanotron's float32 gradients are.
    """
    if "amp" in record["precision"]:
        return "amp"
    return "bf16" if record["precision"] == "bf16" and "DeepSpeed" not in record["shard"] else "mixed"


def _untrained(record: _Record) -> str:
    """Why a row of a training of a transformer is not predicted; "" if it is."""
    tensor, stages, experts, context = (record[degree] not in ("", "1") for degree in ("tp", "pp", "ep", "cp"))
    unread = (record["moe"] and not _experts(record)) or (experts and (tensor or stages or context)) or (context and stages)
    if unread or any(record.get(degree, "") not in ("", "1") for degree in _OTHER_DEGREES):
        return "divides experts or sequences and more, or has several stages per device"
    if record.count("gpus", 1) % math.prod(record.count(degree, 1) for degree in ("tp", "pp", "cp")):
        return "its degrees do not multiply to its GPUs"
    if not record["precision"].startswith("bf16"):
        return "a precision below 16 bits"
    if record["compile"] == "yes":
        return "compiled: its fused kernels are not those of the plan"
    if names.preset_of(record["gpu"]) is None:
        return f"no preset for {record['gpu']}"
    if record["activation_checkpointing"] not in _CHECKPOINTS:
        return "says nothing that --checkpoint means of its checkpointing"
    needed = ("step_ms", "layers", "d_model", "heads", "ffn", "vocab", "micro_batch", "gpus", "seq")
    return "" if all(record[name] for name in needed) else "a size or the time is missing"


#: Why runs that did not complete are skipped.
OUT_OF_MEMORY, FAILED = "out of memory", "crashed or out of memory"
#: Stage 1 of ZeRO whose gathers nothing hides.
ZERO_1 = "fsdp:shard=1,prefetch=0"
#: Models of the runs of nanotron, by name: Llama's form with full attention (scripts/scaling_benchmarks.py).
_NANOTRON = {"1B": (16, 2048, 32, 8192, "on"), "3B": (28, 3072, 32, 8192, "on"), "80B": (80, 8192, 64, 28672, "off")}


def _nanotron(record: _Record, number: int) -> Row | LeftOut | str:
    """A row of the Ultra-Scale Playbook: nanotron on nodes of eight H100, sequences of 4,096 tokens, bf16 weights with master copies.

    Gradients are summed in a float32 buffer that lasts, AdamW is fused (examples/config_tiny_llama_bench.yaml), and ZeRO-1 gathers all
    parameters between the update and the next forward (src/nanotron/optim/zero.py), so that nothing hides that. A backward's gradients are
    added after it (src/nanotron/optim/gradient_accumulator.py). Without ZeRO-1, DistributedDataParallel sums them during the last backward;
    with it, they are summed whole after that has ended (`init_model` and `training_step` of src/nanotron/trainer.py).
    """
    if record["ok"] != "yes":
        tried = _nanotron(_Record({**record, "ok": "yes", "step_ms": "1", "memory_gb": ""}), number)
        return LeftOut(number, FAILED, job=tried if isinstance(tried, Row) else None)
    if record["model"] not in _NANOTRON:
        return f"no workload for nanotron's {record['model']}"
    layers, width, heads, ffn, tied = _NANOTRON[record["model"]]
    same = {
        "source": "nanotron", "arch": f"nanotron {record['model']}", "layers": str(layers), "d_model": str(width), "heads": str(heads),
        "kv_heads": "", "ffn": str(ffn), "ffn_kind": "swiglu", "vocab": "131072",
        "tied_embeddings": "yes" if tied == "on" and record["pp"] == "1" else "no",
        "moe": "", "seq": "4096", "micro_batch": record["micro_batch"], "accumulation": record["accumulation"], "gpus": record["gpus"],
        "gpu": "H100-80GB-SXM5", "tp": record["tp"], "pp": record["pp"], "cp": "", "ep": "", "activation_checkpointing": "none",
        "precision": "bf16, fp32 gradients", "compile": "no", "shard": "", "software": "nanotron", "step_ms": record["step_ms"],
        "optimizer": "AdamW (fused)",
    }  # fmt: skip
    row = _transformer(_Record(same), number)
    if not isinstance(row, Row):
        return row
    tensor, stages = record.count("tp", 1), record.count("pp", 1)
    peaks = (("", record.measured("memory_gb") * 2**30),) if record["memory_gb"] else ()
    if stages > 1:
        replicas = record.count("gpus", 1) // (tensor * stages)
        pipeline = _pipeline(stages, record.count("accumulation", 1), replicas, tensor, record["zero"] == "1", "gradients=held")
        return row._replace(strategy=pipeline, peaks=peaks)
    strategy = ZERO_1 if record["zero"] == "1" else "fsdp:shard=0" if tensor > 1 else "data-parallel"
    options = ["gradients=held"] + ([f"tp={tensor}"] if tensor > 1 else [])
    return row._replace(
        strategy=with_options(strategy, *options),
        job=replace(row.job, clip_norm=None),
        peaks=peaks,
    )


#: The columns by which a form is known -> what makes a row of it, or says why it is not predicted.
FORMS: tuple[tuple[tuple[str, ...], Callable[[_Record, int], Row | LeftOut | str]], ...] = (
    (REQUIRED, _measured),
    (("model", "layout", "batch", "image", "step_ms", "torch"), _timm),
    (("arch", "layers", "d_model", "shard", "gpus", "tp", "pp", "step_ms"), _transformer),
    (("model", "gpus", "zero", "tp", "pp", "step_ms"), _nanotron),
)
