"""Rows of tables of measured steps become jobs on machines, or say why they cannot be predicted."""

import csv
import gzip

import pytest

from simulator.machine.presets import load_machine
from simulator.model.workloads import registry as workloads
from simulator.plan.task import UPDATE
from simulator.predict.scoreboard.names import GPUS, MODELS, preset_of
from simulator.predict.scoreboard.predicted import family_of, plan_of, predicted, target_of
from simulator.predict.scoreboard.rows import read, read_folder, sampled
from tests.support.refusals import refuses
from tests.support.shared_data import shared_folder
from traces.errors import Code

VGG = {
    "source": "rejunity/cnn-benchmarks README.md@13fc69dd", "gpu": "V100-16GB", "model": "vgg16", "batch": "16", "image_or_seq": "32",
    "precision": "fp32", "layout": "NCHW", "optimizer": "none", "what": "fwd+bwd", "value_ms": "76.45", "note": "tier B; Torch7",
}  # fmt: skip
REFUSED = (
    ({"gpu": "2xA100-80GB-SXM4"}, "several GPUs"),
    ({"gpu": "GTX 480"}, "no preset for GTX 480"),
    ({"model": "eva_02"}, "no workload for eva_02"),
    ({"precision": "apex-amp-O2-fp16"}, "all of the model in fp16, which is no precision of a job"),
    ({"note": "tier C; may be input-bound"}, "tier C: input-bound or of variable length"),
    ({"optimizer": "Lion"}, "no optimizer for Lion"),
    ({"batch": "many"}, "its batch, size or time is no positive number"),
    ({"value_ms": "nan"}, "its batch, size or time is no positive number"),
)


