"""The error of what a GPU's profile says of keys that it did not measure: python -m tools ratios

First on tables of ops that others published, each model of a GPU from its other models: the form and the numbers of
`simulator.engine.costs.ratios` were chosen on these. There the table is one that was fitted without the GPU. Then on the shipped profile of
the H100, on which nothing was chosen: each model from the other one, halves of a model's shapes from the rest, and the steps that were
measured there. `table`: what the table alone says of the same keys.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulator.engine.costs import efficiencies
from simulator.engine.costs.cost import MEASURED, Z_90
from simulator.engine.costs.model import CostModel, measurable
from simulator.engine.costs.ratios import ratio_near
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.forecast import forecast, plan_of
from simulator.predict.target import Target, profile_of_preset
from tests.support.shared_data import shared_folder
from tools.fit_efficiencies import predict, refit
from tools.public_ops import Op, all_sources, neusight
from traces.documents.comparison import Validation
from traces.documents.profile import KeyCost, Profile
from traces.documents.shipped import shipped_validations

GPU = "h100"
#: Folders of NeuSight's tables, one file for each model.
_MODELS = {"V100-PCIE": "Tesla_V100-PCIE-32GB", "L4": "NVIDIA_L4"}
_HEAD = "| {} | ops | measured/ms | table | with ratios | in {} |\n|---|---|---|---|---|---|"


class Guess(NamedTuple):
    """Seconds of an op in all its runs: measured, by the table, and with ratios, whose logarithm has the standard deviation `error`."""

    measured_s: float
    table_s: float
    guessed_s: float
    error: float


def row(guesses: Iterable[Guess]) -> str:
    """Some ops whose errors are one: the sums of both predictions over what was measured, and whether that lies in the interval."""
    measured_s, table_s, guessed_s, weighted = (
        sum(column) for column in zip(*((g.measured_s, g.table_s, g.guessed_s, g.guessed_s * g.error) for g in guesses), strict=True)
    )
    inside = abs(math.log(measured_s / guessed_s)) <= Z_90 * weighted / guessed_s
    return f"{1e3 * measured_s:.3f} | {table_s / measured_s - 1:+.0%} | {guessed_s / measured_s - 1:+.0%} | {'yes' if inside else 'no'} |"


def published(folder: Path) -> dict[str, dict[str, list[Op]]]:
    """Measured ops by board and model."""
    models: dict[str, dict[str, list[Op]]] = defaultdict(lambda: defaultdict(list))
    for source in all_sources(folder):
        if source.source != "neusight":
            models[source.board][source.workload.partition(",")[0]] += source.ops
    for board, name in _MODELS.items():
        for path in sorted((folder / "op_latency" / name).glob("*.csv")):
            models[board][path.stem] += neusight(board, path)
    return {board: own for board, own in models.items() if len(own) > 1}


def published_guesses(folder: Path) -> Iterator[tuple[str, str, str, list[Guess]]]:
    """(board, model, op class, guesses) of the ops of classes that the board's other models have."""
    table = efficiencies.table()["gpu"]
    without = {item.op: item.said for item in refit(folder, table)[1]}

    def table_of(op: Op) -> tuple[float, float]:
        said = without.get(op) or predict(op, table).said
        return (said.warm if op.warm else said.cold), said.error

    for board, models in published(folder).items():
        for model, ops in models.items():
            others: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for op in (op for name, own in models.items() if name != model for op in own if op.seconds > 0):
                others[op.op_class].append((op.seconds, table_of(op)[0]))
            guesses: dict[str, list[Guess]] = defaultdict(list)
            for op in (op for op in ops if op.seconds > 0 and op.op_class in others):
                table_s, error = table_of(op)
                ratio = ratio_near(table_s, error, *map(np.array, zip(*others[op.op_class], strict=True)))
                guesses[op.op_class].append(Guess(op.seconds * op.count, table_s * op.count, table_s * op.count * ratio.value, ratio.error))
            yield from ((board, model, op_class, own) for op_class, own in sorted(guesses.items()))


