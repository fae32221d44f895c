"""Tries one model, in a separate process: python -m tools.zoo.one POSITION prints a row as JSON after each of its steps."""

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from calibrate.numerics import Expected, compare
from executors.cpu.backend import CpuBackend
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.forecast import forecast, plan_of
from simulator.predict.target import Target
from tools.zoo.models import ENTRIES, Entry
from traces.errors import SchedcastError

STRATEGIES = ("baseline", "turbodl")


@dataclass
class Row:
    """What is known of a model. `capture_s` are seconds of the processor, `h100_s` those of a predicted step of the baseline."""

    name: str
    source: str
    batch: int
    inputs: str = ""
    capture_s: float | None = None
    ops: int | None = None
    h100_s: float | None = None
    numbers: str = ""
    refusal: str = ""


def try_model(entry: Entry, folder: Path):
    """Capture, predict and run a model, and yield its row after each step."""
    row = Row(entry.name, entry.source, entry.batch)
    yield row
    try:
        job = Job(_spec(entry, folder), entry.batch, entry.size if entry.source != "own" else None)
        _ = job.factory  # loads the library
        start_s = time.process_time()
        graph = job.graph()
        row.capture_s, row.ops = time.process_time() - start_s, len(graph.ops)
        row.inputs = ", ".join("x".join(map(str, graph.values[name].shape[1:])) or "1" for name in graph.inputs if name in graph.values)
        yield row
        machine = load_machine("h100")
        for strategy in STRATEGIES:
            predicted = forecast(plan_of(job, strategy, Target.of(CostModel(machine))), Target.of(CostModel(machine)))
            row.h100_s = row.h100_s or predicted.timeline.step_s
        yield row
        row.numbers = _numbers(job)
    except SchedcastError as error:
        row.refusal = str(error)
    except Exception as error:  # a fault of ours: it belongs into the table too
        row.refusal = f"FAULT {type(error).__name__}: {error}"
    yield row


def _spec(entry: Entry, folder: Path) -> str:
    if not entry.settings:
        return entry.model
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": entry.name, **entry.settings}))
    return f"hf:{path}"


def _numbers(job: Job) -> str:
    """Compare five steps with plain PyTorch's, on this machine."""
    machine = load_machine("this-cpu")
    built, backend = job.build(), CpuBackend(machine)
    expected = Expected.of(job, built)
    results = [compare(job, built, plan_of(job, text, Target.of(CostModel(machine))), backend, expected) for text in STRATEGIES]
    if not expected.finite:
        return "not finite with plain PyTorch either"
    if all(result.equal(job.precision) for result in results):
        error = max(max(result.max_grad_error, result.max_param_error) for result in results)
        return f"{error:.0e}" if error else "identical"
    wrong = (f"{text} {max(r.max_grad_error, r.max_param_error):.1e}" for text, r in zip(STRATEGIES, results, strict=True))
    return f"DIFFERENT: {', '.join(wrong)}"


def main() -> None:
    """Try the model at the position that the command line names."""
    with tempfile.TemporaryDirectory() as folder:
        for row in try_model(ENTRIES[int(sys.argv[1])], Path(folder)):
            print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
