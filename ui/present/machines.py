"""A machine in words, tables and charts: how its GPU is split, its precision, its figures with their sources, and what was measured on it.

The charts are the roofline of a job's ops and measured keys, and transfers with the law fitted to them.
"""

import math
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from math import log10
from types import MappingProxyType
from typing import TYPE_CHECKING

from simulator.engine.costs.op_points import OpPoint, Roof
from simulator.machine.machine import HostLane, Machine
from simulator.machine.presets import figures as preset_figures
from traces import units
from traces.documents.collectives import CollectiveLaw
from traces.documents.profile import Identity, Interference, Profile, Transfer
from ui.present import labels
from ui.present.blocks import Block, Figure, Group, Sentences, Table

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Rows of a table at most.
SHOWN = 15
#: Days after which a profile is called old.
OLD_DAYS = 90
NOT_CALIBRATED = "This machine is not calibrated: costs are from specifications; schedcast calibrate measures them."
#: What fields of a profile's dispatch costs, of its loop and of a host lane mean.
HOST_WORDS = MappingProxyType({
    "task_overhead_s": "executor's own time per task",
    "shared_overhead_s": "extra time of an op while another worker calls ops",
    "wake_s": "until a sleeping worker starts a task",
    "dispatch_s": "host's time to issue a task",
    "record_s": "to record an event",
    "wait_s": "to wait for an event",
    "switch_s": "to go on with another stream",
    "graph_launch_s": "to launch a CUDA graph",
    "graph_node_s": "to launch a CUDA graph: per node",
    "graph_branch_s": "to launch a CUDA graph: per branch beyond the first",
    "node_gap_s": "gap between two nodes of a graph on one stream",
    "cross_gap_s": "gap between two nodes of a graph on two streams",
    "launch_gap_s": "a kernel launched by itself takes longer by",
    "callback_s": "a host function stops a stream for",
    "call_s": "to issue a host function",
    "loop_s": "PyTorch's own loop: per op",
    "forward_s": "PyTorch's own loop: per op of the forward pass",
    "backward_s": "PyTorch's own loop: per op of the backward pass",
    "view_s": "PyTorch's own loop: per view",
    "update_s": "PyTorch's own loop: per call of the optimizer",
    "parameter_s": "PyTorch's own loop: per parameter",
})  # fmt: skip


def blocks(machine: Machine, calibrated: str = "") -> list[Block]:
    """Every figure of a machine with its source. `calibrated`: the day on which its costs were measured; empty if they were not."""
    rows, sources = figure_cells(figures(machine))
    measured = f"Costs were measured on {calibrated}; predictions use them, and the figures above for what was not measured."
    return [
        Table(rows, ("figure",), title=f"{machine.name}: {specification_words(machine, 'fp32')}"),
        Sentences(["Sources:", *(f"{number}. {source}" for number, source in enumerate(sources, 1))], mark=""),
        Sentences([measured] if calibrated else [], mark=""),
    ]


def profile_blocks(profile: Profile, points: Sequence[OpPoint]) -> list[Block]:
    """What a profile measured: ops (`points`, the longest first), transfers, updates, and, on request, interference and versions."""
    ops, fitted, words = measured_cells(points), bool(profile.transfers or profile.collectives), co_run_words(profile)
    together: list[Block] = [Sentences([words] if words else [], listed=False), Table(co_run_cells(profile), ("task", "beside"))]
    return [
        *([Figure(lambda: transfers_figure(profile), "Transfers and collectives: measured points and fitted laws")] if fitted else []),
        _measured(f"Ops: the {len(ops)} of {len(points)} that take the longest, nothing in the cache", ops, ("op", "operands", "class")),
        _measured("Transfers and collectives", transfer_cells(profile), ("transfer",)),
        _measured("Optimizer updates, warm and cold: the largest", update_cells(profile), ("update",)),
        *([Group("Tasks side by side", together, folded=True)] if co_run_cells(profile) else []),
        Group("Machine and versions", [Table(version_cells(profile.identity), ("what", "value"))], folded=True),
    ]


def _measured(title: str, cells: Sequence[Mapping[str, str]], left: Collection[str]) -> Block:
    """A table of what was measured, or that nothing was."""
    if not cells:
        return Sentences([f"{title}: none was measured"], mark="", listed=False)
    return Table(cells, left, ("FLOPs per byte", "GFLOP/s"), title=title)