@pytest.fixture
def table(tmp_path):
    """A function that writes a table of rows, each given as what differs from `VGG`, and returns its path."""

    def write(*changes, columns=tuple(VGG), name="steps.csv"):
        path = tmp_path / name
        with (gzip.open if name.endswith(".gz") else open)(path, "wt", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows({**VGG, **change} for change in changes)
        return path

    return write


def test_a_row_without_an_optimizer_has_no_update(table):
    (plain, trained), left_out = read(table({}, {"optimizer": "Adam (for-loop)", "batch": "4", "source": "pytorch/benchmark"}))
    assert not left_out
    assert (plain.machine, plain.chip, plain.model, plain.source, plain.published_s) == ("v100", "v100", "vgg16", "rejunity", 0.07645)
    assert (trained.job.optimizer, trained.job.form, trained.job.batch, trained.source) == ("adam", "for", 4, "pytorch")
    for row in (plain, trained):
        target = target_of(row)
        plan, machine = plan_of(row, target), target.machine
        assert (plan.strategy, machine.name, family_of(plan)) == ("pytorch", "v100", "convolutions")
        assert any(task.phase == UPDATE for task in plan.tasks) == (row is trained)


def test_four_columns_are_enough(table):
    path = table({"gpu": "NVIDIA GeForce RTX 3090", "model": "resnet18", "batch": "8"}, columns=("gpu", "model", "batch", "value_ms"))
    (row,), _ = read(path)
    assert (row.machine, row.source, row.mode, row.updates) == ("rtx3090", "own rows", "eager", True)
    assert (row.job.image_size, row.job.precision, row.job.layout) == (None, "fp32", "nchw")
    assert (row.job.optimizer, row.job.form) == ("momentum", "for")


def test_names_of_the_command_line_are_understood(table):
    (row,), _ = read(table({"gpu": "h100", "precision": "bf16", "optimizer": "adamw:fused", "layout": "nhwc", "model": "timm:resnet18"}))
    assert (row.machine, row.job.precision, row.job.form, row.job.layout) == ("h100", "bf16", "fused", "nhwc")
    assert (row.workload, row.model) == ("timm:resnet18", "resnet18")


def test_a_captured_step_is_a_graph_of_the_kernels_of_the_loop(table):
    """Where the GPU has enough to do, it is as long as the step that was not captured (pytorch/benchmark, pull request 706)."""
    (eager,), _ = read(table({"optimizer": "Adam (for-loop)", "model": "resnet18", "batch": "64", "image_or_seq": "224", "gpu": "V100"}))
    (captured,), _ = read(
        table({"optimizer": "Adam (for-loop) captured", "model": "resnet18", "batch": "64", "image_or_seq": "224", "gpu": "V100"})
    )
    loop, graph = predicted(eager), predicted(captured)
    assert (graph.plan.strategy, graph.timeline.mode) == ("pytorch-graph", "graph")
    assert [task.body for task in graph.plan.tasks] == [task.body for task in loop.plan.tasks]
    assert graph.timeline.step_s == pytest.approx(loop.timeline.step_s, rel=0.005)


def test_autocast_and_layout_are_those_of_the_row(table):
    (row,), _ = read(table({"precision": "amp-fp16(native autocast)", "layout": "NHWC"}))
    assert (row.job.precision, row.job.layout, row.mixed) == ("amp-fp16", "nhwc", True)


def test_boards_of_one_card_are_left_out_together(table):
    rows, _ = read(table(*({"gpu": gpu} for gpu in ("A100-40GB-PCIe", "A100-80GB-SXM4", "RTX A4000", "RTX 3070", "GTX 1060"))))
    assert [row.chip for row in rows] == ["a100", "a100", "rtx-a4000", "rtx3070", "gtx1060"]


def test_what_cannot_be_predicted_is_left_out_with_the_reason(table):
    rows, left_out = read(table(*(change for change, _ in REFUSED)))
    assert not rows
    assert [item.why for item in left_out] == [why for _, why in REFUSED]


#: A training of a language model on 16 GPUs, in the columns of tables of transformers.
TRAINED = {
    "source": "a/b README", "arch": "MPT-1b", "layers": "24", "d_model": "2048", "heads": "16", "kv_heads": "", "ffn": "8192",
    "ffn_kind": "gelu", "vocab": "50368", "tied_embeddings": "yes", "moe": "", "seq": "2048", "micro_batch": "20", "accumulation": "2",
    "gpus": "16", "gpu": "H100-80GB-SXM5", "shard": "FULL_SHARD", "tp": "1", "pp": "1", "cp": "", "ep": "",
    "activation_checkpointing": "full", "precision": "bf16 amp", "compile": "no", "step_ms": "1800",
}  # fmt: skip


def test_a_training_of_a_transformer_is_fsdp_on_nodes_of_its_gpus(table):
    keeps = {"shard": "SHARD_GRAD_OP", "ffn_kind": "swiglu", "kv_heads": "4", "tied_embeddings": "no", "arch": "Llama"}
    (first, second), _ = read(table(TRAINED, {**TRAINED, **keeps}, columns=tuple(TRAINED)))
    assert (first.machine, first.strategy, first.job.batch, first.job.accumulate) == ("16xh100", "fsdp", 20 * 2 * 16, 2)
    assert (first.job.precision, first.job.checkpoint, first.job.image_size, first.published_s) == ("amp", "full", 2048, 1.8)
    sizes = "layers=24,d_model=2048,heads=16,ffn=8192,vocab=50368"
    assert first.job.model == f"lm:form=gpt,{sizes},kv_heads=16,tied=on,positions=learned,norm=low,loss=fused"
    assert (second.strategy, second.job.model) == ("fsdp:reshard=off", f"lm:form=llama,{sizes},kv_heads=4,tied=off,positions=rotary")
    assert first.chip == "h100"


def test_a_training_with_experts_divides_them_among_the_devices(table):
    moe = "MLA q_lora 1536 kv_lora 512 rope 64 v 128; first layer dense; 160 routed experts top 6, expert ffn 1536, shared 3072"
    deepseek = {
        **TRAINED,
        "ffn_kind": "swiglu",
        "moe": moe,
        "ep": "8",
        "shard": "distributed optimizer (ZeRO-1)",
        "software": "Megatron-LM",
    }
    whole = {**deepseek, "moe": "128 experts top 8, expert ffn 1536", "ep": ""}
    (first, second), left = read(table(deepseek, whole, {**deepseek, "pp": "2"}, {**deepseek, "tp": "2"}, columns=tuple(deepseek)))
    latent = "q_lora=1536,kv_lora=512,rope_dim=64,head_dim=128"
    assert first.strategy == "fsdp:shard=1,gradients=fused,ep=8"  # as Megatron-LM sums them
    assert f"{latent},dense_layers=1,experts=160,active=6,expert_ffn=1536,shared_ffn=3072," in first.job.model
    assert second.strategy == "fsdp:shard=1,gradients=fused"
    assert ",experts=128,active=8,expert_ffn=1536," in second.job.model
    assert {each.why for each in left} == {"divides experts or sequences and more, or has several stages per device"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"moe": "128 experts top 4, expert ffn 2880; alternate sliding windows"},
            "divides experts or sequences and more, or has several stages per device",
        ),
        ({"cp": "2", "pp": "2"}, "divides experts or sequences and more, or has several stages per device"),
        ({"moe": "64 experts"}, "divides experts or sequences and more, or has several stages per device"),
        ({"precision": "fp8 amp"}, "a precision below 16 bits"),
        ({"compile": "yes"}, "compiled: its fused kernels are not those of the plan"),
        ({"gpu": "Gaudi"}, "no preset for Gaudi"),
        ({"activation_checkpointing": "by recipe"}, "says nothing that --checkpoint means of its checkpointing"),
        ({"step_ms": "", "layers": "x"}, "a size or the time is missing"),
    ],
)
def test_other_trainings_of_transformers_are_left_out_with_the_reason(table, change, why):
    rows, (left,) = read(table({**TRAINED, **change}, columns=tuple(TRAINED)))
    assert (rows, left.why) == ([], why)


