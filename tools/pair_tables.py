"""The measured pairs with one change, as jobs on presets, and why some are not predicted.

`pairs.csv` of the shared data says in words what ran; every row of it is either a pair here or skipped with a reason. Rows of
`measured_steps.csv` and of the trainings of transformers that differ in one thing only, the layout pairs of `timm/`, and the speed-ups of
strategies in `published.json` are pairs too. What is a pair of two tables counts once, in `pairs.csv`.
"""

import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from simulator.engine.clock import Clock
from simulator.engine.links import Links
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.machine.scaled import Scale, scaled
from simulator.model.job import Job
from simulator.model.workloads import registry as workloads
from simulator.plan.bodies.copy import ALL_REDUCE, Collective
from simulator.plan.task import BACKWARD, FORWARD, UPDATE
from simulator.predict.discrepancy import published
from simulator.predict.pairs import Pair, Side
from simulator.predict.scoreboard.rows import ZERO_1, Row, read, sampled
from tools.fit_steps import SAMPLE
from traces.documents.comparison import PYTORCH, PYTORCH_GRAPH

TRANSFORMERS = "llm/llm_steps.csv", "llm/ultrascale_h100_steps.csv.gz"
TABLE, PAIRS, LAYOUTS = "measured_steps.csv", "pairs.csv", "timm/train_amp_rtx3090.csv.gz"
MODELS = str(Path(__file__).with_name("pair_models.py"))
#: Torch of the layout pairs, the newest of the table.
TORCH = "1.12"
#: What a rule of `pairs.csv` is called here, if something else.
RULES = {"cuda graph": "cuda-graph", "fused optimizer": "optimizer", "ddp": "gradient buckets"}
#: Rows of `pairs.csv` that are not predicted: the rule, part of the job or the change (empty: any), and why. The first that fits counts.
REFUSED = (
    ("compile", "", "torch.compile is not modeled"),
    ("compile and kernels", "", "torch.compile is not modeled"),
    ("kernel", "", "a new kernel: what it takes is what the pair measures"),
    ("float8", "", "no precision of a job"),
    ("async tp", "", "no strategy overlaps products with the collectives of tensor parallelism"),
    ("activation checkpointing", "selective layer", "every second block is repeated, which --checkpoint does not offer"),
    ("activation checkpointing", "graph trainer", "the job is compiled, and what it keeps by default is not stated"),
    ("activation checkpointing", "a mixture of experts", "the sizes of the model are not stated"),
    ("distribute the optimizer", "", "the job is compiled, and its optimizer is no optimizer of a job"),
    ("gradient communication", "symmetric memory", "symmetric memory is not modeled"),
    ("gradient communication", "", "the job is compiled, with kernels of its own, and the whole change is not stated"),
    ("scale out", "", "no preset for an H100 of 96 GB and 500 W"),
    ("schedule", "", "no strategy shards the parameters within a pipeline"),
    ("precision", "", "the job is compiled, or its configuration is not stated"),
    ("remove layer", "", "the job is compiled, with kernels of its own"),
    ("software", "", "versions of software are not modeled"),
    ("allocator", "", "what the allocator takes is not modeled"),
    ("padding", "", "the job is compiled"),
    ("fused optimizer", "GPT-2", "the job is compiled"),
    ("ddp", "broadcast_buffers", "broadcasts of buffers are not modeled"),
    ("ddp", "the knobs", "broadcasts of buffers are not modeled"),
    ("cuda graph", "Spikformer", "spiking networks are not predicted"),
    ("cuda graph", "small MLP", "the GPU is not stated"),
    ("loader", "", "no trace: what loading takes is not stated"),
    ("amp", "xl, batch 4, context 1024, forward and backward", "no gain: before the change it did not fit in memory, as is predicted"),
)  # fmt: skip


