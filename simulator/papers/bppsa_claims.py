"""The BPPSA paper's claims, judged from predicted epochs and speed-ups; and an experiment that says why one of them does not hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, log, log2
from typing import NamedTuple

from simulator.machine.machine import Machine
from simulator.papers import registry
from simulator.papers.bppsa_epochs import RNN, Case, Epoch, Epochs, Workloads
from simulator.papers.registry import EQUAL, near, span
from simulator.strategies.scan.algorithm import exclusive_scan, full_level
from traces.documents.reproduction import Check, PaperCase, Table
from traces.units import memory

PAPER = registry.get("bppsa")
#: A time that grows with a smaller power of the length than _HARDLY hardly grows; with at least the power _BOUND, the work bounds it.
_HARDLY, _BOUND = 0.25, 0.5
#: Two runs of one configuration in the paper differ by up to this share.
NOISE = 0.05
#: Ratios of backward to forward step times that are tried to see what a claim depends on.
_RATIOS = tuple(number / 10 for number in range(10, 26))
#: Predicted epochs by case.
EpochsByCase = Mapping[Case, Epoch]
#: Length or mini-batch, and a figure.
Points = Sequence[tuple[int, float]]


class Predicted(NamedTuple):
    """Predicted epochs: of the RNN and the GRU on the first card, with constants that are fitted to short sequences only, and by card."""

    rnn: EpochsByCase
    gru: EpochsByCase
    held_out: EpochsByCase
    cards: Mapping[str, EpochsByCase]


class OnDevices(NamedTuple):
    """Most bytes on one of several devices, with a scan and with GPipe, and seconds of a step with Blelloch's scan and a linear one."""

    scan_bytes: int
    gpipe_bytes: int
    scan_s: float
    linear_s: float


def faster_than_linear(epochs: EpochsByCase, kernels_s: Mapping[Case, tuple[float, float]]) -> Check:
    """Judge: Theta(log n) steps take less time than the Theta(n) steps of a linear scan over the same Jacobians.

    `kernels_s`: the kernels alone of Blelloch's scan and of a linear one.
    """
    cases = {
        f"T = {case.length}": (epoch.of_linear_scan.backwards[1] / epoch.backwards[1], linear_s / scan_s)
        for case, epoch in epochs.items()
        for scan_s, linear_s in [kernels_s[case]]
    }
    return PAPER.claim("log n").each(cases)


def on_devices(shared: Mapping[int, OnDevices]) -> Check:
    """Judge: from the fewest devices to the most, a step grows less with Blelloch's scan than with a linear one."""
    claim = PAPER.claim("devices")
    if len(shared) < 2:
        return claim.unjudged()
    fewest, most = shared[min(shared)], shared[max(shared)]
    growths = [getattr(most, name) / getattr(fewest, name) for name in ("scan_s", "linear_s")]
    return claim.each({f"{min(shared)} to {max(shared)} devices": (*growths, 1e3 * most.scan_s, 1e3 * most.linear_s)})


def depth(lengths: Sequence[int]) -> Check:
    """Count products that wait for each other in a scan over a gradient and `length` Jacobians."""

    def product(later: int, earlier: int) -> int:
        return 1 + max(later, earlier)

    def dependent(length: int, level: int) -> int:
        return max(exclusive_scan([0] * (length + 1), level, product))

    cases = {f"n = {length}": (dependent(length, full_level(length + 1)), dependent(length, 0)) for length in lengths}
    within = {f"n = {n}": ((None, 2.0 * ceil(log2(n + 1))), (float(n), float(n))) for n in lengths}
    return PAPER.claim("depth").each(cases, within)


def as_in_table_4(held_out: EpochsByCase, printed: EpochsByCase) -> Check:
    """Judge: the epochs' speed-ups of lengths that the fit has not seen are those of table 4."""
    cases = {f"T = {case.length}": (epoch.speedups[0], printed[case].speedups[0]) for case, epoch in held_out.items()}
    return PAPER.claim("table 4").each(cases, {case: ((theirs, theirs),) for case, (_, theirs) in cases.items()})


def beyond_workers(longest: Mapping[str, Epoch]) -> Check:
    """Judge: with many more steps than workers the backward is still faster than back-propagation's."""
    return PAPER.claim("beyond workers").each({card: (epoch.speedups[1],) for card, epoch in longest.items()})


def greatest_gains(small: EpochsByCase, large: EpochsByCase) -> Iterator[Check]:
    """Judge the greatest speed-ups: of the RNN's epoch on the smaller card and its backward on the larger, and the GRU's on both."""
    printed = PAPER.values("greatest")
    rnn, gru = (
        [[e.speedups for case, e in card.items() if (case.model == RNN) is of_rnn] for card in (small, large)] for of_rnn in (True, False)
    )
    most = {
        "greatest overall": (max(gains[0] for gains in rnn[0]), printed["RNN, greatest"][0]),
        "greatest backward": (max(gains[1] for gains in rnn[1]), printed["RNN, greatest"][1]),
        "GRU, greatest overall": (max(gains[0] for card in gru for gains in card), printed["GRU, greatest"][0]),
        "GRU, greatest backward": (max(gains[1] for card in gru for gains in card), printed["GRU, greatest"][1]),
    }
    for name, (gain, theirs) in most.items():
        yield PAPER.claim(name).because(_with_rnn_backward(small)).each({"at most": (gain,)}, {"at most": (near(theirs),)})