def test_runs_of_nanotron_have_their_models_by_name(table):
    run = {"model": "3B", "gpus": "8", "nodes": "1", "dp": "8", "tp": "1", "pp": "1", "zero": "1", "micro_batch": "2",
           "accumulation": "16", "step_ms": "8021", "memory_gb": "69.5", "ok": "yes"}  # fmt: skip
    failed = {"step_ms": "", "memory_gb": "", "ok": "no"}
    rows, (crashed, divided) = read(table(run, {**run, "zero": "0"}, run | failed, run | failed | {"tp": "2"}, columns=tuple(run)))
    assert [(row.strategy, row.machine, row.job.batch, row.job.image_size) for row in rows] == [
        ("fsdp:shard=1,prefetch=0,gradients=held", "8xh100", 256, 4096), ("data-parallel:gradients=held", "8xh100", 256, 4096),
    ]  # fmt: skip
    assert {(row.job.precision, row.job.form, row.peaks) for row in rows} == {("mixed", "fused", (("", 69.5 * 2**30),))}
    assert (crashed.why, crashed.job.job, crashed.job.strategy) == ("crashed or out of memory", rows[0].job, rows[0].strategy)
    assert (divided.job.strategy, divided.job.job.batch) == ("fsdp:shard=1,prefetch=0,gradients=held,tp=2", 128)