def pairs_table(path: Path) -> tuple[list[Pair], list[tuple[str, str]]]:
    """The rows of `pairs.csv` that can be predicted without a trace, and (rule, reason) of the others but those with traces."""
    pairs, left_out = [], []
    with path.open(newline="") as file:
        for record in csv.DictReader(file):
            sides = _sides(record)
            if sides is not None and record["speedup"]:
                label = f"{record['job']}: {record['change']}"
                pairs.append(Pair(RULES.get(record["rule"], record["rule"]), label, _source(record), *sides, float(record["speedup"])))
            elif "traces" not in record["note"]:
                left_out.append((RULES.get(record["rule"], record["rule"]), refusal(record)))
    return pairs, left_out


def of_traces(path: Path) -> dict[str, float]:
    """The measured gains of the rows of `pairs.csv` that have traces, by the name of the trace before the change."""
    with path.open(newline="") as file:
        named = ((re.search(r"kineto/(\w+) > ", record["note"]), record) for record in csv.DictReader(file))
        return {match[1]: float(record["before"]) / float(record["after"]) for match, record in named if match}


def refusal(record: dict[str, str]) -> str:
    """Why a row is not predicted. Raises StopIteration for one without a reason."""
    text = re.sub(r" \(layers[^)]*\)", "", f"{record['job']}: {record['change']}")
    return next(why for rule, part, why in REFUSED if rule == record["rule"] and part in text)


def _source(record: dict[str, str]) -> str:
    return re.sub(r"[@,].*", "", record["source"]).removesuffix(" README.md").strip()


def _sides(record: dict[str, str]) -> tuple[Side, Side] | None:
    """The two steps of a row; None if it is not predicted."""
    rule, job, change = record["rule"], record["job"], record["change"]
    if rule == "amp" and (match := re.match(r"GPT-2 (small|large|xl) .*context (\d+), forward( and backward)?$", job)):
        phases = (FORWARD, BACKWARD) if match[3] else (FORWARD,)
        before = Side(Job(f"{MODELS}:cs336_{match[1]}_{match[2]}", 4, precision="tf32"), "a100", phases=phases)
        return before, _with(before, precision="amp")
    if rule == "ddp" and (match := re.match(r"GPT-2 xl .*context (\d+),", job)):
        model = f"{MODELS}:cs336_xl_{match[1]}"
        before = Side(Job(model, 4, precision="tf32", optimizer="adamw", form="for"), a100_pair(), "data-parallel:overlap=off,bucket=0")
        return before, replace(before, strategy=f"data-parallel:{_reduction(change)}")
    if rule == "sharded optimizer" and (match := re.search(r"context (\d+)$", job)):
        model = f"{MODELS}:cs336_xl_{match[1]}"
        before = Side(Job(model, 4, precision="tf32", optimizer="adamw", form="for"), a100_pair(), "data-parallel:bucket=0")
        return before, replace(before, strategy=ZERO_1)
    if rule == "activation checkpointing" and change == "none > selective op":
        before = Side(Job("llama2:13b", 128, 4096, "adamw", clip_norm=1.0, precision="amp"), "64xa100", "fsdp")
        return before, _with(before, checkpoint="selective")
    if rule in ("tf32", "amp") and job.startswith("GPT-2 124M"):
        before = Side(Job(f"{MODELS}:gpt2_124m", 16, optimizer="adamw", precision={"tf32": "fp32", "amp": "tf32"}[rule]), "a100")
        return before, _with(before, precision={"tf32": "tf32", "amp": "amp"}[rule])
    if job.startswith("3-D U-Net") and "DDP" not in change and "knobs" not in change:
        before = Side(Job(f"{MODELS}:unet3d", 64, optimizer="adam", form="for", precision="tf32"), "a100-40gb")
        mixed = _with(before, precision="amp-fp16")
        steps = {"tf32": (before, _with(before, precision="fp32")), "amp": (before, mixed)}
        return {**steps, "fused optimizer": (mixed, _with(mixed, form="fused"))}.get(rule)
    if "bucket_cap" in change:
        job = Job(f"{MODELS}:unet3d", 64, optimizer="adam", form="fused", precision="amp-fp16")
        before = Side(job, "2xdgx-a100", "data-parallel:bucket=25", devices=4)
        return before, replace(before, strategy="data-parallel:bucket=100")
    if rule == "cuda graph" and (match := re.match(r"torchbench ResNet-50 fp32 train batch (\d+)", job)):
        before = Side(Job("resnet50", int(match[1]), optimizer="adam", form="for"), "v100")
        return before, replace(before, strategy=PYTORCH_GRAPH, host_counts=True)
    return None


