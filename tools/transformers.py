"""Predicts the shared tables of trained transformers, and writes docs/transformers.md: python -m tools.transformers [--write]

Prints a line for every step. `--fit` prints the power at which trainings hold a GPU (`ProductKernel.sustained_watts`) instead: by GPU,
that at which half of the rows FITTED are predicted too fast. No score counts these rows. What was predicted before, with the same code
and tables, is not predicted again.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

from simulator.engine.costs import efficiencies
from simulator.machine.presets import load_machine
from simulator.model.workloads import language_models
from simulator.predict.forecast import forecast
from simulator.predict.scoreboard.predicted import Kept, kept_forecasts, plan_of, room, scored, target_of
from simulator.predict.scoreboard.rows import LeftOut, Row, read_folder
from simulator.predict.search.workers import usual_processes, workers
from simulator.strategies import registry as strategies
from tests.support.places import ROOT
from tests.support.shared_data import shared_folder
from traces.documents.scoreboard import ScoredStep
from traces.files import write_atomic

PAGE = ROOT / "docs" / "transformers.md"
#: The longest sequences of llm-foundry's rows that `sustained_watts` is fitted on.
FITTED = 1024
#: The longest sequences of llm-foundry's rows whose attention takes so little that its version matters little.
SHORT = 2048
#: Of nanotron's runs that divide layers or have stages, how many of each kind are taken.
SAMPLED = 8
#: Differences of throughput below this count as noise.
NOISE = 0.03
INTRO = """# Transformers over many GPUs

How long a training step of a language model takes on 8 to 512 GPUs, predicted from data sheets (`--machine 8xh100`) and judged by steps
that others published. `python -m tools.transformers --write` writes this page.

```console
schedcast predict --model llama3:8b --seq 8192 --batch 16 --machine 8xh100 --strategy fsdp --checkpoint selective --precision amp
```

`fsdp` shards parameters, gradients and optimizer state (`shard=1|2|3`, the stages of ZeRO), gathers them block by block (`prefetch`,
`reshard`), or over groups of devices (`hybrid`). `tp=8` divides layers by heads, hidden channels and vocabulary, and what lies between the
products by tokens (`sp`), as Megatron-LM does; `cp=2` divides the tokens of each sequence; pipelines take `replicas` and `tp`.
Devices that do the same are simulated once (`fold`). On CPUs, in processes and on simulated GPUs the same plan runs, with plain PyTorch's
numbers to 1e-10, and so do PyTorch's own FSDP2 and tensor parallelism. Not modeled: precisions below 16 bits, and compiled
kernels; such rows are skipped. llm-foundry trains under autocast (`--precision amp`); torchtitan, DeepSpeed, Megatron-LM and nanotron
compute with bf16 copies of float32 parameters (`--precision mixed`). Megatron-LM and nanotron keep gradients from step to step.
Megatron-LM's products add to them (`gradients=fused`); its stages have as many blocks each (`placement=even`); its attention is
TransformerEngine's, which is cuDNN's (`--attention cudnn`), and exchanges divided tokens by all-to-all, where `cp` gathers keys and values.
nanotron adds the gradients of each backward when it has ended (`gradients=held`). With ZeRO-1 it sums them whole after the last one, and
gathers all parameters at once; then the host copies each device's part of each parameter by a kernel of its own.

Experts drop no token: rows of tokens are sorted by expert and multiplied in one product of groups, which is predicted like other products,
with as many rows for each expert. That is an assumption: how tokens are spread depends on the weights and the data. `ep=8` divides experts
among eight devices in a row, as Megatron-LM and torchtitan do: rows go to their experts and come back, forward and backward, by four
all-to-alls of a layer, in which every device sends as many rows to each; the numbers of their experts go before. Such a plan is
predicted, and does not run. Each device sorts the rows that arrive, and sorts them back. Not predicted: the host's wait for how many rows
there are, and losses that balance experts. Latent attention pads values to the width of keys, since fused kernels of PyTorch have one.
Pipelines divide no experts, nor do `tp` and `cp`, with which each device computes all of them for all of their tokens.

