"""The error of `simulator/engine/costs/efficiencies.json` on GPUs that were excluded from its fit: python -m tools efficiencies.

Three tables. Ops: leave-one-out over GPUs, each predicted from rows fitted on the others. Sums: device time of whole steps, of the ops that
could be excluded and of all from the table (convolutions are fitted on steps, `fit_steps`, and never on these ops); a trace's truth is its
kernels' time, triosim's its column without overlap (the other column sums to forward 24.7, backward 57.7, update 0.87 ms). Check: the
optimizer-fusion paper's MobileNetV2 on TITAN Xp, a GPU and a paper that no number was fitted on.
"""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from simulator.engine.costs import efficiencies
from simulator.engine.costs.efficiencies import EfficiencyRows
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.answers import answers
from simulator.predict.target import Target
from tests.support.shared_data import shared_folder
from tools.fit_efficiencies import Scored, predict, refit, rms
from tools.public_ops import BACKWARD, FORWARD, UPDATE, Measured, Op, all_sources, neusight_ops

#: The paper's baseline, forward fusion and backward fusion, in ms: batch 32, Adam with weight decay, one update kernel after another.
PAPER_MS = {"baseline": 94.21, "forward-fusion": 84.42, "backward-fusion": 80.92}

#: Shorter sums consist of tiny kernels.
_SHORTEST_S = 5e-4


def coverage(scored: Sequence[Scored], table: EfficiencyRows, deviations: float = 1.0) -> float:
    """The share of ops whose log error is within a multiple of the deviation that `table` states for the number that limits the op."""
    return sum(abs(item.error) <= deviations * predict(item.op, table).said.error for item in scored) / len(scored)


def op_lines(scored: Sequence[Scored], table: EfficiencyRows) -> list[str]:
    """Print a line for each op class and each excluded group."""
    groups: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for item in scored:
        groups[item.op.op_class, item.left_out].append(item)
    lines = []
    for (name, left_out), items in sorted(groups.items()):
        errors = [item.error for item in items]
        measured = sum(item.op.seconds * item.op.count for item in items)
        total = sum(item.predicted_s * item.op.count for item in items) / measured - 1
        typical = median(abs(float(np.expm1(error))) for error in errors)
        lines.append(
            f"| {name} | {left_out} | {len(items)} | {typical:.0%} | {rms(errors):.2f} | {total:+.0%} | {coverage(items, table):.0%} |"
        )
    return lines


def sum_lines(folder: Path, sources: Sequence[Measured], scored: Sequence[Scored], table: EfficiencyRows) -> list[str]:
    """Device time of whole steps: measured, the part predicted without the GPU (or model), and all of it by the table."""
    without = {item.left_out: item.rows for item in scored}
    alone = {item.op: item.predicted_s for item in scored}
    lines = []

    def line(what: str, measured_s: float, ops: Sequence[Op], found: Sequence[tuple[float, float]]) -> None:
        """`found`: (seconds measured, seconds predicted) of the ops that could be excluded."""
        part_s, found_s = (sum(times) for times in zip(*found, strict=True)) if found else (0.0, 0.0)
        ours = sum(predict(op, table).predicted_s * op.count for op in ops)
        left_out = f"{part_s / measured_s:.0%} | {found_s / part_s - 1:+.0%}" if found else "0% | "
        lines.append(f"| {what} | {1e3 * measured_s:.1f} | {left_out} | {1e3 * ours:.1f} | {ours / measured_s - 1:+.0%} |")

    for path in sorted((folder / "op_latency").glob("*/*.csv")):
        truth = json.loads(path.with_suffix(".json").read_text())
        board = "L4" if "L4" in path.parent.name else "V100-PCIE"
        gpu = board.partition("-")[0]
        every = [op for row in repeated(path, truth["num_layer"]) for op in neusight_ops(board, row) if op.seconds > 0]
        for key, name, phases in (("fw_latency", "forward", {FORWARD}), ("bwall_latency", "backward", {BACKWARD, "accumulate"})):
            ops = [op for op in every if op.phase in phases]
            found = sum(predict(op, without[gpu]).predicted_s for op in ops)
            line(f"{board} {path.stem} {name}", truth[key] / 1e3, ops, [(truth[key] / 1e3, found)])
    for source in sources:
        for phase in (FORWARD, BACKWARD, UPDATE):
            ops = [op for op in source.ops if op.phase == phase]
            measured = sum(op.seconds * op.count for op in ops)
            if source.source != "neusight" and measured > _SHORTEST_S:
                found = [(op.seconds * op.count, alone[op] * op.count) for op in ops if op in alone]
                line(f"{source.board} {source.workload}: {phase}", measured, ops, found)
    return lines


def repeated(path: Path, layers: int) -> list[dict]:
    """The rows of a model, with those of its one layer repeated for every layer. A residual sum may follow the layer's last module."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    inside = [index for index, row in enumerate(rows) if row["op"] == "call_module" and re.search(r"_(layer|h)_0_", row["Name"])]
    first = inside[0]
    end = next(index for index, row in enumerate(rows) if index > inside[-1] and row["op"] == "call_module")
    chosen = [*rows[:first], *rows[first:end] * layers, *rows[end:]]
    return [row for row in chosen if row["output_shape"] and "float32" in row["dtype"] and float(row["fw_latency"] or 0) > 0]


def titan_xp_ms() -> dict[str, float]:
    """Predicted step times of the paper's MobileNetV2 by strategy."""
    machine = load_machine("titan-xp")
    job = Job("mobilenet_v2", 32, optimizer="adam", form="for")
    found = answers(job, [name for name in PAPER_MS if name != "baseline"], Target.of(CostModel(machine))).forecasts
    return {name: 1e3 * forecast.timeline.step_s for name, forecast in found}


def main() -> None:
    """Print the three tables."""
    latencies = shared_folder("op_latency")
    if latencies is None:
        print("no public measurements next to the repository; set SCHEDCAST_SHARED")
    else:
        folder, table = latencies.parent, efficiencies.table()["gpu"]
        sources = all_sources(folder)
        _, held = refit(folder, table)
        print("| op class | excluded | ops | median error | rms log error | sum | within the stated error |\n|---|---|---|---|---|---|---|")
        print("\n".join(op_lines(held, table)))
        print(f"| all | | {len(held)} | | {rms(item.error for item in held):.2f} | | {coverage(held, table):.0%} |")
        print(f"\nWithin two stated errors: {coverage(held, table, 2.0):.0%}.\n")
        print("| device time | measured/ms | could be excluded | error of that | from the table/ms | error |\n|---|---|---|---|---|---|")
        print("\n".join(sum_lines(folder, sources, held, table)))
        print()
    print("| MobileNetV2, TITAN Xp | paper/ms | predicted/ms | error |\n|---|---|---|---|")
    for name, ours in titan_xp_ms().items():
        print(f"| {name} | {PAPER_MS[name]:.1f} | {ours:.1f} | {ours / PAPER_MS[name] - 1:+.0%} |")


if __name__ == "__main__":
    main()