def _with(side: Side, **fields) -> Side:
    return replace(side, job=replace(side.job, **fields))


def _reduction(change: str) -> str:
    """The options of a row's order of gradient reductions."""
    if match := re.match(r"buckets of (\d+) MB", change):
        return f"bucket={match[1]}"
    return {"one flat all-reduce after backward": "overlap=off,bucket=1e6"}.get(change, "bucket=0")


def a100_pair() -> Machine:
    """Two A100 of 80 GB on PCI Express, whose all-reduce of 1 GB the source measured, with nothing concurrent, as 50.8 ms."""
    machine, body, measured_s = load_machine("2xa100-pcie"), Collective(ALL_REDUCE, ("cuda:0", "cuda:1")), 50.8e-3
    links = Links(Clock(), machine)
    route, moved = links.collective(body, 1e9)
    faster = (links.alone_s(route, moved) - route.latency_s) / (measured_s - route.latency_s)
    return scaled(machine, Scale(link=faster))


def step_pairs(path: Path) -> Iterator[Pair]:
    """The rows of a table that differ in one thing only, of ORDERS: for numbers, the next larger one."""
    rows = read(path)[0]
    taken = {("resnet50", batch) for batch in (1, 64)}  # these graphs are in `pairs.csv`, and the layouts in `timm/`
    for first, second, what in _one_change(rows):
        if (what == "cuda-graph" and (first.workload, first.job.batch) in taken) or (what == "layout" and first.source == "huggingface"):
            continue
        samples = second.job.batch / first.job.batch
        several = f"{gpus} " if (gpus := _value("scale out", first)) != 1 else ""
        ran = f"{first.workload}, {first.job.batch} on {several}{first.gpu}{', a graph' if first.mode == second.mode == 'graph' else ''}"
        label = f"{ran}: {_value(what, first)} > {_value(what, second)}"
        rule = {"tf32": "tf32"}.get(second.job.precision, "amp") if what == "precision" else what
        gain = samples * first.published_s / second.published_s
        yield Pair(rule, label, first.source, _side(first), _side(second), gain, path.name == TABLE)


def _one_change(rows: Sequence[Row]) -> Iterator[tuple[Row, Row, str]]:
    """Two rows and what they differ in, of ORDERS."""
    for what, values in ORDERS.items():
        groups: dict[object, dict[object, Row]] = {}
        for row in rows:
            key = {name: _value(name, row) for name in ORDERS if name != what}
            same = (row.gpu, row.job.image_size, row.job.accumulate, row.job.checkpoint, row.job.optimizer, row.job.form, row.updates)
            key |= {"job": (row.source, row.workload, *same)}
            groups.setdefault(tuple(key.items()), {}).setdefault(_value(what, row), row)
        for group in groups.values():
            known = sorted(group) if values is None else [value for value in values if value in group]
            yield from ((group[a], group[b], what) for a, b in pairwise(known))


#: What two rows may differ in, and the order of its values (None: of numbers).
ORDERS = {
    "precision": ("fp32", "tf32", "amp-fp16"), "layout": ("nchw", "nhwc"), "cuda-graph": ("eager", "graph"), "batch": None,
    "sharded optimizer": ("data-parallel", ZERO_1), "scale out": None,
}  # fmt: skip


def _value(name: str, row: Row) -> object:
    gpus = 1 if row.strategy == PYTORCH else int(row.machine.partition("x")[0])
    return {
        "precision": row.job.precision, "layout": row.job.layout, "cuda-graph": row.mode, "batch": row.job.batch // gpus,
        "sharded optimizer": re.sub("[:,]gradients=(kept|fused|held)", "", row.strategy), "scale out": gpus,
    }[name]  # fmt: skip


