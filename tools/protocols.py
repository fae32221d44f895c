"""Fit how a library's collectives use links, and score that on left-out GPUs: python -m tools protocols [--write].

The data are times of nccl-tests within one node. All GPUs share the figures of a protocol, and those of one form of node share its latency.
Each GPU is excluded in turn; then each form of node, whose latency is then the geometric mean of the others'. The only one on PCI Express
then has the shares of NVLink. `--write` puts the figures into `machines.json`. Needs the shared data.
"""

import csv
import gzip
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from simulator.engine.clock import Clock
from simulator.engine.collectives.protocols import Spread, lines
from simulator.engine.links import Links
from simulator.machine.preset_data import DATA, data
from simulator.machine.presets import load_machine
from simulator.machine.protocols import Protocol
from simulator.plan.bodies.copy import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from tests.support.shared_data import shared_folder

FILE = "nccl.csv.gz"
FITTED = "nccl-tables"
OPERATIONS = {"all_reduce": ALL_REDUCE, "all_gather": ALL_GATHER, "reduce_scatter": REDUCE_SCATTER, "alltoall": ALL_TO_ALL}
PRESETS = {
    "a100_sxm_80gb": "a100", "h100_sxm": "h100", "b200_sxm": "b200", "gb200": "gb200", "gb300": "gb300",
    "rtx_pro_6000_server": "rtx-pro-6000",
}  # fmt: skip
#: The forms of node whose latency is fitted, and others that have the same.
FORMS = {"dgx-a100": (), "dgx-h100": (), "dgx-b200": ("nvl72",), "pcie5": ("pcie2", "pcie3", "pcie4")}
#: Protocols whose figure is that of another: starts and hops do not depend on the link; all messages have one hop.
SAME = {
    ("low-latency-pcie", "start_s"): "low-latency", ("low-latency-pcie", "hop_s"): "low-latency", ("simple-pcie", "start_s"): "simple",
    ("simple-pcie", "hop_s"): "simple", ("simple-pcie", "own_share"): "simple", ("pairs-low-latency", "start_s"): "low-latency",
    ("pairs", "hop_s"): "pairs-low-latency", ("pairs", "own_share"): "simple", ("pairs-pcie", "start_s"): "pairs",
    ("pairs-pcie", "hop_s"): "pairs-low-latency", ("pairs-pcie", "own_share"): "simple",
}  # fmt: skip
#: Bytes up to which latency decides, and from which on bandwidth does.
SMALL_BYTES, LARGE_BYTES = 2**16, 2**22
#: Errors beyond this (of the logarithm) count linearly: NCCL's own choice of a protocol makes jumps that no line follows.
ROBUST = 0.15

Name = tuple[str, str]


class Series(NamedTuple):
    """Measured seconds by bytes, of one operation on some number of GPUs."""

    gpu: str
    operation: str
    spread: Spread
    bytes: np.ndarray
    seconds: np.ndarray

    @property
    def form(self) -> str:
        """The fitted form of the GPU's node."""
        own = next(name for name, node in data().nodes.items() if PRESETS[self.gpu] in node.gpus)
        return next(form for form, others in FORMS.items() if own == form or own in others)


