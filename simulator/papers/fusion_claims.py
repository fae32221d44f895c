"""What the optimizer-fusion paper claims of single steps, judged from predicted steps; and the depth of its schedules.

Each claim is judged with the mechanism that the paper credits, and without: locality is off on a card without a cache, and parallelism on
one stream. Figures with a host that never waits, or takes no time, say where a gain comes from instead.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.engine.costs.cost import Cost
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.model.workloads.networks import chains
from simulator.papers import registry
from simulator.papers.predicting import StepsByStrategy, figure, ratio
from simulator.papers.registry import Bounds, near
from simulator.strategies import registry as strategies
from traces.documents.reproduction import Check
from traces.errors import Refusal

PAPER = registry.get("fusion")
claim = PAPER.claim
published = PAPER.values
#: Strategies whose depth is compared: updates in a phase of their own, and on one stream and two.
DEPTHS = {
    "baseline": "baseline",
    "FF": "forward-fusion",
    "BF one stream": "backward-fusion",
    "BF own stream": "backward-fusion:update_stream=on",
}
#: Numbers of layers whose depth is computed.
LAYERS = (4, 8, 16)
_SHORT = ("FF", "BF one stream", "BF own stream")


@dataclass(frozen=True)
class Gains:
    """Speed-ups of one job by the short name of the schedule (FF, BF one stream, BF own stream); None if it could not be predicted.

    `usual`: as the paper ran it. `uncached`: on a card without a cache. `unwaiting`: the host never waits. `free`: it takes no time.
    """

    usual: Mapping[str, float | None]
    uncached: Mapping[str, float | None]
    unwaiting: Mapping[str, float | None]
    free: Mapping[str, float | None]

    def without(self, name: str) -> float | None:
        """The gain without the mechanisms that the paper credits: no locality, and one stream."""
        return self.uncached["BF one stream" if name.startswith("BF") else name]

    def origins(self, name: str) -> str:
        """The gain without what else may cause it."""
        pairs = {"without the host's waits": self.unwaiting[name], "with a host that takes no time": self.free[name]}
        return "; ".join(f"{what} {gain:.3f}x" for what, gain in pairs.items() if gain is not None)


def of_table_2(gains: Gains) -> Iterator[Check]:
    """Judge figure 3's and table 2's gains, of both readings of backward-fusion."""
    for name in _SHORT:
        kind = "BF" if name.startswith("BF") else name
        for source in ("figure 3", "table 2"):
            printed = published("gains")[f"{kind}, {source}"]
            own, plain = claim(f"{kind}, {source}"), "BF one stream" if kind == "BF" else name
            within = {name: (near(printed),), plain: (near(printed),)}
            usual, off = own.each({name: (gains.usual[name],)}, within), own.each({plain: (gains.without(name),)}, within)
            check = own.beside(usual, off, more=[gains.origins(name)])
            yield _read_as(name, check)


def _read_as(name: str, check: Check) -> Check:
    """The check for one reading of backward-fusion."""
    reading = name.removeprefix("BF ")
    return check.model_copy(update={"name": f"{check.name}, {reading}", "claim": f"{check.claim} ({name})"}) if reading != name else check


def faster_backward(gains: Gains) -> Iterator[Check]:
    """Judge: backward-fusion is faster than forward-fusion, by more than what counts as equal."""
    own = claim("BF over FF")
    for name in _SHORT[1:]:
        check = own.each({name: (gains.usual["FF"], gains.usual[name])})
        off = own.each({"BF one stream": (gains.uncached["FF"], gains.without(name))})
        yield _read_as(name, own.beside(check, off))


def little_longer_backward(
    phases: Mapping[str, tuple[float | None, float | None]], off: tuple[float | None, float | None]
) -> Iterator[Check]:
    """Judge: fused updates lengthen backward by much less than they took alone. `phases`: by reading, both in seconds; `off`: without."""
    own = claim("longer backward")

    def shares(pair: tuple[float | None, float | None]) -> tuple[float | None, ...]:
        added, alone = pair
        return ratio(added, alone), added and 1e3 * added, alone and 1e3 * alone

    for name, pair in phases.items():
        yield _read_as(name, own.beside(own.each({name: shares(pair)}), own.each({"BF one stream": shares(off)})))


def greatest(gains: Sequence[float], off: Sequence[float]) -> Check:
    """Judge the greatest gain of all figures. `off`: those without the mechanisms."""
    own, within = claim("greatest"), {"at most": (near(published("gains")["greatest"]),)}
    return own.beside(*(own.each({"at most": (max(each, default=None),)}, within) for each in (gains, off)))


def by_model(gains: Mapping[str, float], off: Mapping[str, float], name: str) -> Check:
    """Judge: MobileNetV2 gains most, and VGG-19 least. `gains`: by model, of the schedule called `name`."""
    own = claim("models")
    return _read_as(name, own.beside(*(own.each(_most_and_least(each)) for each in (gains, off))))


def _most_and_least(gains: Mapping[str, float]) -> dict[str, tuple[float, ...]]:
    most, least = (gains.get(name) for name in ("mobilenet_v2", "vgg19_bn"))
    others = [gain for name, gain in gains.items() if name not in ("mobilenet_v2", "vgg19_bn")]
    return {"vgg19_bn, others, mobilenet_v2": (least, min(others), max(others), most)} if most and least and others else {}


def of_transformer(by_length: Mapping[int, Gains]) -> Check:
    """Judge section C.4's gains, whatever the length of the sentences."""
    own, printed = claim("Transformer"), published("transformer")
    within = {name: near(printed[kind]) for name, kind in (("FF", "forward-fusion"), ("BF one stream", "backward-fusion"))}

    def judged(which: str) -> Check:
        cases = {f"{length} tokens": tuple(getattr(gains, which)[name] for name in within) for length, gains in by_length.items()}
        return own.each(cases, dict.fromkeys(cases, tuple(within.values())))

    return own.beside(judged("usual"), judged("uncached"))