def _side(row: Row) -> Side:
    phases = () if row.updates else (FORWARD, BACKWARD)
    if row.mode == "eager":
        return Side(row.job, row.machine, row.strategy, phases=phases)
    return Side(row.job, row.machine, PYTORCH_GRAPH, phases=phases, host_counts=True)  # they are of PyTorch 1.11


def form_pairs(path: Path) -> Iterator[Pair]:
    """The forms of an optimizer's step in `measured_steps.csv`: AdamW over ten linear layers on an A100."""
    with path.open(newline="") as file:
        took = {record["optimizer"]: float(record["value_ms"]) for record in csv.DictReader(file) if "step() only" in record["what"]}
    forms = {"for": took["AdamW for-loop (foreach=False)"], "foreach": took["AdamW foreach"], "fused": took["AdamW fused"]}
    for first, second in pairwise(forms):
        one, other = (
            Side(Job(f"{MODELS}:ten_linear", 32, optimizer="adamw", form=form), "a100", phases=(UPDATE,)) for form in (first, second)
        )
        label = f"AdamW of ten linear layers, step() alone: {first} > {second}"
        yield Pair("optimizer", label, "pytorch/pytorch issue 120308", one, other, forms[first] / forms[second])


def layout_pairs(path: Path, measured: Path) -> Iterator[Pair]:
    """The layout pairs of models that are built in or torchvision's, on an RTX 3090 under AMP. `measured`: `measured_steps.csv`."""
    took: dict[tuple[str, int, int], dict[str, float]] = {}
    with gzip.open(path, "rt", newline="") as file:
        for record in csv.DictReader(file):
            if record["torch"] == TORCH and record["torchvision"]:
                key = (record["torchvision"], int(record["batch"]), int(record["image"]))
                took.setdefault(key, {}).setdefault(record["layout"], float(record["step_ms"]))
    seen = (*read(measured)[0], *sampled(read(path)[0], SAMPLE)[0])
    fitted = {(row.workload, row.job.batch) for row in seen if row.machine == "rtx3090"}
    for (name, batch, size), by_layout in sorted(took.items()):
        if len(by_layout) == 2:
            workload = {"inception_v3": "inception_v3_no_aux"}.get(name, name)
            model = workload if workload in workloads.names() else f"torchvision:{name}"
            one = Side(Job(model, batch, size, "momentum", "for", precision="amp-fp16"), "rtx3090")
            gain = by_layout["nchw"] / by_layout["nhwc"]
            label = f"{name}, {batch}: nchw > nhwc"
            yield Pair("layout", label, "timm", one, _with(one, layout="nhwc"), gain, (workload, batch) in fitted)


def strategy_pairs() -> Iterator[Pair]:
    """The speed-ups of strategies that papers and benchmarks published."""
    for entry in published().speedups:
        one = entry.batch // entry.devices if entry.devices else entry.batch
        job = Job(entry.model, one, optimizer=entry.job.get("optimizer", "momentum"), form=entry.job.get("form", "foreach"),
                  precision=entry.job.get("precision", "fp32"))  # fmt: skip
        before = Side(job, entry.machine, entry.over, devices=1 if entry.devices else None, host=entry.host)
        after = Side(replace(job, batch=entry.batch), entry.machine, entry.strategy, devices=entry.devices, host=entry.host)
        rule = "scale out" if entry.devices else entry.strategy.partition(":")[0]
        yield Pair(rule, f"{entry.model}, {entry.batch}: {entry.strategy.partition(':')[0]}", entry.source, before, after, entry.published)


def every_pair(folder: Path) -> tuple[list[Pair], list[tuple[str, str]]]:
    """All pairs of the folder that are predicted without a trace, and (rule, reason) of those skipped."""
    pairs, left_out = pairs_table(folder / PAIRS)
    measured = folder / TABLE
    pairs += [pair for table in TRANSFORMERS for pair in step_pairs(folder / table)]
    pairs += [*step_pairs(measured), *form_pairs(measured), *layout_pairs(folder / LAYOUTS, measured), *strategy_pairs()]
    return pairs, left_out