def specification_cells(machine: Machine) -> list[dict[str, str]]:
    """One row per figure of the machine, with its source if the sources are known."""
    device, memory = machine.devices[0], machine.memories[0]
    unit = "SMs" if device.kind == "gpu" else "cores"
    rows = [
        ("devices", str(len(machine.devices)), ""),
        (unit, str(device.sms), "sms"),
        *((f"peak, {name}", f"{flops / 1e12:.3g} TFLOP/s", f"peak_flops {name}") for name, flops in device.peak_flops.items()),
        ("memory", units.memory(memory.size_bytes), "memory_bytes"),
        ("memory bandwidth", rate_text(memory.bandwidth_bytes_per_s), "bandwidth_bytes_per_s"),
        ("last-level cache", units.memory(memory.cache_bytes), "cache_bytes"),
        ("share of the SMs that saturates the memory" if device.kind == "gpu" else "share of the cores that saturates the memory",
         units.percent(memory.saturation_share, signed=False), "saturation_share"),
        ("levels of priority", str(device.priority_levels), "priority_levels"),
    ]  # fmt: skip
    cells = [{"figure": name, "value": value, "source": machine.sources.get(field, "")} for name, value, field in rows]
    if any(row["source"] for row in cells):
        return cells
    return [{"figure": row["figure"], "value": row["value"]} for row in cells]


def figures(machine: Machine) -> dict[str, tuple[float, str]]:
    """Every figure of the machine, by field, with its source: those of a preset's data, or of this machine."""
    if known := preset_figures(machine.name):
        return known
    device, memory, host = machine.devices[0], machine.memories[0], machine.host(machine.devices[0].name)
    of_host = {field.name: getattr(host, field.name) for field in fields(HostLane)} if host is not None else vars(device)
    values: dict[str, float] = {
        "sms": device.sms,
        **{f"peak_flops {name}": flops for name, flops in device.peak_flops.items()},
        "memory_bytes": memory.size_bytes,
        "bandwidth_bytes_per_s": memory.bandwidth_bytes_per_s,
        "cache_bytes": memory.cache_bytes,
        "saturation_share": memory.saturation_share,
        "priority_levels": device.priority_levels,
        **{name: of_host[name] for name in HOST_WORDS if name in of_host},
    }
    return {name: (value, _source(machine, name)) for name, value in values.items()}


def _source(machine: Machine, field: str) -> str:
    """Where a figure of a machine that is no preset comes from. The sources of this CPU have shorter names, without the unit."""
    named = (source for name, source in machine.sources.items() if field.startswith(name))
    return machine.sources.get(field) or next(named, "assumed, or read from this machine")


def link_cells(machine: Machine) -> list[dict[str, str]]:
    """One row per kind of link: its ends, latency and bandwidth."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for link in machine.links:
        figures = f"{link.latency_s * 1e6:.3g}", "moves nothing" if link.alias else rate_text(link.bandwidth_bytes_per_s)
        kinds.setdefault(figures, []).append(f"{link.source} to {link.target}")
    return [
        {"links": f"{ends[0]}{f' and {len(ends) - 1} more' if len(ends) > 1 else ''}", "latency us": latency, "bandwidth": bandwidth}
        for (latency, bandwidth), ends in kinds.items()
    ]


def rate_text(bytes_per_s: float) -> str:
    """A rate: 12.3 GB/s."""
    return f"{units.digits(bytes_per_s / 1e9)} GB/s"


#: What the end of a figure's field says of its unit: how its value reads.
_UNITS: Mapping[str, Callable[[float], str]] = MappingProxyType({
    "_bytes_per_s": rate_text,
    "_bytes": units.memory,
    "_hz": lambda value: f"{value / 1e9:.3g} GHz",
    "_w": lambda value: f"{value:.0f} W",
    "_s": lambda value: f"{units.digits(value * 1e6)} us",
})  # fmt: skip


def figure_cells(known: Mapping[str, tuple[float, str]]) -> tuple[list[dict[str, str]], list[str]]:
    """One row per figure, with the number of its source, and the sources in the order of their numbers, from 1 on."""
    sources = list(dict.fromkeys(source for _, source in known.values()))
    rows = []
    for field, (value, source) in known.items():
        name, _, key = field.partition(" ")
        if name == "peak_flops":
            words, text = f"peak, {key}", f"{value / 1e12:.3g} TFLOP/s"
        else:
            end = next((end for end in _UNITS if field.endswith(end)), "")
            words = HOST_WORDS.get(field) or field.removesuffix(end).replace("_", " ")
            text = _UNITS[end](value) if end else f"{value:g}"
        rows.append({"figure": words, "value": text, "source": str(sources.index(source) + 1)})
    return rows, sources


def transfer_cells(profile: Profile) -> list[dict[str, str]]:
    """One row per measured transfer or collective: the law that was fitted to its points. A collective's is that of its last piece."""
    laws = [(name, law.latency_s, law.bytes_per_s, law.points) for name, law in profile.transfers.items()]
    for name, law in profile.collectives.items():
        piece = law.pieces[-1]
        laws.append((name, piece.latency_s, 1 / piece.s_per_byte if piece.s_per_byte else math.inf, law.points))
    return [
        {"transfer": name, "latency us": units.digits(latency_s * 1e6), "bandwidth": rate_text(rate), "points": str(len(points))}
        for name, latency_s, rate, points in laws
    ]


