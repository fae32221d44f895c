"""Predicts the shared tables of trained transformers, and says how right: python -m tests.benchmarks.transformers [GPU ...]

A row for every step, then errors by source, GPU and length of sequences, and which of two trainings of one model and number of GPUs is
faster. `--fit` prints the power at which trainings hold a GPU (`products.ProductKernel.sustained_watts`), for each GPU alone: that at which
half of its steps are predicted too fast, of the rows FITTED, which no score counts.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from statistics import median

from simulator.engine.costs import efficiencies
from simulator.predict.forecast import forecast
from simulator.predict.scoreboard.predicted import Kept, kept_forecast, plan_of
from simulator.predict.scoreboard.rows import Row, read_folder
from tests.support.shared_data import shared_folder
from traces.errors import SchedcastError

#: The longest sequences of llm-foundry's rows that `sustained_watts` is fitted on.
FITTED = 1024
#: The longest sequences of llm-foundry's rows whose attention takes so little that it does not matter that it was FlashAttention 1.
SHORT = 2048


def fitted_on(row: Row) -> bool:
    """Whether `sustained_watts` is fitted on the row."""
    return row.source.startswith("mosaicml") and (row.job.image_size or 0) <= FITTED


def card(row: Row) -> str:
    """The row's GPU."""
    return row.machine.partition("x")[2] or row.machine


def print_row(row: Row, kept: Kept) -> None:
    """Print a step beside its prediction."""
    gpus = int(row.machine.partition("x")[0]) if "x" in row.machine else 1
    job = row.job
    if kept.why:
        print(f"{row.workload:14} {row.machine:9} {job.image_size:6}: {kept.why}", flush=True)
        return
    error = kept.predicted_s / row.published_s - 1
    print(
        f"{row.workload:14} {row.machine:9} {job.image_size:6} tokens x {job.batch // gpus:4}, {job.checkpoint:9} {row.strategy:18}"
        f" measured {row.published_s:7.3f} s, predicted {kept.predicted_s:7.3f} s ({error:+.1%})",
        flush=True,
    )


Pair = tuple[Row, Kept]


def print_groups(title: str, pairs: Iterable[Pair], name: Callable[[Row], str]) -> None:
    """Print the errors of each group of steps."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[name(pair[0])].append(pair)
    print(f"\n| {title} | rows | median error | worst | median signed | within 25 % | in the interval |\n{'|---' * 7}|")
    for group, own in sorted(groups.items()):
        errors = [kept.predicted_s / row.published_s - 1 for row, kept in own]
        within = sum(abs(error) <= 0.25 for error in errors) / len(errors)
        covered = sum(kept.interval_s[0] <= row.published_s <= kept.interval_s[1] for row, kept in own) / len(own)
        figures = f"{median(map(abs, errors)):.0%} | {max(errors, key=abs):+.0%} | {median(errors):+.0%} | {within:.0%} | {covered:.0%}"
        print(f"| {group} | {len(own)} | {figures} |")


def print_order(pairs: Sequence[Pair]) -> None:
    """Print of how many pairs of trainings the faster one, per token and GPU, is told. Differences below 3 % count as noise."""
    groups: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for row, kept in pairs:
        tokens = row.job.batch * (row.job.image_size or 1)
        groups[row.source, row.workload, row.machine].append((tokens / row.published_s, tokens / kept.predicted_s))
    right = total = 0
    for own in groups.values():
        for (first, told), (second, told_second) in combinations(own, 2):
            if abs(first / second - 1) > 0.03:
                total += 1
                right += (first > second) == (told > told_second)
    print(f"\nWhich of two trainings of one model on as many GPUs has more tokens per second: {right} of {total} right.")


def sustained_watts(rows: Sequence[Row]) -> dict[str, float]:
    """By GPU, the power per TFLOP/s of the peak at which half of the steps are predicted too fast, from products' time alone."""
    table = efficiencies.table()["gpu"].row("matmul").product
    needed: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        plan, machine, model = plan_of(row)
        result = forecast(plan, machine, model)
        device = machine.devices[0]
        products = sum(
            cost.cold_s
            for task, cost in zip(plan.tasks, result.costs, strict=True)
            if task.device == device.name and task.body.work(task).op_class == "matmul"
        )
        slower = 1 + (row.published_s - result.timeline.step_s) / products
        now = min(1.0, (device.power_w / (device.peak_flops["bf16"] / 1e12) / table.sustained_watts.value) ** 0.5)
        needed[card(row)].append(device.power_w / (device.peak_flops["bf16"] / 1e12) * (slower / now) ** 2)
    return {name: median(own) for name, own in needed.items()}


def main(arguments: Sequence[str]) -> None:
    """Print the rows and their scores, or the fit."""
    folder = shared_folder("llm")
    if folder is None:
        print("no public measurements beside the repository; set SCHEDCAST_SHARED")
        return
    rows, left_out = read_folder(folder)
    if "--fit" in arguments:
        print(sustained_watts([row for row in rows if fitted_on(row)]))
        return
    pairs = []
    for row in sorted(rows, key=lambda row: (row.source, row.job.model, row.job.batch)):
        if arguments and card(row) not in arguments:
            continue
        try:
            kept = kept_forecast(row)
        except SchedcastError as error:
            kept = Kept(why=str(error))
        print_row(row, kept)
        if not kept.why:
            pairs.append((row, kept))
    print(f"\n{len(left_out)} rows are not predicted.")
    judged = [pair for pair in pairs if not fitted_on(pair[0])]
    print_groups("source", judged, lambda row: row.source)
    print_groups("GPU", judged, card)
    print_groups("length of sequences", judged, lambda row: f"{row.source.partition('/')[0]} {row.job.image_size:6}")
    print_groups(
        "attention", judged, lambda row: "FlashAttention 1" if row.source.startswith("mosaicml") and row.job.image_size > SHORT else "2"
    )
    print_order(judged)


if __name__ == "__main__":
    main(sys.argv[1:])