Of a step with many microbatches few are simulated, as far as those between do the same. Of nanotron's runs that divide layers, have
stages, or do both, some eight of each kind are predicted, each n-th. nanotron and Megatron-LM compute queries, keys and values by one
product, which `lm:fused=on` says.

Three things were learned from these tables. A GPU that trains for minutes lowers its clock to keep its power limit: an H100 reaches about
600 TFLOP/s in its matrix products, not the 800 of a short benchmark. The power per FLOP at which this begins is fitted on llm-foundry's
steps with up to 1,024 tokens, which no table below counts. And llm-foundry's steps with long sequences take what they would with
FlashAttention 1, which needs about twice the time of the FlashAttention 2 that is predicted (Dao 2023). The table names both, and not which
one ran: these steps are shown by themselves. And nanotron's ZeRO-1 does not scale because of its host: on 256 GPUs the copies take longer
than forward and backward. Its steps with the batch divided alone are predicted within 6 % on 8 to 256 GPUs; with `gradients=kept`, which
hides the sums behind backward and gathers block by block, they were up to 61 % too fast.
"""

MISSES = """## What is missed

- nanotron without ZeRO-1 on 64 GPUs and more, with one to four sequences a GPU: 12 to 57 % too fast with the batch divided alone.
  DistributedDataParallel sums its gradients during backward, in buckets; by the time that is missing, this takes some 0.2 s on 128 and on
  256 GPUs, five times as long as ZeRO-1's one sum of as many bytes, and why was not shown. Some of its nodes were sick, too.
- nanotron's runs that divide layers or have stages agree on up to 32 GPUs, but for some that took 1.5 to 16 times as long as others of
  their size. On more GPUs most took 2 to 100 times as long as predicted, in no order that microbatches, degrees or messages explain: steps
  of so little work wait for the host or for sick nodes, of which nothing is modeled.
- Megatron-LM's trainings on eight B200, with layers, stages, experts or tokens divided, are right within 13 %; nothing is fitted on them,
  nor on a training on any Blackwell. Those with layers divided by eight and little work are up to 13 % too fast. Before gradients were
  added within the products and attention was cuDNN's, both as Megatron-LM has them, they were predicted up to 20 % too slow, and up to 59 %
  with 131,072 tokens.
- DeepSpeed's ZeRO-3 with transformers' Qwen3-8B: 12 to 47 % too fast. `fsdp` gathers and sums as FSDP2 does.
- Networks between nodes are data sheets: 512 GPUs are 2 to 8 % too fast where 8 GPUs are 2 % too fast to 7 % too slow.
- An A100 of llm-foundry is up to 26 % too fast with the two smallest models up to 4,096 tokens, and 14 % with the others, long sequences
  most; its attention may have been the older one.
"""


MEMORY = """## Memory