def host_cells(machine: Machine, profile: Profile | None) -> list[dict[str, str]]:
    """One row per time of the host and the executor, in microseconds: measured, or else as the machine assumes."""
    rows = {}
    if profile is not None:
        measured = {**dict(profile.dispatch), **(dict(profile.loop) if profile.loop is not None else {})}
        rows = {name: (measured[name], "measured") for name in HOST_WORDS if measured.get(name) is not None}
    device, host = machine.devices[0], machine.host(machine.devices[0].name)
    assumed = {field.name: getattr(host, field.name) for field in fields(HostLane)} if host is not None else vars(device)
    for name in HOST_WORDS:
        if name in assumed:
            rows.setdefault(name, (assumed[name], machine.sources.get(name, "assumed")))
    named = [(words, *rows[name]) for name, words in HOST_WORDS.items() if name in rows]
    return [{"time": words, "us": units.digits(seconds * 1e6), "from": source} for words, seconds, source in named]


def _share_words(share: str) -> str:
    """The part of a device that a cost is of: 2, or 2 threads on one op."""
    threads = share.removesuffix("-threads")
    return share if threads == share else f"{units.threads(int(threads))} on one op"


def update_cells(profile: Profile) -> list[dict[str, str]]:
    """One row per measured optimizer update, the largest first: with its tensors in the cache, and without."""
    updates = [(key, cost) for key, cost in profile.costs.items() if cost.op_class.startswith("update")]
    rows = []
    for key, cost in sorted(updates, key=lambda item: -item[1].bytes)[:SHOWN]:
        cold = cost.cold or cost.warm
        rows.append({
            "update": cost.op_class.removeprefix("update."),
            "SMs (cores)": _share_words(key.rpartition("@")[2]),
            "moves": units.memory(cost.bytes),
            "warm ms": units.ms(cost.warm.median_s),
            "cold ms": units.ms(cold.median_s),
            "cold / warm": units.NONE if not cost.warm.median_s else f"{cold.median_s / cost.warm.median_s:.2f}",
            "spread": units.percent(max(cost.warm.spread, cold.spread), signed=False),
        })  # fmt: skip
    return rows


def co_run_cells(profile: Profile) -> list[dict[str, str]]:
    """One row per pair of groups: how many times longer a task takes concurrently with others, measured, modeled, and as the profile uses
    it."""
    pairs: dict[tuple[str, str, float | None], list[Interference]] = {}
    for precision, contention in profile.contentions.items():
        for run in contention.co_runs:
            task = f"{run.group}, {precision}" if precision else run.group
            pairs.setdefault((task, run.beside, contention.multipliers.get(f"{run.group}|{run.beside}")), []).append(run)
    return [
        {
            "task": task,
            "beside": beside,
            "interference runs": str(len(runs)),
            "takes longer, measured": f"{min(r.slow_down for r in runs):.2f}x to {max(r.slow_down for r in runs):.2f}x",
            "modeled": f"{min(r.modeled for r in runs):.2f}x to {max(r.modeled for r in runs):.2f}x",
            "multiplier": "none" if multiplier is None else f"{multiplier:.2f}",
        }
        for (task, beside, multiplier), runs in sorted(pairs.items())
    ]