def print_published(folder: Path) -> None:
    """Print each class of each model, and the root mean squares of all."""
    print(_HEAD.format("public tables", "90 %"))
    logs = []
    for board, model, op_class, guesses in published_guesses(folder):
        print(f"| {board} {model}: {op_class} | {len(guesses)} | {row(guesses)}")
        measured_s, table_s, guessed_s, _ = (np.array(column) for column in zip(*guesses, strict=True))
        logs.append([measured_s @ np.log(own / measured_s) ** 2 / measured_s.sum() for own in (table_s, guessed_s)])
    print("\nRMS log error of a class of a model: table {:.2f}, with ratios {:.2f}.\n".format(*np.sqrt(np.mean(logs, axis=0))))


def measured_jobs() -> dict[str, tuple[Job, list[Validation]]]:
    """By model of the shipped profile, its job and what was measured of it in eager mode and in graphs."""
    jobs: dict[str, tuple[Job, list[Validation]]] = {}
    for validation in shipped_validations():
        if validation.device.get("kind") == "gpu" and any(row.strategy == "forward-fusion" for row in validation.results):
            optimizer, _, form = validation.optimizer.partition(":")
            job = Job(validation.model, validation.batch_size, precision=validation.precision, optimizer=optimizer, form=form)
            jobs.setdefault(validation.model, (job, []))[1].append(validation)
    return jobs


def print_shipped(title: str, job: Job, validations: list[Validation], known: Callable[[str, KeyCost], bool]) -> None:
    """Print the classes and the steps of a job with the keys of the profile that are `known`, and with the table alone."""
    profile = profile_of_preset(GPU)
    assert profile is not None, "the profile is part of the package"
    machine = load_machine(GPU, profile)
    true, model = CostModel(machine, profile), CostModel(machine, _only(profile, known))
    plan = plan_of(job, "baseline", Target.of(true))
    guesses: dict[str, list[Guess]] = defaultdict(list)
    for task, measured, cost, table in zip(plan.tasks, *(each.resolve(plan) for each in (true, model, true.by_table)), strict=True):
        if measurable(task) and measured.source == MEASURED != cost.source:
            guesses[cost.op_class].append(Guess(measured.cold_s, table.cold_s, cost.cold_s, cost.error))
    print(_HEAD.format(title, "90 %"))
    for op_class, own in sorted(guesses.items(), key=lambda item: -sum(guess.measured_s for guess in item[1])):
        print(f"| {op_class} | {len(own)} | {row(own)}")
    for validation in validations:
        baseline = next(result for result in validation.results if result.strategy == "baseline")
        if baseline.measured_step_s is None:
            continue
        targets = [Target.of(each, validation.mode) for each in (true.by_table, model)]
        steps = [forecast(plan_of(job, "baseline", target), target) for target in targets]
        table, own = (each.timeline.step_s / baseline.measured_step_s - 1 for each in steps)
        low, high = steps[1].interval_s
        inside = "yes" if low <= baseline.measured_step_s <= high else "no"
        print(f"| **step, {validation.mode}** | | {1e3 * baseline.measured_step_s:.1f} | {table:+.0%} | {own:+.0%} | {inside} |")
    print()


def _only(profile: Profile, known: Callable[[str, KeyCost], bool]) -> Profile:
    return profile.model_copy(update={"costs": {key: cost for key, cost in profile.costs.items() if known(key, cost)}})


def main() -> None:
    """Print all tables."""
    latencies = shared_folder("op_latency")
    if latencies is None:
        print("no public measurements next to the repository; set SCHEDCAST_SHARED")
    else:
        print_published(latencies.parent)
    for name, (job, validations) in measured_jobs().items():
        print_shipped(f"{GPU}: {name} from the other model", job, validations, lambda _, cost, name=name: cost.model != name)
        for half in (0, 1):
            title = f"{GPU}: {name}, half of its shapes from the rest"
            print_shipped(title, job, validations, lambda key, cost, half=half: sum(map(ord, key)) % 2 == half)


if __name__ == "__main__":
    main()