def _with_rnn_backward(epochs: EpochsByCase) -> str:
    """The speed-up of the longest GRU's backward at the smallest mini-batch, if BPPSA's took as long as an RNN's of about its length."""
    gru = max((case for case in epochs if case.model != RNN), key=lambda case: (case.length, -case.batch))
    rnn = min((case for case in epochs if case.model == RNN), key=lambda case: (abs(case.length - gru.length), abs(case.batch - gru.batch)))
    backward_s, scan_s = epochs[gru].backwards[0] / gru.iterations, epochs[rnn].backwards[1] / rnn.iterations
    return f"{backward_s / scan_s:.1f}x"


def fitted_point(epoch: Epoch) -> Check:
    """Judge the point of the smaller card to which its backward step is fitted."""
    overall, backward = PAPER.values("greatest")["RNN, T = 1000, B = 16"]
    return PAPER.claim("fitted point").each({"RTX 2070": epoch.speedups}, {"RTX 2070": (near(overall), near(backward))})


def larger_card_is_faster(by_length: Mapping[Case, tuple[Epoch, Epoch]]) -> Check:
    """Judge: the backward of BPPSA takes less time on the larger card. Epochs: on the larger one, then on the smaller one."""
    cases = {f"T = {c.length}": tuple(1e3 * e.backwards[1] / c.iterations for e in both) for c, both in by_length.items()}
    return PAPER.claim("latency").each(cases)


def memory_is_constant(peaks: Mapping[int, tuple[int, int]]) -> Check:
    """Judge: a device's memory stays constant with BPPSA, and grows with GPipe. `peaks`: of both, by the number of devices."""
    claim = PAPER.claim("memory")
    if len(peaks) < 3:
        return claim.unjudged(f"{len(peaks)} of at least 3 numbers of devices were simulated")
    scan, gpipe = zip(*peaks.values(), strict=True)
    said = f"{', '.join(map(str, peaks))} devices: {' '.join(map(memory, scan))} with a scan, {' '.join(map(memory, gpipe))} with GPipe"
    grows = all(a < b for a, b in pairwise(gpipe))
    return claim.judged(max(scan[1:]) == min(scan[1:]) and grows, said, {"scan": scan[-1], "gpipe": gpipe[-1]})


def by_network(losses: Table) -> dict[str, list[PaperCase]]:
    """The rows of the table of losses by network."""
    rows: dict[str, list[PaperCase]] = {}
    for row in losses.rows:
        rows.setdefault(row.labels["network"], []).append(row)
    return rows


def of_executions(tables: Mapping[str, Table]) -> tuple[Check, Check]:
    """Judge what executed trainings decide, with or without their `tables`, by name.

    BPPSA's losses are those of back-propagation; with Adam, PipeDream's stale weights cost accuracy.
    """
    curves = by_network(tables["losses"]) if "losses" in tables else {}
    apart = {
        network: (rows[-1].predicted("most apart"), rows[0].predicted("BPPSA"), rows[-1].predicted("BPPSA"))
        for network, rows in curves.items()
    }
    rows = tables["pipedream"].rows if "pipedream" in tables else ()
    pairs = {
        f"{own.labels['optimizer']} at a rate of {own.labels['rate']}": (plain, own)
        for plain, own in zip(rows[::2], rows[1::2], strict=True)
    }
    adam = [case for case in pairs if case.startswith("adam")]
    best = max(adam, key=lambda case: pairs[case][0].predicted("accuracy") or 0.0, default="")
    drops = {case: (own.predicted("drop"),) for case, (_, own) in pairs.items()}
    claim = PAPER.claim("PipeDream")
    others = "; ".join(claim.said.format(*drop, case=case) for case, drop in drops.items() if case != best)
    stale = claim.each({case: drop for case, drop in drops.items() if case == best}, others=others)
    return PAPER.claim("convergence").each(apart), stale


def bound_by_workers(points: Points) -> Check:
    """Judge: BPPSA's backward takes Theta(n/p + log p). `points`: length and seconds of BPPSA's backward."""
    claim = PAPER.claim("workers")
    if len(points) < 3:
        return claim.unjudged(f"{len(points)} of at least 3 lengths could be predicted")
    low, high = _power(*points[:2]), _power(*points[-2:])
    said = f"it grows as T^{low:.2f} from {points[0][0]} to {points[1][0]} steps, as T^{high:.2f} from {points[-2][0]} to {points[-1][0]}"
    return claim.judged(low < _HARDLY and high >= _BOUND, said, {"first power": low, "last power": high})


def _power(one: tuple[int, float], other: tuple[int, float]) -> float:
    return log(other[1] / one[1]) / log(other[0] / one[0])