def co_run_words(profile: Profile) -> str:
    """How well the multipliers predict interference runs that were excluded from their fit; empty if none was.

    On a GPU they were fitted in each precision separately.
    """
    sentences = []
    for precision, contention in profile.contentions.items():
        with_s, without_s = contention.held_out_error, contention.held_out_error_without
        if with_s is not None and without_s is not None:
            used = "used" if contention.multipliers else "not used, because they do not lower the error"
            sentences.append(
                f"On interference runs{f' in {precision}' if precision else ''} left out of the fit, multipliers are off by"
                f" {units.percent(with_s, signed=False)}, no multipliers by {units.percent(without_s, signed=False)}: they are {used}."
            )
    if sentences and profile.identity.kind == "gpu":
        sentences.append(
            "Products in a precision that was not measured take the multipliers of another; how long they take is less certain."
        )
    return " ".join(sentences)


def op_cells(points: Sequence[OpPoint], own_roof: Roof, most: int = SHOWN) -> list[dict[str, str]]:
    """One row for each of the `most` points with the most time in all."""
    return [
        {
            "op": point.name,
            "class": point.op_class,
            "times": str(point.count),
            "ms in all": units.ms(point.count * point.seconds),
            "FLOPs per byte": units.digits(point.intensity) if point.bytes else units.NONE,
            "GFLOP/s": units.digits(point.flops_per_s / 1e9) if point.seconds else units.NONE,
            "of the roof": units.percent(own_roof.reached(point), signed=False) if point.drawable else units.NONE,
            "cost": point.source,
        }
        for point in points[:most]
    ]


def measured_cells(points: Sequence[OpPoint], most: int = SHOWN) -> list[dict[str, str]]:
    """One row for each of the `most` measured keys of a profile that take the longest: the op, its operands, and one execution."""
    return [
        {
            "op": point.name.partition("|")[0].removeprefix("aten.").removesuffix(".default"),
            "operands": " ".join(part for part in re.sub(r", ", ",", point.name).split("|")[1:] if part[:1] not in "[{"),
            "class": point.op_class,
            "ms": units.ms(point.seconds),
            "FLOPs per byte": units.digits(point.intensity) if point.bytes else units.NONE,
            "GFLOP/s": units.digits(point.flops_per_s / 1e9) if point.seconds else units.NONE,
        }
        for point in points[:most]
    ]


def age_words(profile: Profile, now: datetime | None = None) -> str:
    """When the profile was measured, in one sentence, and by how much bursts were too short, if that is known."""
    days = age_days(profile, now)
    ago = "" if days is None else ", today" if days == 0 else f", {days} day{'' if days == 1 else 's'} ago"
    ratios = [cost.cold.median_s / cost.burst_s for cost in profile.costs.values() if cost.cold and cost.burst_s]
    burst = f", {len(ratios)} under sustained load: {statistics.median(ratios):.2f} times as long as in a burst" if ratios else ""
    return f"Profile of {profile.identity.name}, last measured {profile.updated[:10]}{ago}: {len(profile.costs):,} measured costs{burst}."


def age_days(profile: Profile, now: datetime | None = None) -> int | None:
    """Days since the profile was last measured; None if it does not say."""
    try:
        updated = datetime.fromisoformat(profile.updated)
    except ValueError:
        return None
    return max(0, ((now or datetime.now(UTC)) - (updated if updated.tzinfo else updated.replace(tzinfo=UTC))).days)


def warnings(profile: Profile, here: Identity | None = None, now: datetime | None = None) -> list[str]:
    """What makes a profile less reliable, one sentence each: another machine or software, age, throttling, disturbances, failures.

    `here`: the identity of the machine to compare with; None for none.
    """
    result = []
    if here is not None and (differences := profile.matches(here)):
        result.append(f"It is of another machine or software: {'; '.join(differences)}.")
    days = age_days(profile, now)
    if days is not None and days > OLD_DAYS:
        result.append(f"It is {days} days old; calibrate again if drivers or libraries have changed since.")
    if any(profile.identity.throttle.values()):
        reasons = ", ".join(f"{name} {_listed(value)}" for name, value in profile.identity.throttle.items() if value)
        result.append(f"The device throttled while it was measured: {reasons}.")
    result += [f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in profile.notes[:SHOWN]]
    if profile.contention.disturbed:
        result.append("Other work ran during the interference runs; they should be measured again.")
    if profile.failures:
        result.append(f"{len(profile.failures)} costs could not be measured and are estimated from other ops.")
    return result


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def version_cells(identity: Identity) -> list[dict[str, str]]:
    """One row per fact about the machine and the software of a profile."""
    facts: Iterable[tuple[str, object]] = (*identity, *identity.extras.items())
    return [
        {"what": name, "value": _listed(value) if not isinstance(value, dict) else "; ".join(f"{k} {_listed(v)}" for k, v in value.items())}
        for name, value in facts
        if name != "extras" and value not in ("", 0, {}, [], None)
    ]