The peak of a GPU's memory, by what each source counts: Megatron-LM on B200 both what is allocated and what PyTorch's allocator reserves;
torchtitan the latter; nanotron does not say, and writes both in its benchmarks, so that it is compared with both. What is predicted to be
allocated are the plan's tensors; to be reserved, what PyTorch's caching allocator needs for them, as it rounds, caches and splits them in
the order in which tasks allocate and free (`simulator/engine/memory/caching.py`). Nothing of it is fitted. The CUDA context and NCCL's
buffers are in neither figure.
"""
MISSED_MEMORY = """llm-foundry computes the cross-entropy by one fused kernel (`loss_fn` of its yamls), for which `lm:loss=fused` stands, as
for Megatron-LM's; of llm-foundry's runs no figure of memory is published. Seven trainings of 30 billion parameters on eight GPUs ran and
are said not to fit: what is allocated does, but too much is predicted to be reserved in addition. Megatron-LM's trainings are
right within 5 %, but for 131,072 tokens: where `cp` gathers keys and values, Megatron-LM exchanges them. Before its optimizer was known to
be one kernel, and gradients to be added without a copy in float32, what is reserved was predicted up to 12 % too high. nanotron's pipelines
of 16 stages are up to 24 % too low. Selective checkpointing in PyTorch caches the result of a block's last product, which nothing reads (4
GiB of torchtitan's two steps), and FSDP2 keeps the embeddings gathered (1 GiB).
"""
FITS = """Whether a job fits is said of each GPU as it is sold, less 1.4 GiB for the driver and the CUDA context. A run of nanotron that
failed may have crashed for other reasons; a job that failed once and ran another time is not counted as failed.
"""


def fitted_on(row: Row) -> bool:
    """Whether `sustained_watts` is fitted on the row."""
    return row.source.startswith("mosaicml") and (row.job.image_size or 0) <= FITTED


def unknown_attention(row: Row) -> bool:
    """Whether much of the step is spent in attention, of a version that the table does not tell."""
    return row.source.startswith("mosaicml") and (row.job.image_size or 0) > SHORT


def gpus(row: Row) -> tuple[int, str]:
    """How many GPUs, and which."""
    count = row.machine.partition("x")[0]
    return int(count) if count.isdecimal() else 1, row.chip


def division(row: Row) -> str:
    """What a training divides apart from the batch: layers (tp), stages (pp), tokens (cp), experts (ep), or several; empty for nothing."""
    options = {"stages": "stages", "tp": "layers", "cp": "tokens", "ep": "experts"}
    return " and ".join(name for option, name in options.items() if f"{option}=" in row.strategy)


def sampled(rows: Sequence[Row]) -> list[Row]:
    """The rows; of those of nanotron that divide layers or have stages, each n-th of each kind."""
    kinds: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        kinds[division(row) if row.source == "nanotron" else ""].append(row)
    taken = {id(row) for row in kinds.pop("", [])}
    for own in kinds.values():
        taken |= {id(row) for row in own[:: -(-len(own) // SAMPLED)]}
    return [row for row in rows if id(row) in taken]


Pair = tuple[Row, ScoredStep]


def what(row: Row) -> str:
    """A training in short words."""
    count, card = gpus(row)
    job = row.job
    parts = f" in {job.accumulate} parts" if job.accumulate > 1 else ""
    return f"{row.workload}, {count} {card}, {job.batch // count} x {job.image_size} tokens a GPU{parts}, {job.checkpoint}, {row.strategy}"


def line(row: Row, step: ScoredStep | str) -> str:
    """A measured step and its prediction."""
    if isinstance(step, str):
        return f"{what(row)}: {step}"
    error = step.predicted_s / step.measured_s - 1
    return f"{what(row)}: measured {step.measured_s:.3f} s, predicted {step.predicted_s:.3f} s ({error:+.1%})"


def table(title: str, pairs: Iterable[Pair], name: Callable[[Row], str]) -> Iterator[str]:
    """The errors of each group of steps as a table in Markdown."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[name(pair[0])].append(pair)
    yield f"| {title} | rows | median error | worst | median signed | within 25 % | in the 90 % interval |"
    yield "|---" * 7 + "|"
    for group, own in sorted(groups.items()):
        errors = [step.predicted_s / step.measured_s - 1 for _, step in own]
        within = sum(abs(error) <= 0.25 for error in errors) / len(errors)
        covered = sum(step.interval_s[0] <= step.measured_s <= step.interval_s[1] for _, step in own) / len(own)
        figures = f"{median(map(abs, errors)):.0%} | {max(errors, key=abs):+.0%} | {median(errors):+.0%} | {within:.0%} | {covered:.0%}"
        yield f"| {group} | {len(own)} | {figures} |"
    yield ""


def with_long_sequences(pairs: Iterable[Pair]) -> str:
    """The errors of all steps that nothing was fitted on."""
    errors = [abs(step.predicted_s / step.measured_s - 1) for row, step in pairs if not fitted_on(row)]
    within = sum(error <= 0.25 for error in errors) / len(errors)
    return f"Counted with those of long sequences below, {len(errors)} steps: median error {median(errors):.0%}, {within:.0%} within 25 %."


