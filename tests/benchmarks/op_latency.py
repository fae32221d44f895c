"""Forward + backward of a whole model predicted from the op times of one layer, against its measured time (shared/data/op_latency).

The files hold each op of a model with one layer, timed alone on the GPU: forward, backward, and accumulating the weight's gradient. The
layer's ops are repeated as often as the model has layers, the rest counts once, and all of it is replayed on one stream. Ops that launch
nothing (sizes, items, views) count nothing. Nothing is fitted: the errors are what adding up ops gives.
"""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from simulator.machine.machine import Device, Machine, Memory
from simulator.plan.bodies.host import Recorded
from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD, FORWARD, Segment, Task
from simulator.replay.replay import Replay, simulate_replay
from tests.support.shared_data import shared_folder

_LAYER = re.compile(r"_(layer|h)_0_")
_NO_LAUNCH = frozenset({
    "size", "dim", "view", "permute", "transpose", "expand", "getitem", "getattr", "split", "reshape", "unsqueeze", "eq",
})  # fmt: skip


class Op(NamedTuple):
    """One row: seconds of its forward, and of its backward with accumulation of the gradient."""

    name: str
    forward_s: float
    backward_s: float


def read(path: Path) -> tuple[list[Op], list[Op], list[Op]]:
    """The ops before, in and after the one layer."""
    with path.open(newline="") as file:
        parts = read_rows(list(csv.DictReader(file)))
    return tuple([_op(row) for row in part if _launches(row)] for part in parts)


def read_rows(rows: list[dict]) -> tuple[list[dict], list[dict], list[dict]]:
    """The rows before, in and after the one layer."""
    inside = [index for index, row in enumerate(rows) if row["op"] == "call_module" and _LAYER.search(row["Name"])]
    first = inside[0]
    last = (
        next(index for index, row in enumerate(rows) if index > inside[-1] and row["op"] == "call_module") - 1
    )  # a residual sum may follow
    return rows[:first], rows[first : last + 1], rows[last + 1 :]


def _launches(row: dict) -> bool:
    name = re.sub(r"_\d+$", "", row["Name"])
    return row["op"] not in ("placeholder", "get_attr", "output") and name not in _NO_LAUNCH and bool(row["dtype"])


def _op(row: dict) -> Op:
    forward, backward, accumulate = (1e-3 * float(row[column] or 0) for column in ("fw_latency", "bw_latency", "acc_latency"))
    return Op(row["Name"], forward, backward + accumulate)


def plan(before: list[Op], layer: list[Op], after: list[Op], layers: int) -> Plan:
    """A replay of forward through all layers, then backward, on one stream."""

    def repeated() -> Iterator[tuple[str, Op]]:
        yield from (("", op) for op in before)
        for number in range(layers):
            yield from ((f"{number}.", op) for op in layer)
        yield from (("", op) for op in after)

    ops = list(repeated())
    tasks = [Task(f"{where}{op.name}", Recorded(op.name, "kernel", op.forward_s), "cuda:0", phase=FORWARD) for where, op in ops]
    tasks += [
        Task(f"{where}{op.name} backward", Recorded(op.name, "kernel", op.backward_s), "cuda:0", phase=BACKWARD)
        for where, op in reversed(ops)
        if op.backward_s
    ]
    return Plan("op latency", (Segment(tuple(tasks)),), {}, {})


def main() -> None:
    """Print measured and predicted times, and the errors."""
    folder = shared_folder("op_latency")
    if folder is None:
        print("no shared/data/op_latency beside the repository; set SCHEDCAST_SHARED")
        return
    machine = Machine("one stream", (Device("cuda:0", "gpu", 1, {}, "memory"),), (Memory("memory", 0, 1.0, 0),))
    print(f"{'GPU':<22} {'model':<26} {'measured/ms':>11} {'from ops/ms':>11} {'error':>8}   {'forward':>8}  {'backward':>8}")
    for path in sorted(folder.glob("*/*.csv")):
        truth = json.loads(path.with_suffix(".json").read_text())
        made = plan(*read(path), truth["num_layer"])
        timeline = simulate_replay(Replay(made, machine, (), ()))
        phase_s = {phase: sum(s.end_s - s.start_s for s in timeline.spans if s.phase == phase) for phase in (FORWARD, BACKWARD)}
        predicted = 1e3 * max(span.end_s for span in timeline.spans)
        pairs = ((predicted, "e2e_latency"), (1e3 * phase_s[FORWARD], "fw_latency"), (1e3 * phase_s[BACKWARD], "bwall_latency"))
        errors = "  ".join(f"{ours / truth[name] - 1:+8.1%}" for ours, name in pairs)
        print(f"{path.parent.name:<22} {path.stem:<26} {truth['e2e_latency']:11.1f} {predicted:11.1f} {errors}")


if __name__ == "__main__":
    main()