def specification_words(machine: Machine, precision: str) -> str:
    """What a machine is: 8 GPUs, each with 132 SMs, 66.9 TFLOP/s (fp32) and 80 GiB at 3350 GB/s. `precision`: of the FLOP/s."""
    device, memory, count = machine.devices[0], machine.memories[0], len(machine.devices)
    several = f"{count} GPUs, each with " if count > 1 else ""
    parts = "SMs" if device.kind == "gpu" else "core" if device.sms == 1 else "cores"
    named = precision if precision in device.peak_flops else "fp32"
    flops = f"{units.digits(device.peak_flops[named] / 1e12)} TFLOP/s ({named})"
    rate = f"{memory.bandwidth_bytes_per_s / 1e9:.0f} GB/s"
    return f"{several}{device.sms} {parts}, {flops}, {units.capacity(memory.size_bytes)} at {rate}"


def partition_words(machine: Machine) -> str:
    """How the machine's GPU is split; empty if it is not."""
    if machine.whole is None:
        return ""
    parts, gpu = machine.devices, machine.whole.devices[0]
    left = gpu.sms - sum(part.sms for part in parts)
    unused = f" ({left} of its {gpu.sms} SMs stay unused)" if left else ""
    return (
        f"One GPU of {machine.name} is split into {len(parts)} parts of {parts[0].sms} SMs{unused}."
        " The baseline, and every schedule of one device, uses the whole GPU."
    )


def unmeasured_words(machines: Iterable[Machine]) -> str:
    """The source of a prediction's costs for a GPU, if they are not those of a calibration; else empty."""
    if not any(machine.devices[0].kind == "gpu" and "costs" not in machine.sources for machine in machines):
        return ""
    return (
        "Not measured on this GPU: schedules, the baseline among them, run in our executor, whose time on the host is assumed."
        " What you have is plain PyTorch."
    )


def precision_words(machines: Iterable[Machine], precision: str) -> str:
    """What PyTorch's default precision means on the GPUs that have TF32; otherwise empty."""
    names = [machine.name for machine in machines if machine.devices[0].kind == "gpu" and "tf32" in machine.devices[0].peak_flops]
    if precision != "default" or not names:
        return ""
    return f"{', '.join(dict.fromkeys(names))}: convolutions in TF32, products in fp32, as is PyTorch's default (--precision)"


@dataclass(frozen=True)
class FittedLine:
    """A transfer's or collective's measured (bytes, seconds), and its law at the same sizes (at 1 KiB to 1 GiB, if none was stored)."""

    name: str
    points: tuple[tuple[float, float], ...]
    law: tuple[tuple[float, float], ...]


def fitted_lines(profile: Profile) -> list[FittedLine]:
    """The transfers of a profile, then its collectives."""
    laws: Mapping[str, Transfer | CollectiveLaw] = {**profile.transfers, **profile.collectives}
    result = []
    for name, law in laws.items():
        points = tuple((size, seconds) for size, seconds in law.points if size > 0 and seconds > 0)
        sizes = sorted({size for size, _ in points}) or [2.0**power for power in range(10, 31, 2)]
        fitted = tuple((size, law_seconds(law, size)) for size in sizes)
        result.append(FittedLine(name, points, fitted))
    return result


def law_seconds(law: Transfer | CollectiveLaw, size: float) -> float:
    """The seconds that a law gives for `size` bytes: of a collective by its pieces, and not by the points it was fitted on."""
    if isinstance(law, Transfer):
        return law.latency_s + size / law.bytes_per_s
    piece = next((piece for piece in law.pieces if size <= piece.up_to_bytes), law.pieces[-1])
    return piece.latency_s + piece.s_per_byte * size