def longer_sets_gain_more(gru: EpochsByCase) -> Check:
    """Judge: at every mini-batch, the GRU's backward gains more on the last set than on the first."""
    by_batch: dict[str, list[float]] = {}
    for case, epoch in gru.items():
        by_batch.setdefault(f"B = {case.batch}", []).append(epoch.speedups[1])
    return PAPER.claim("sets").each({batch: (gains[0], gains[-1]) for batch, gains in by_batch.items()})


def points(cards: Mapping[str, EpochsByCase]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the RNN's speed-ups by card and point: of the whole epoch, and of the backward."""
    of_rnn = [
        (f"{card}, T = {c.length}, B = {c.batch}", e.speedups) for card, own in cards.items() for c, e in own.items() if c.model == RNN
    ]
    return {name: gains[0] for name, gains in of_rnn}, {name: gains[1] for name, gains in of_rnn}


def greatest_differ(overall: Mapping[str, float], backward: Mapping[str, float], reason: Callable[[], str] = str) -> Check:
    """Judge: the greatest overall speed-up and the greatest backward speed-up are at different points. Both mappings: by point name.

    `reason` finds out why, if it does not hold.
    """
    best, best_backward = max(overall, key=overall.__getitem__), max(backward, key=backward.__getitem__)
    said = f"{overall[best]:.2f}x at {best}, the backward's {backward[best_backward]:.1f}x at {best_backward}"
    figures = {"overall": overall[best], "backward": backward[best_backward]}
    differ = best != best_backward
    return PAPER.claim("greatest").judged(differ, said, figures, "" if differ else reason())


def why_at_one_point(places: Mapping[str, Machine], cases: Sequence[Case], workloads: Workloads) -> str:
    """Return the result of an experiment: how long a backward step must be on the larger card for the claim to hold, if the smaller one's
    is known.

    On the smaller card the paper's overall and backward speed-ups at one point imply that back-propagation's backward takes
    (a - 1) b / (b - a) times as long as the forward, as forward and backward / b together take an a-th of forward and backward.
    """
    overall, backward = PAPER.values("greatest")["RNN, T = 1000, B = 16"]
    implied = (overall - 1) * backward / (backward - overall)
    (small, of_small), (large, of_large) = places.items()
    known = {small: Epochs(_with_ratio(of_small, implied), workloads)}
    holds = []
    for ratio in _RATIOS:
        epochs = known | {large: Epochs(_with_ratio(of_large, ratio), workloads)}
        tried = points({card: {case: own.epoch(case) for case in cases} for card, own in epochs.items()})
        if greatest_differ(*tried, reason=str).holds:
            holds.append(ratio)
    own = of_large.hosts[0].backward_step_s / of_large.hosts[0].forward_step_s
    span_of_ratios = f"from {holds[0]:g} to {holds[-1]:g}" if holds else "at none"
    return (
        f"the paper's {overall:g}x and {backward:g}x at one point of the {small} imply that a backward step takes {implied:.2f} forward"
        f" steps there; none are published for the {large}, where {own:.2f} are assumed, as on the V100 with the same cuDNN. With"
        f" {_RATIOS[0]:g} to {_RATIOS[-1]:g} tried there, the claim holds {span_of_ratios}"
    )


def _with_ratio(machine: Machine, ratio: float) -> Machine:
    """The machine on which a backward step takes `ratio` forward steps."""
    host = machine.hosts[0]
    return replace(machine, hosts=(replace(host, backward_step_s=ratio * host.forward_step_s),))


def larger_card_peaks_later(large: Points, small: Points) -> Check:
    """Judge: the GPU with more SMs reaches its greatest backward speed-up, within the noise, at a greater length.

    Points: length and speed-up, by length. A speed-up that does not fall again levels out, so the first length within NOISE of it counts.
    """
    claim = PAPER.claim("peak")
    if min(len(large), len(small)) < 2:
        return claim.unjudged("fewer than 2 lengths were predicted on both")
    peaks = [next(x for x, gain in of if gain >= max(y for _, y in of) * (1 - NOISE)) for of in (large, small)]
    greatest = [max(gain for _, gain in of) for of in (large, small)]
    said = f"{greatest[0]:.1f}x from T = {peaks[0]} on the larger, {greatest[1]:.1f}x from T = {peaks[1]} on the smaller"
    return claim.judged(peaks[0] > peaks[1], said, {"larger": peaks[0], "smaller": peaks[1]})


def larger_card_falls_slower(large: Points, small: Points) -> Check:
    """Judge: as the mini-batch grows, the backward speed-up falls less on the larger GPU. Points: mini-batch and speed-up."""
    claim = PAPER.claim("cards")
    if min(len(large), len(small)) < 2:
        return claim.unjudged()
    shares = [max(points)[1] / min(points)[1] for points in (large, small)]
    said = f"of its {span([g for _, g in large])} the larger keeps {shares[0]:.0%} at the largest mini-batch, the smaller {shares[1]:.0%}"
    return claim.judged(shares[0] > shares[1] + EQUAL, said, {"larger": shares[0], "smaller": shares[1]})