def measured() -> list[Series]:
    """The tables, medians of repeated rows; empty without the data."""
    folder = shared_folder("op_tables")
    if folder is None or not (folder / FILE).is_file():
        return []
    found: dict[tuple[str, str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(folder / FILE, "rt") as file:
        for row in csv.DictReader(file):
            found[row["gpu"], row["op"], int(row["gpus"])][int(row["bytes"])].append(float(row["us"]) * 1e-6)
    series = []
    for (gpu, operation, ranks), sizes in found.items():
        ordered = sorted(sizes)
        seconds = [statistics.median(sizes[size]) for size in ordered]
        series.append(Series(gpu, OPERATIONS[operation], _spread(PRESETS[gpu], ranks), np.array(ordered, float), np.array(seconds)))
    return series


def _spread(preset: str, ranks: int) -> Spread:
    machine = load_machine(f"{ranks}x{preset}")
    first = machine.devices[0].name
    links = Links(Clock(), machine)
    route = links.route(first, machine.devices[1].name)
    return Spread(ranks, 1, max(1 / links.capacity(channel) for channel in route.channels), 0.0)


class Figures:
    """The fitted figures as one vector of logarithms: those of protocols, then the latencies of the forms of node."""

    def __init__(self):
        """As they are in `machines.json`."""
        entries = data().protocols
        sourced = [(name, field) for name, entry in entries.items() for field, value in entry if value[-1:] == (FITTED,)]
        self.names = [(name, field) for name, field in sourced if (name, field) not in SAME and getattr(entries[name], field)[0]]
        self.forms = list(FORMS)
        values = [getattr(entries[name], field)[0] for name, field in self.names]
        self.start = np.log([*values, *(data().nodes[form].latency[0] for form in self.forms)])

    def values(self, vector: np.ndarray) -> dict[Name, float]:
        """Figures by protocol and field."""
        own = dict(zip(self.names, np.exp(vector).tolist(), strict=False))
        return own | {name: own[other, name[1]] for name, other in SAME.items()}

    def latencies(self, vector: np.ndarray, fitted: Iterable[str]) -> dict[str, float]:
        """Latency of each form; those that were not fitted have the geometric mean of the others."""
        own = dict(zip(self.forms, vector[len(self.names) :], strict=True))
        mean = statistics.fmean(own[form] for form in fitted)
        return {form: float(np.exp(own[form] if form in fitted else mean)) for form in self.forms}

    def predict(self, vector: np.ndarray, series: Series, fitted: frozenset[str]) -> np.ndarray:
        """Seconds of each size. A form that was not fitted has no separate protocols, but those of NVLink."""
        values, latency = self.values(vector), self.latencies(vector, fitted)[series.form]
        names = data().node_of(PRESETS[series.gpu]).protocols
        borrowed = {name: name.removesuffix("-pcie") if series.form not in fitted else name for name in names}
        protocols = [_protocol(name, values, borrowed[name], latency) for name in names]
        found = lines(protocols, series.operation, False, series.spread)
        return np.min([line.seconds(series.bytes) for line in found], axis=0)


def _protocol(name: str, values: dict[Name, float], borrowed: str, latency: float) -> Protocol:
    entry = data().protocols[name]
    figures = {field: values.get((borrowed, field), getattr(entry, field)[0]) for field in ("start_s", "hop_s", "share", "own_share")}
    return Protocol(entry.form, figures["start_s"] * latency, figures["hop_s"] * latency, figures["share"], figures["own_share"])


def fit(figures: Figures, series: Sequence[Series]) -> tuple[np.ndarray, frozenset[str]]:
    """The figures, and the forms of node in the data. Each form has the same weight."""
    forms = frozenset(each.form for each in series)
    counts = {form: sum(each.bytes.size for each in series if each.form == form) for form in forms}
    place = [len(figures.names) + figures.forms.index(form) for form in forms]

    def residuals(vector: np.ndarray) -> np.ndarray:
        off = [np.log(figures.predict(vector, each, forms) / each.seconds) * np.sqrt(200 / counts[each.form]) for each in series]
        # Latencies of forms have the mean 1; what the data leave open stays where it was.
        return np.concatenate([*off, [30 * vector[place].mean()], 0.05 * (vector - figures.start)])

    first = least_squares(residuals, figures.start, loss="soft_l1", f_scale=ROBUST, diff_step=1e-4, max_nfev=40)
    return least_squares(residuals, first.x, loss="soft_l1", f_scale=ROBUST, diff_step=3e-3, max_nfev=40).x, forms


class Error(NamedTuple):
    """The logarithm of predicted over measured seconds of one size."""

    gpu: str
    operation: str
    bytes: float
    log: float


def errors(figures: Figures, vector: np.ndarray, series: Iterable[Series], forms: frozenset[str]) -> list[Error]:
    """All errors of predictions."""
    return [
        Error(each.gpu, each.operation, size, log)
        for each in series
        for size, log in zip(each.bytes, np.log(figures.predict(vector, each, forms) / each.seconds).tolist(), strict=True)
    ]


def left_out(figures: Figures, series: Sequence[Series], key: Callable[[Series], str]) -> list[Error]:
    """Errors of what `key` tells apart, each predicted from the others."""
    found = []
    for name in sorted({key(each) for each in series}):
        vector, forms = fit(figures, [each for each in series if key(each) != name])
        found += errors(figures, vector, [each for each in series if key(each) == name], forms)
    return found


def show(title: str, found: Sequence[Error]) -> None:
    """Print a table: median and 90 % quantile of the relative error, by GPU, operation and size."""
    sizes = {f"to {SMALL_BYTES >> 10} KB": (0, SMALL_BYTES), "to 4 MB": (SMALL_BYTES, LARGE_BYTES), "above": (LARGE_BYTES, np.inf)}
    print(f"{title}: median and 90 % quantile of |error|")
    print("".join([f"{'':20}", *(f"{name:>16}" for name in (*OPERATIONS, *sizes, "all"))]))
    for gpu in (*PRESETS, "all"):
        own = [error for error in found if gpu in (error.gpu, "all")]
        columns = [[e for e in own if e.operation == operation] for operation in OPERATIONS.values()]
        columns += [[e for e in own if low < e.bytes <= high] for low, high in sizes.values()] + [own]
        relative = [np.abs(np.expm1([error.log for error in column])) for column in columns]
        print("".join([f"{gpu:20}", *(f"{np.median(r):9.1%} {np.quantile(r, 0.9):5.0%}" for r in relative)]))
    for what, low, high in (("latency", 0, SMALL_BYTES), ("bandwidth", LARGE_BYTES, np.inf)):
        logs = [error.log for error in found if low < error.bytes <= high]
        print(f"RMS log error of {what}: {np.sqrt(np.mean(np.square(logs))):.2f}")


def write(values: dict[Name, float], latencies: dict[str, float]) -> None:
    """Put the figures into `machines.json`, with four digits."""
    text, document = DATA.read_text(), json.loads(DATA.read_text())
    for (name, field), value in values.items():
        document["protocols"][name][field] = [float(f"{value:.4g}"), FITTED]
    for name, entry in document["protocols"].items():
        text = re.sub(
            rf'^    "{name}": {{"form".*?}}(,?)$', lambda m, n=name, e=entry: f'    "{n}": {json.dumps(e)}{m[1]}', text, flags=re.M
        )
    for form, others in FORMS.items():
        for name in (form, *others):
            text = re.sub(rf'("{name}": {{\n      "gpus".*\n.*\n      "latency": \[)[^,]*', rf"\g<1>{latencies[form]:.4g}", text)
    DATA.write_text(text)


def main() -> None:
    """Fit on all, then without each GPU and each form of node."""
    series, figures = measured(), Figures()
    if not series:
        print("the shared data are not here")
        return
    vector, forms = fit(figures, series)
    values, latencies = figures.values(vector), figures.latencies(vector, forms)
    for (name, field), value in values.items():
        print(f"{name:20} {field:10} {value:.4g}")
    print({form: round(value, 3) for form, value in latencies.items()})
    show("fitted", errors(figures, vector, series, forms))
    show("each GPU excluded", left_out(figures, series, lambda each: each.gpu))
    show("each form of node excluded", left_out(figures, series, lambda each: each.form))
    if "--write" in sys.argv:
        write(values, latencies)


if __name__ == "__main__":
    main()