def transfers_figure(profile: Profile) -> "go.Figure":
    """Time over size on logarithmic axes, one color per transfer or collective: measured points, and lines of the laws."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for number, line in enumerate(fitted_lines(profile)):
        name, color = labels.plotly_escaped(line.name), labels.line_color(number)
        for kind, rows in (("markers", line.points), ("lines", line.law)):
            if rows:
                x, y = zip(*rows, strict=True)
                figure.add_scatter(
                    x=x, y=[seconds * 1e3 for seconds in y], mode=kind, name=name, legendgroup=name, showlegend=kind == "lines",
                    line={"color": color, "width": 2}, marker={"color": color, "size": 8},
                    hovertemplate=f"%{{x:.3s}}B: %{{y:.3g}} ms, {'measured' if kind == 'markers' else 'law'}",
                )  # fmt: skip
    figure.update_xaxes(title_text="bytes", type="log", gridcolor=labels.GRID, exponentformat="SI")
    figure.update_yaxes(title_text="ms", type="log", gridcolor=labels.GRID)
    return labels.finished(figure, "Transfers and collectives: measured points and fitted laws", drawn_px=320)


#: Points of measured keys that are drawn at most.
MOST_KEYS = 2000
_OF_KEYS = "measured costs of the profile"


def roofline_figure(points: Sequence[OpPoint], own_roof: Roof, keys: Sequence[OpPoint] = ()) -> "go.Figure":
    """FLOP/s over FLOPs per byte on logarithmic axes. Marks grow with the time that the op takes in all; colors are those of phases."""
    import plotly.graph_objects as go

    figure = go.Figure()
    shown = [point for point in points if point.drawable]
    others = [point for point in keys if point.drawable][:MOST_KEYS]
    if others:
        _marks(figure, others, _OF_KEYS, labels.GREY, [5.0] * len(others), 0.35)
    longest_s = max((point.count * point.seconds for point in shown), default=1.0)
    for phase in labels.phases_in_order({point.phase for point in shown}):
        own = [point for point in shown if point.phase == phase]
        sizes = [7 + 25 * (point.count * point.seconds / longest_s) ** 0.5 for point in own]
        _marks(figure, own, phase, labels.phase_color(phase), sizes, 0.8)
    everything = [*shown, *others]
    low, high = _range([point.intensity for point in everything], own_roof)
    for precision in roofs_to_draw(own_roof, everything):
        corner = own_roof.peaks[precision] / own_roof.bytes_per_s
        x = sorted({low, high, *([corner] if low < corner < high else [])})
        figure.add_scatter(
            x=x, y=[own_roof.at(value, precision) for value in x], mode="lines", name=f"roof, {precision}",
            line={"color": labels.LIMIT, "width": 2, "dash": "solid" if precision == "fp32" else "dash"}, hoverinfo="name+y",
        )  # fmt: skip
    axis = {"type": "log", "gridcolor": labels.GRID, "exponentformat": "SI"}
    figure.update_xaxes(title_text="FLOPs per byte", range=[log10(low), log10(high)], **axis)
    figure.update_yaxes(title_text="FLOP/s", **axis)
    return labels.finished(figure, "Roofline: every op of the job", drawn_px=420)


def roofs_to_draw(own_roof: Roof, points: Sequence[OpPoint]) -> list[str]:
    """The precisions whose roofs apply to a point, fp32 first."""
    used = {point.precision for point in points if point.precision in own_roof.peaks}
    return [name for name in own_roof.peaks if name in used | {"fp32"}]


def _range(intensities: Sequence[float], own_roof: Roof) -> tuple[float, float]:
    corner = max(own_roof.peaks.values()) / own_roof.bytes_per_s
    return min([*intensities, corner / 100]) / 2, max([*intensities, corner]) * 3


def _marks(figure: "go.Figure", points: Sequence[OpPoint], name: str, color: str, sizes: Sequence[float], opacity: float) -> None:
    texts = [
        "<br>".join((
            f"<b>{labels.plotly_escaped(point.name[:120])}</b>",
            labels.plotly_escaped(f"{point.op_class}, {point.precision}, {point.source}"),
            f"{point.count} x {units.duration(point.seconds)}",
            f"{units.digits(point.intensity)} FLOPs per byte, {units.digits(point.flops_per_s / 1e9)} GFLOP/s",
        ))
        for point in points
    ]  # fmt: skip
    figure.add_scatter(
        x=[point.intensity for point in points], y=[point.flops_per_s for point in points], mode="markers",
        name=labels.plotly_escaped(name), marker={"color": color, "size": list(sizes), "opacity": opacity, "line": {"width": 0}},
        hovertext=texts, hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip
