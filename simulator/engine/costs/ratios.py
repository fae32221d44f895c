"""The cost of a GPU's key that was not measured: the table's time, corrected by how long measured keys like it take compared with theirs.

Keys are alike if they have one row of the table, one data type, and, if they are products, extents that tensor cores can load in both or
in neither. Let S and T be the measured and the table's seconds of such keys, and t the table's seconds of the new one. A measured key
counts by how near it is, w = exp(−½ (ln(T / t) / ln REACH)²). With W = Σ w, and r the median of ln(S / T) with the weights w √S, the new
key takes t · exp(r W / (W + TABLE)): the table counts as much as so many measured keys, and far from all of them nothing else is left. One
standard deviation of the logarithm is likewise that of all of them together: the measured keys' distances from this ratio, and the table's
own error. A cost counts as estimated from measured keys if they outweigh the table.

The same op at another batch, or another image size, is nearer than any of these: its measured time is scaled by the table (`relatives`).

The form and its two numbers were chosen on tables of ops that others published (`tools.public_ops`), where each model of a GPU is
predicted from its other models: `python -m tools ratios` prints these errors, and those of the shipped profiles, on which nothing was
chosen.
"""

import json
import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simulator.engine.costs import efficiencies
from simulator.engine.costs.cost import DATASHEET, FITTED, Cost
from simulator.engine.costs.efficiencies import Extents, Seconds, precision_of, precision_of_key
from simulator.engine.costs.products import Product
from simulator.engine.costs.relatives import Relatives, family, scaling_error
from simulator.engine.costs.site import Site, Sites, figure
from simulator.plan.bodies.opcall import ListedOp
from simulator.plan.task import DTYPE_BYTES, Task, Work
from traces.documents.profile import KeyCost, Profile

#: The factor between two times of the table at which a measured key counts exp(−½).
REACH = 16.0
#: How many measured keys the table counts for.
TABLE = 3.0


class Ratio(NamedTuple):
    """Measured over table's seconds, one standard deviation of its logarithm, and the weight of the measured keys that it rests on."""

    value: float
    error: float
    weight: float


def ratio_near(
    table_s: float, table_error: float, measured_s: np.ndarray, tables_s: np.ndarray, reach: float = REACH, table: float = TABLE
) -> Ratio:
    """The ratio of a key that takes `table_s` by the table, whose own error is `table_error`, from the seconds of measured keys.

    Three keys that take twice as long as the table says weigh as much as the table:

    >>> table_s = np.array([1.0, 1.0, 1.0])
    >>> round(ratio_near(1.0, 0.2, 2 * table_s, table_s).value, 3)
    1.414
    """
    weights = np.exp(-0.5 * (np.log(tables_s / table_s) / math.log(reach)) ** 2)
    logs, weight = np.log(measured_s / tables_s), float(weights.sum())
    order = np.argsort(logs)
    reached = np.cumsum((weights * np.sqrt(measured_s))[order])
    log_ratio = float(logs[order][np.searchsorted(reached, reached[-1] / 2)]) * weight / (weight + table)
    squares = float(weights @ (logs - log_ratio) ** 2) + table * table_error**2
    return Ratio(math.exp(log_ratio), math.sqrt(squares / (weight + table)), weight)


class _Row(NamedTuple):
    """Work as the table sees it: what must agree with measured keys, the precision whose peak applies, and the table's seconds."""

    name: str
    precision: str
    seconds: Seconds


class _Known(NamedTuple):
    """Measured keys that are alike: seconds measured and by the table, warm and cold."""

    warm_s: np.ndarray
    cold_s: np.ndarray
    warm_table_s: np.ndarray
    cold_table_s: np.ndarray