def order(pairs: Iterable[Pair]) -> str:
    """For how many pairs of trainings of one model on equally many GPUs the one with more tokens per second is predicted."""
    groups: dict[tuple, list[tuple[float, float]]] = defaultdict(list)
    for row, step in pairs:
        tokens = row.job.batch * (row.job.image_size or 1)
        groups[row.source, row.workload, row.machine].append((tokens / step.measured_s, tokens / step.predicted_s))
    right = total = 0
    for own in groups.values():
        for (first, told), (second, told_second) in combinations(own, 2):
            if abs(first / second - 1) > NOISE:
                total += 1
                right += (first > second) == (told > told_second)
    return (
        f"Of {total} pairs of trainings of one model on as many GPUs, which differ by {NOISE:.0%} or more, the one with more tokens per"
        f" second is told in {right}."
    )


class Peak(NamedTuple):
    """A published peak of a GPU's memory in bytes, what it counts, and what is predicted of that."""

    counter: str
    published: float
    predicted: int

    @property
    def error(self) -> float:
        """The prediction over what is published, less 1."""
        return self.predicted / self.published - 1

    def __str__(self) -> str:
        return f"{self.counter} {self.published / 2**30:.1f} GiB, predicted {self.predicted / 2**30:.1f} GiB ({self.error:+.1%})"


def peaks_of(row: Row, kept: Kept) -> list[Peak]:
    """A row's peaks. One of which is not said what it counts is compared with both."""
    predicted = {"reserved": kept.reserved_bytes, "allocated": kept.allocated_bytes}
    return [
        Peak(counter if name else f"not said, as {counter}", published, own)
        for name, published in row.peaks
        for counter, own in predicted.items()
        if name in ("", counter)
    ]


def memory(results: Sequence[tuple[Row, Kept]], failed: Sequence[tuple[Row, Kept]]) -> list[str]:
    """The errors of peaks of memory by source, and of which jobs it is said that they do not fit."""
    by_row = [(row, peaks_of(row, kept)) for row, kept in results if row.peaks and not kept.why]
    lines = [MEMORY, "| source | counts | rows | median error | worst | median signed |", "|---" * 6 + "|"]
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, peaks in by_row:
        for peak in peaks:
            groups[row.source, peak.counter].append(peak.error)
    for (source, counter), errors in groups.items():
        figures = f"{median(map(abs, errors)):.1%} | {max(errors, key=abs):+.1%} | {median(errors):+.1%}"
        lines.append(f"| {source} | {counter} | {len(errors)} | {figures} |")
    lines += ["", MISSED_MEMORY, FITS, "| source | ran | of these said not to fit | failed | of these said not to fit |", "|---" * 5 + "|"]
    for source in sorted({row.source for row, _ in (*results, *failed)}):
        ran, not_run = ([kept.fits for row, kept in own if row.source == source and not kept.why] for own in (results, failed))
        lines.append(f"| {source} | {len(ran)} | {ran.count(False)} | {len(not_run)} | {not_run.count(False)} |")
    said_to_fit = [what(row) for row, kept in failed if kept.fits and not kept.why]
    lines += ["", *(f"- failed, and said to fit: {each}" for each in said_to_fit)]
    lines += [f"- ran, and said not to fit: {what(row)}" for row, kept in results if not kept.fits]
    return [*lines, "", *(f"- {what(row)}: {'; '.join(map(str, peaks))}" for row, peaks in by_row), ""]


def fits(row: Row) -> Kept:
    """Whether the job of a run that failed fits. Float32 gradients that no memory holds need no plan, which takes minutes for 80 layers."""
    options = strategies.parse(row.strategy)[1]
    parts = max(1, getattr(options, "stages", 1)) * getattr(options, "tp", 1)
    kept_bytes = 4 / parts if getattr(options, "gradients", "freed") != "freed" else 0
    gradients_bytes = kept_bytes * language_models.read(row.job.model).parameters(row.job.image_size or 0)
    return Kept(fits=False) if gradients_bytes > load_machine(row.machine).memories[0].size_bytes else room(row)


def failures(rows: Iterable[Row], left_out: Iterable[LeftOut]) -> list[Row]:
    """The jobs of runs that failed, each once, without those that ran another time."""
    ran = {_job(row) for row in rows}
    jobs = {_job(left.job): left.job for left in left_out if left.job is not None}
    return [row for key, row in jobs.items() if key not in ran]