def test_a_training_with_divided_layers_has_fewer_replicas(table):
    divided = {**TRAINED, "tp": "4", "shard": "distributed optimizer (ZeRO-1)"}
    (whole, row), _ = read(table(TRAINED, divided, columns=tuple(TRAINED)))
    assert (row.strategy, row.job.batch) == ("fsdp:shard=1,tp=4", whole.job.batch // 4)
    ((row,), _) = read(table({**divided, "cp": "2"}, columns=tuple(TRAINED)))
    assert (row.strategy, row.job.batch) == ("fsdp:shard=1,tp=4,cp=2", whole.job.batch // 8)


def test_transformer_engine_runs_cudnns_attention(table):
    columns = (*TRAINED, "attention")
    (first, second), _ = read(table({**TRAINED, "attention": "TransformerEngine flash"}, {**TRAINED, "attention": ""}, columns=columns))
    assert (first.job.attention, second.job.attention) == ("cudnn", "pytorch")


def test_megatron_lm_updates_all_parameters_in_one_kernel(table):
    texts = ("Adam (Megatron distributed optimizer)", "AdamW (fused)", "AdamW")
    rows, _ = read(table(*({**TRAINED, "optimizer": text} for text in texts), columns=(*TRAINED, "optimizer")))
    assert [row.job.form for row in rows] == ["fused", "fused", "foreach"]
    _, (left,) = read(table({**TRAINED, "tp": "3"}, columns=tuple(TRAINED)))
    assert left.why == "its degrees do not multiply to its GPUs"


def test_the_published_peak_of_memory_says_what_it_counts(table):
    peaks = {**TRAINED, "precision": "bf16 (FSDP mixed precision)", "peak_allocated_gib": "60", "peak_reserved_gib": ""}
    rows, _ = read(table(peaks, {**peaks, "peak_reserved_gib": "70.5"}, {**peaks, "peak_allocated_gib": ""}, columns=tuple(peaks)))
    peaks = [{name: size / 2**30 for name, size in row.peaks} for row in rows]
    assert peaks == [{"allocated": 60}, {"allocated": 60, "reserved": 70.5}, {}]
    assert {row.job.precision for row in rows} == {"mixed"}


def test_a_training_that_ran_out_of_memory_is_left_out_with_its_job(table):
    failed = {**TRAINED, "step_ms": "", "note": "default allocator; OUT OF MEMORY"}
    _, (left,) = read(table(failed, columns=tuple(failed)))
    assert (left.why, left.job.job.batch, left.job.machine) == ("out of memory", 20 * 2 * 16, "16xh100")


def test_a_table_of_timm_is_read_in_its_columns(table, tmp_path):
    timm = {"model": "resnet50", "layout": "nhwc", "batch": "512", "image": "224", "step_ms": "419.5", "torch": "1.12", "gmacs": "4.1"}
    table(timm, {**timm, "torch": "1.10"}, columns=tuple(timm), name="timm.csv.gz")
    table({}, columns=("m", "n", "k"), name="kernels.csv")
    (row,), left_out = read_folder(tmp_path)
    assert (row.machine, row.job.precision, row.job.layout, row.file) == ("rtx3090", "amp-fp16", "nhwc", "timm.csv.gz")
    assert [(item.file, item.why) for item in left_out] == [("timm.csv.gz", "the same job with an older PyTorch")]


def test_a_large_table_is_sampled_by_whole_models(table):
    models = ("vgg11", "vgg13", "vgg16", "vgg19", "resnet18")
    rows, _ = read(table(*({"model": model, "batch": str(batch)} for model in models for batch in (1, 2))))
    for most in (1, 5, 9, 10):
        some, others = sampled(rows, most, large=9)
        assert len(some) == most // 2 * 2
        assert len(some) + len(others) == 10
        assert all(sum(row.workload == chosen.workload for row in some) == 2 for chosen in some)
    assert sampled(rows, 5, large=9) == sampled(rows, 4, large=9)
    assert sampled(rows, 4) == (rows, [])


def test_a_folder_without_tables_is_refused(tmp_path):
    with refuses(Code.FILE, "has no table of measured steps; expected .* gpu, model, batch, value_ms"):
        read_folder(tmp_path)
    with refuses(Code.FILE, "is no folder"):
        read_folder(tmp_path / "absent")
    (tmp_path / "damaged.csv.gz").write_bytes(b"\x1f\x8bno gzip")
    with refuses(Code.FILE, "table of steps .*damaged.csv.gz is a damaged gzip file"):
        read_folder(tmp_path)


def test_every_name_leads_to_a_preset_and_a_workload():
    assert {name for name in MODELS.values() if ":" not in name} <= set(workloads.names())
    assert all(load_machine(name) for name in GPUS.values())
    assert [preset_of(gpu) for gpu in ("NVIDIA H100 80GB HBM3", "this-gpu", "Tesla T4", "abacus")] == ["h100", "this-gpu", "t4", None]


def test_most_of_the_shared_tables_can_be_predicted():
    folder = shared_folder("")
    if folder is None or not (folder / "measured_steps.csv").is_file():
        pytest.skip("no public measurements beside the repository; set SCHEDCAST_SHARED")
    rows, left_out = read(folder / "measured_steps.csv")
    assert len(rows) + len(left_out) == 286
    assert len(rows) >= 180
    rows, left_out = read(folder / "more_steps.csv")
    assert len(rows) + len(left_out) == 128
    assert len(rows) >= 85


TRANSFORMER = {
    "source": "own", "arch": "GPT", "layers": "2", "d_model": "64", "heads": "4", "kv_heads": "", "ffn": "256", "ffn_kind": "gelu",
    "vocab": "100", "tied_embeddings": "yes", "moe": "", "seq": "16", "micro_batch": "2", "accumulation": "1", "gpus": "2", "gpu": "h100",
    "tp": "1", "pp": "1", "cp": "", "ep": "", "shard": "FULL_SHARD", "activation_checkpointing": "none", "precision": "bf16 amp",
    "compile": "no", "software": "", "step_ms": "5",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"gpus": "x"}, "gpus is 'x'; expected a whole number from 1 to 1,000,000,000"),
        ({"layers": "9" * 5000}, "layers is '999"),
        ({"tp": "0"}, "tp is '0'"),
        ({"step_ms": "1e999"}, "step_ms is '1e999'; expected a number above 0"),
    ],
)
def test_a_damaged_row_is_named_and_the_others_are_read(tmp_path, change, why):
    path = tmp_path / "steps.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*TRANSFORMER])
        writer.writeheader()
        writer.writerows([TRANSFORMER, TRANSFORMER | change])
    (row,), (left_out,) = read(path, "steps.csv")
    assert (row.number, row.job.batch, left_out.number) == (0, 4, 1)
    assert left_out.why.startswith(f"line 3 of steps.csv: {why}")


def test_columns_that_a_table_lacks_are_empty(tmp_path):
    path = tmp_path / "steps.csv"
    named = ("arch", "layers", "d_model", "shard", "gpus", "tp", "pp", "step_ms")
    path.write_text(",".join(named) + "\n" + ",".join(TRANSFORMER[name] for name in named) + "\n")
    rows, (left_out,) = read(path)
    assert not rows
    assert left_out.why == "a precision below 16 bits"