class MeasuredRatios:
    """The ratios of a GPU's profile. `sites`: of the figures that the table's shares refer to. `precision`: as in `CostModel`."""

    def __init__(self, device: str, sites: Sites, profile: Profile, precision: str):
        self._device, self._sites, self._profile, self._precision = device, sites, profile, precision

    def cost(self, task: Task, device: str, key: str) -> Cost | None:
        """The cost of a task on a device: no product is faster than the peak. None if no key of its row was measured."""
        work = task.body.work(task)
        site = self._sites.site(device)
        op = task if task.body.op else None
        own = self._row(
            site, op, work, task.body.least_kernels(site.kind), precision_of(task, work.op_class, self._precision),
            outputs=efficiencies.outputs(task),
        )  # fmt: skip
        near = self._near(own, key)
        if near is None:
            return None
        warm, cold = near
        least_s = work.flops / figure(site.peak_flops, own.precision) if work.op_class in efficiencies.DENSE else 0.0
        grid, blocks = efficiencies.geometry(task, site)
        error = max(warm.error, cold.error)
        relative = self._relatives.nearest(family(key), key)
        if relative is not None:
            name, factor_log = relative
            measured = self._profile.costs[name]
            other = self._row_of_key(name, measured).seconds
            warm_s = max(least_s, measured.warm.median_s * own.seconds.warm / other.warm)
            cold_s = max(warm_s, (measured.cold or measured.warm).median_s * own.seconds.cold / other.cold)
            error = max(scaling_error(error, factor_log), measured.warm.spread)
            return Cost(key, warm_s, cold_s, FITTED, grid, blocks, error=error)
        warm_s = max(least_s, own.seconds.warm * warm.value)
        source = FITTED if min(warm.weight, cold.weight) > TABLE else DATASHEET
        common = f"{own.name}@{key.rpartition('@')[2]}"
        return Cost(key, warm_s, max(warm_s, own.seconds.cold * cold.value), source, grid, blocks, error=error, common=common)

    def _near(self, own: _Row, key: str) -> tuple[Ratio, Ratio] | None:
        """The ratios of a key with its reads in the cache, and with none."""
        sms = key.rpartition("@")[2]
        known = self._known.get((own.name, own.precision, sms)) or self._known.get((own.name, own.precision, ""))
        if known is None or min(own.seconds.warm, own.seconds.cold) <= 0:
            return None
        pairs = (
            (own.seconds.warm, known.warm_s, known.warm_table_s),
            (own.seconds.cold, known.cold_s, known.cold_table_s),
        )
        warm, cold = (ratio_near(table_s, own.seconds.error, measured_s, tables_s) for table_s, measured_s, tables_s in pairs)
        return warm, cold

    @cached_property
    def _known(self) -> dict[tuple[str, str, str], _Known]:
        """By row, precision, and SMs ("": any), the measured keys that take time."""
        rows: dict[tuple[str, str, str], list[tuple[float, float, float, float]]] = {}
        for key, cost in self._profile.costs.items():
            sms = key.rpartition("@")[2]
            if not (cost.op_class and sms.isdecimal() and int(sms)) or cost.warm.median_s <= 0:
                continue
            row = self._row_of_key(key, cost)
            if min(row.seconds.warm, row.seconds.cold) <= 0:
                continue
            seconds = (cost.warm.median_s, (cost.cold or cost.warm).median_s, row.seconds.warm, row.seconds.cold)
            for share in (sms, ""):
                rows.setdefault((row.name, row.precision, share), []).append(seconds)
        return {name: _Known(*(np.array(column) for column in zip(*members, strict=True))) for name, members in rows.items()}

    def _row_of_key(self, key: str, cost: KeyCost) -> _Row:
        """What the table says of a measured key, whose text has the op with its operands. Updates are known by class alone."""
        site = self._sites.site(self._device, int(key.rpartition("@")[2]))
        precision = precision_of_key(key, cost.op_class, self._precision)
        op = ListedOp.of_key(key.rpartition("@")[0], cost.flops, cost.launches)
        kernels = cost.launches if op is None else op.body.least_kernels(site.kind)
        outputs = None if op is None else _outputs(op)
        return self._row(site, op, Work(cost.op_class, cost.flops, cost.bytes), kernels, precision, outputs=outputs)

    def _row(self, site: Site, op: ListedOp | Task | None, work: Work, kernels: int, precision: str, outputs: float | None) -> _Row:
        row = work.op_class if op is None else efficiencies.row_class(op, work.op_class, precision, site)
        extents = None if op is None else efficiencies.extents(op)
        seconds = efficiencies.seconds(site, row, work.flops, work.bytes, precision, kernels, outputs=outputs, extents=extents)
        return _Row(row if op is None else f"{row}{_kind(op, extents)}", precision, seconds)

    @cached_property
    def _relatives(self) -> Relatives:
        """The keys with a time."""
        costs = self._profile.costs.items()
        return Relatives((family(key), key) for key, cost in costs if cost.op_class and cost.warm.median_s > 0)


def _kind(op: ListedOp | Task, extents: Extents | None) -> str:
    """The data type of the op's first operand, and whether tensor cores cannot load its matrices at once."""
    dtype = next((operand.dtype for operand in op.inputs), "")
    aligned = not isinstance(extents, Product) or extents.aligned or extents.size >= DTYPE_BYTES["float32"]
    return f" {dtype}" if aligned else f" {dtype} unaligned"


def _outputs(op: ListedOp) -> float | None:
    """As `efficiencies.outputs`, for an op whose results a key does not say: those of a convolution follow from its FLOPs."""
    if not op.body.op.startswith("aten.convolution."):
        return efficiencies.outputs(op)
    weight = op.inputs[json.loads(op.body.args)[1]["$"]].shape
    return op.body.flops / (2 * math.prod(weight[1:])) or None