def locality_gains(free: Mapping[str, Gains], bounds: Mapping[str, tuple[int, float]]) -> Check:
    """Judge: the cache alone makes fused schedules faster.

    `free`: by card, gains with a host that takes no time. `bounds`: by card, the size of the cache, and the share of a step that would be
    saved if updates found all that they read in it.
    """
    own = claim("locality")
    words = "; ".join(f"{card} ({size / 2**20:g} MB) {share:.2%}" for card, (size, share) in bounds.items())
    first = next(iter(free), "")
    cases = {first: (free[first].free["FF"], free[first].free["BF one stream"])} if first else {}
    return own.because(words).each(cases)


def parallelism_gains(gains: Gains) -> Check:
    """Judge: updates beside backward make backward-fusion faster; the host takes no time."""
    own = claim("parallelism")
    return own.beside(*(own.each({name: (gains.free[name],)}) for name in ("BF own stream", "BF one stream")))


def on_cards(cards: Mapping[str, Gains]) -> Check:
    """Judge: both schedules gain on every card."""
    own = claim("cards")

    def judged(which: str) -> Check:
        return own.each({card: (getattr(each, which)["FF"], getattr(each, which)["BF one stream"]) for card, each in cards.items()})

    return own.beside(judged("usual"), judged("uncached"), more=[f"without the host's waits: {judged('unwaiting').said}"])


def with_replicas(one: StepsByStrategy, several: StepsByStrategy, bucketed: StepsByStrategy, texts: Mapping[str, tuple[str, str]]) -> Check:
    """Judge: data-parallel training gains as much as one GPU. `texts`: by name, the strategies on one GPU and on several.

    `bucketed`: backward-fusion with the buckets of DDP, over data-parallel training with them.
    """
    own = claim("DDP")

    def gain(steps: StepsByStrategy, text: str) -> float | None:
        return ratio(figure(next(iter(steps.values()))), figure(steps[text]))

    alone = {name: gain(one, on_one) for name, (on_one, _) in texts.items()}
    cases = {name: (alone[name], gain(several, on_several)) for name, (_, on_several) in texts.items()}
    within = {name: ((None, None), near(gain)) for name, gain in alone.items() if gain}
    check = own.each(cases, within)
    in_buckets = gain(bucketed, list(bucketed)[-1])
    if in_buckets is None:
        return check
    words = f"{check.said}; with DDP's buckets of 25 MB, one of which holds all of its gradients, BF gains {in_buckets:.3f}x"
    return check.model_copy(update={"said": words})


def of_global_information(clipped: StepsByStrategy) -> Check:
    """Judge table 1: with a norm over all gradients, forward-fusion works and backward-fusion cannot."""
    own = claim("global information")
    refused = {name: isinstance(step, Refusal) for name, step in clipped.items()}
    said = "; ".join(f"{name} {'is refused' if no else 'is planned'}" for name, no in refused.items())
    holds = [name for name, no in refused.items() if no] == ["backward-fusion"]
    return own.judged(holds, said, {name: float(not no) for name, no in refused.items()})


def depth(strategy: str, layers: int, machine: Machine) -> float:
    """Simulate an iteration of a chain of layers in which each layer's forward, backward and update take 1 s, on a GPU that holds them all.

    >>> alone = replace(load_machine("titan-xp"), hosts=())
    >>> round(depth("backward-fusion:update_stream=on", 4, alone)), round(depth("backward-fusion", 4, alone))
    (9, 12)
    """
    job = Job(f"{chains.__file__}:tanh_{layers}", 4, optimizer="sgd", form="for")
    chosen, options = strategies.parse(strategy)
    plan = chosen.plan(job, machine, None, options)
    own = {name.rpartition(".")[0] for name in job.graph().parameters}
    parts = Counter((task.layer, task.phase) for task in plan.tasks)
    seconds = [1 / parts[task.layer, task.phase] if task.layer in own else 0.0 for task in plan.tasks]
    return simulate(plan, machine, [Cost("", each, each) for each in seconds], iterations=1).step_s


def depths(machine_name: str) -> dict[str, dict[int, float]]:
    """By the name of the schedule and the number of layers."""
    machine = replace(load_machine(machine_name), hosts=())
    return {name: {layers: depth(text, layers, machine) for layers in LAYERS} for name, text in DEPTHS.items()}


def shallower(by_schedule: Mapping[str, Mapping[int, float]]) -> Check:
    """Judge: the depth is 3n, and 2n + 1 with backward-fusion."""
    own = claim("depth")

    def judged(name: str) -> Check:
        cases = {f"n = {n}": (by_schedule["baseline"][n], by_schedule["FF"][n], by_schedule[name][n]) for n in by_schedule["baseline"]}
        within: dict[str, Sequence[Bounds]] = {f"n = {n}": ((3 * n,) * 2, (3 * n,) * 2, (2 * n + 1,) * 2) for n in by_schedule["baseline"]}
        return own.each(cases, within)

    return own.beside(judged("BF own stream"), judged("BF one stream"))