def _job(row: Row) -> tuple:
    """What a run is a run of."""
    return row.source, row.machine, row.strategy, row.job


def page(pairs: Sequence[Pair], unpredicted: Iterable[str], of_memory: Iterable[str]) -> str:
    """docs/transformers.md."""
    judged = [pair for pair in pairs if not fitted_on(pair[0]) and not unknown_attention(pair[0])]
    lines = [INTRO, "## Judged\n", *table("all", judged, lambda row: "all"), with_long_sequences(pairs), ""]
    lines += table("source", judged, lambda row: row.source)
    lines += table("GPU", judged, lambda row: gpus(row)[1])
    lines += table("GPUs", judged, lambda row: f"{gpus(row)[0]:3}")
    lines += table("checkpointing", judged, lambda row: row.job.checkpoint)
    lines += table("divides", judged, lambda row: division(row) or "the batch alone")
    lines += [order(judged), "", MISSES, "## Long sequences of llm-foundry\n"]
    lines += table("sequence", [pair for pair in pairs if unknown_attention(pair[0])], lambda row: f"{row.job.image_size:6}")
    lines += [*of_memory, "## Left out\n", "| rows | why |", "|---|---|"]
    lines += [f"| {count} | {why} |" for why, count in Counter(unpredicted).most_common()]
    return "\n".join([*lines, "", "## Every step\n", *(f"- {line(row, step)}" for row, step in pairs), ""])


def sustained_watts(rows: Sequence[Row]) -> dict[str, float]:
    """By GPU, the power per TFLOP/s of the peak at which half of the steps are predicted too fast, by the time of their products alone.

    "all": the same of the steps of all GPUs, which is the table's.
    """
    known = efficiencies.table()["gpu"].row("matmul").product.sustained_watts.value
    needed: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        target = target_of(row)
        plan, machine = plan_of(row, target), target.machine
        result = forecast(plan, target)
        device = machine.devices[0]
        products_s = sum(
            cost.cold_s
            for task, cost in zip(plan.tasks, result.costs, strict=True)
            if task.device == device.name and task.body.work(task).op_class == "matmul"
        )
        watts = device.power_w / (device.peak_flops["bf16"] / 1e12)
        slower = 1 + (row.published_s - result.timeline.step_s) / products_s
        for group in ("all", gpus(row)[1]):
            needed[group].append(max(known, watts) * slower**2)
    return {name: median(own) for name, own in needed.items()}


def main(arguments: Sequence[str]) -> None:
    """Print the steps, or the fit, and write the page."""
    folder = shared_folder("llm")
    if folder is None:
        print("no public measurements next to the repository; set SCHEDCAST_SHARED")
        return
    rows, left_out = read_folder(folder)
    if "--fit" in arguments:
        print(sustained_watts([row for row in rows if fitted_on(row)]))
        return
    rows.sort(key=lambda row: (row.source, gpus(row)[1], row.job.model, gpus(row)[0], row.job.image_size or 0, row.job.batch))
    tried = [row for row in failures(rows, left_out) if not division(row)]
    rows = sampled(rows)
    steps: list[tuple[Row, Kept]] = []
    failed: list[tuple[Row, Kept]] = []
    with workers(usual_processes(len(rows))) as run:
        for row, kept in zip(rows, kept_forecasts(rows, [None] * len(rows), run), strict=True):
            steps.append((row, kept))
            print(line(row, scored(row, kept)), flush=True)
        for row, kept in zip(tried, run([(fits, (row,)) for row in tried]), strict=True):
            failed.append((row, kept))
            print(f"failed: {what(row)}: {'fits' if kept.fits else 'does not fit'}", flush=True)
    pairs = [(row, scored(row, kept)) for row, kept in steps if not kept.why]
    of_memory = memory(steps, failed)
    print("\n".join(of_memory))
    if "--write" in arguments:
        write_atomic(PAGE, page(pairs, [*(left.why for left in left_out), *(kept.why for _, kept in steps if kept.why)], of_memory))


if __name__ == "__main__":
    main(sys.argv[1:])
