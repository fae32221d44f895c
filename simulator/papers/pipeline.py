"""Pipelined training with stale weights (Zhang and Abdelrahman, 2021) on two GTX 1060: bounds, stale weights and memory.

The paper counts stages of forward and backward: its 4 stages are one pair of pipeline registers, on two GPUs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from simulator.engine.costs.cost import Cost
from simulator.engine.simulation import simulate
from simulator.machine.presets import load_machine
from simulator.machine.scaled import MOST, Scale, scaled
from simulator.model.job import Job
from simulator.model.workloads.networks import chains
from simulator.papers import pipeline_model as model
from simulator.papers import registry
from simulator.papers.pipeline_model import NumberedLayer
from simulator.papers.pipeline_trainings import Trained, accuracy_chart, of_trainings, time_rows, timed
from simulator.papers.predicting import BASELINE, Steps, figure, speedup, status_of, unless_refused
from simulator.papers.registry import Claim, Measurement, line, near
from simulator.plan.task import BACKWARD, FORWARD
from simulator.predict.target import preset_target
from simulator.strategies import registry as strategies
from traces.documents.base import Data
from traces.documents.reproduction import OK, Chart, Check, Panel, Paper
from traces.errors import Refusal

PAPER = registry.get("pipeline")
STRATEGY = "stale-pipeline"
#: A chain of equal layers, and devices enough for one of each accelerator.
CHAIN, CHAIN_MACHINE = f"{chains.__file__}:tanh_8", "k80x16"
MIB = 2**20
#: Samples per minibatch of tables 5, 7 and 9.
BATCH = 128
IMAGE_SIZE = 32
#: Speed-ups of hybrid training: half of the iterations are pipelined; section 6.5: 100 of 200 epochs are.
_half, _hybrid = partial(model.hybrid, 1, 2), partial(model.hybrid, 100, 200)
#: The relative increases of memory that are compared.
INCREASES = {
    "stale weights": model.stale_increase,
    "PipeDream, as charged": model.pipedream_increase,
    "PipeDream, as it runs": model.one_f_one_b_increase,
}


@dataclass(frozen=True)
class Network:
    """A network with a placement: pairs of registers after the layers `placement`, counted from 1. `model`: a built-in model."""

    name: str
    model: str
    placement: tuple[int, ...]

    @property
    def placed(self) -> str:
        """The placement as the paper writes it."""
        return f"({', '.join(map(str, self.placement))})"

    @property
    def title(self) -> str:
        """The name with the placement."""
        return f"{self.name} {self.placed}"


class PipelineScope(Data):
    """The scope of what is computed.

    `pairs`: numbers of register pairs whose bounds are computed. `resnets`: networks of tables 5 and 7. `memory`: networks of table 9.
    `stale`: networks whose percentage of stale weights is computed, in addition to those above; section 6.3 has a pair of registers more
    after every two layers, from (3, 5, 7) on, and section 6.4 the placement of hybrid training. `batches`: samples per minibatch of figure
    8.
    `trained`: what this machine trains.
    """

    pairs: tuple[int, ...]
    resnets: tuple[Network, ...]
    memory: tuple[Network, ...]
    stale: tuple[Network, ...]
    batches: tuple[int, ...]
    trained: tuple[Trained, ...] = ()


SCOPE = PAPER.scope(PipelineScope)


@dataclass(frozen=True)
class Pipelined:
    """The predicted speed-up over one GPU of pipelined training as the paper ran it, and with transfers concurrent with computation.

    `rivals`: those of other strategies with the same stages, by text.
    """

    speedup: float
    beside: float
    status: str = OK
    rivals: Mapping[str, float] = field(default_factory=dict)

    @property
    def waiting(self) -> float | None:
        """The speed-up of stages whose weights are never stale, so that each waits for the others."""
        return self.rivals.get(NAIVE)

    @property
    def gpipe(self) -> float | None:
        """GPipe's greatest speed-up."""
        return max((gain for text, gain in self.rivals.items() if text.startswith("gpipe")), default=None)


#: Strategies with the same stages, as options without the placement.
NAIVE, PIPEDREAM = "model-parallel", "pipedream"
GPIPE = tuple(f"gpipe:microbatches={count}" for count in (2, 4, 8))
#: A network's layers, or why they could not be captured, by built-in model.
Layers = Mapping[str, tuple[NumberedLayer, ...] | Refusal]
#: The layers of networks that could be captured.
Captured = Mapping[Network, tuple[NumberedLayer, ...]]


def predictions() -> int:
    """Return the number of networks that are captured, and of predictions of time and of memory."""
    return len(_models()) + 2 * len(SCOPE.resnets) + len(SCOPE.memory) + sum(len(task.timed) for task in SCOPE.trained)


def reproduce(steps: Steps) -> Paper:
    """Compute the paper's figures. A network that cannot be captured retains its rows with that status."""
    layers = {name: steps.attempt(name, partial(_numbered_layers, name)) for name in _models()}
    pipelined = {network: _pipelined(network, layers[network.model], steps) for network in SCOPE.resnets}
    networks = (*SCOPE.resnets, *SCOPE.memory)
    planned = {network: _planned_increase(network, layers[network.model], steps) for network in networks}
    first_of = {network.model: network for network in reversed(networks)}
    first = [network for network in networks if first_of[network.model] is network]
    tables = (
        PAPER.table("bounds", bounds_rows(SCOPE.pairs)),
        PAPER.table("speedups", speedup_rows(pipelined, partial(_asked, steps))),
        PAPER.table("rivals", rival_rows(pipelined)),
        PAPER.table("engine", engine_rows(devices := engine_speedups(SCOPE.pairs))),
        PAPER.table("stale", _layer_rows(dict.fromkeys((*networks, *SCOPE.stale)), layers, _staleness)),
        PAPER.table("sizes", _layer_rows(first, layers, _sizes, placed=False)),
        PAPER.table("memory", _layer_rows(networks, layers, partial(_increases, planned=planned))),
        PAPER.table("training-steps", _training_steps(steps)),
    )
    resnets, others = (
        {n: own for n in group if not isinstance(own := layers[n.model], Refusal)} for group in (SCOPE.resnets, SCOPE.memory)
    )
    checks = (
        *as_in_table_5(pipelined),
        faster_than_gpipe(pipelined),
        as_fast_as_pipedream(pipelined),
        devices_all_busy(devices),
        modest_peak({network: planned[network] for network in SCOPE.resnets}),
        as_in_table_9(others),
        early_layers_take_most(_first_blocks(steps)),
        bounded(SCOPE.pairs),
        more_with_depth(pipelined),
        hybrid_bounded(pipelined),
        modest_memory(resnets),
        more_by_stashing(others),
        more_by_weights(others),
        less_by_batch(others),
        *of_trainings({}),
    )
    counted = [model.stale_increase(own, network.placement, BATCH) for network, own in resnets.items()]
    finding = map(_span, (counted, [increase for network in resnets if (increase := planned[network]) is not None]))
    return PAPER.paper(steps, tables, checks, [_chart(others)], finding=finding)


def measurements(gpu: bool) -> list[Measurement]:
    """Return LeNet-5 in ten stages on one device, whose numbers are compared with those of the trainings' reference."""
    job = Job("lenet5", 100, IMAGE_SIZE)
    placement = "-".join(map(str, model.cuts(job.graph(), (1, 2, 3, 4))))
    texts = [f"{STRATEGY}:on=simulated,placement={placement}{more}" for more in ("", ",backward_weights=stashed")]
    return [Measurement(job, (BASELINE, *texts), "ten forward and backward stages on one device")]


def judged(paper: Paper) -> Paper:
    """Return the paper with the claims judged that its measured trainings decide, and with their accuracy by predicted seconds."""
    tables = {table.name: table for table in paper.tables if table.name != "time"}
    decided = {check.name: check for check in of_trainings(tables)}
    charts = {chart.name: chart for chart in paper.charts}
    if trainings := timed(tables):
        levels = {task.network: task.level for task in SCOPE.trained}
        tables["time"] = PAPER.table("time", time_rows(trainings, levels))
        charts["accuracy"] = accuracy_chart(trainings)
    checks = tuple(decided.get(check.name, check) for check in paper.checks)
    return paper.model_copy(update={"checks": checks, "tables": tuple(tables.values()), "charts": tuple(charts.values())})


def _span(shares: Sequence[float]) -> str:
    """The least and the largest share: 113 to 116 %."""
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %" if shares else "not predicted"


def _training_steps(steps: Steps) -> Iterator[tuple]:
    """Yield the seconds of an iteration of the trainings that the paper's GPUs could run."""
    for task in SCOPE.trained:
        for training in task.timed:
            job = task.job(0)
            text = f"{strategy_text(job, training.placement)},sends=staged" if training.placement else BASELINE
            predicted = steps.predict(job, [text])
            values = (figure(predicted[text]), speedup(predicted, text))
            yield task.labels(training), values, (), status_of(predicted[text]), (), steps.asks(job, text)


def _models() -> list[str]:
    """Return the models of all networks, each once."""
    return list(dict.fromkeys(network.model for network in (*SCOPE.resnets, *SCOPE.memory, *SCOPE.stale)))


def _job(name: str) -> Job:
    return Job(name, BATCH, IMAGE_SIZE)


def strategy_text(job: Job, placement: Sequence[int]) -> str:
    """The strategy with pairs of registers after these layers, to which more options may be added."""
    return f"{STRATEGY}:placement={'-'.join(map(str, model.cuts(job.graph(), placement)))}"


def _numbered_layers(name: str) -> tuple[NumberedLayer, ...]:
    return model.numbered_layers(_job(name).graph())


def _pipelined(network: Network, layers: tuple[NumberedLayer, ...] | Refusal, steps: Steps) -> Pipelined | Refusal:
    """Predict a network on one GPU, and with stale weights on a GPU for each stage."""
    if isinstance(layers, Refusal):
        steps.report(network.name)
        return layers
    job = _job(network.model)
    direct = strategy_text(job, network.placement)
    staged, placement = f"{direct},sends=staged", direct.partition(":")[2]
    texts = {text: strategies.with_options(text, placement) for text in (NAIVE, PIPEDREAM, *GPIPE)}
    predicted = unless_refused(steps.predict(job, [direct, staged, *texts.values()]))
    if isinstance(predicted, Refusal):
        return predicted
    one_s = predicted[BASELINE].step_s
    rivals = {text: one_s / predicted[full].step_s for text, full in texts.items()}
    return Pipelined(one_s / predicted[staged].step_s, one_s / predicted[direct].step_s, predicted[staged].status, rivals)


def _planned_increase(network: Network, layers: tuple[NumberedLayer, ...] | Refusal, steps: Steps) -> float | None:
    """The increase of the peak of allocated memory, all stages on one device, over that of plain training; None if it is refused."""
    if isinstance(layers, Refusal):
        steps.report(network.name)
        return None
    job = _job(network.model)
    text = f"{strategy_text(job, network.placement)},on=simulated"
    predicted = unless_refused(steps.predict(job, [text]))
    return None if isinstance(predicted, Refusal) else predicted[text].peak_bytes / predicted[BASELINE].peak_bytes - 1


def bounds_rows(pairs: Iterable[int]) -> Iterator[tuple]:
    """Yield section 4.1: the same from the cycles of pipelines of such stages, and the closed forms as published."""
    for count in pairs:
        cycles, stages = model.of_equal_accelerators(count), model.of_equal_stages(count)
        values = (2 * count + 1, cycles, stages, model.of_equal_layers(count, 2.0), _half(cycles), _half(stages))
        printed = (None, 2 * count + 1, count + 1, 1.5 * count + 1, _half(2 * count + 1), _half(count + 1))
        yield {"pairs": count}, values, printed


def _asked(steps: Steps, network: Network) -> dict[str, tuple[str, ...]]:
    job = _job(network.model)
    return steps.asks(job, BASELINE, f"{strategy_text(job, network.placement)},sends=staged")


def speedup_rows(
    predicted: Mapping[Network, Pipelined | Refusal], asked: Callable[[Network], Mapping[str, tuple[str, ...]]] = lambda network: {}
) -> Iterator[tuple]:
    """Yield table 5: pipelined training, and hybrid training from its speed-up. `asked`: what asks for it."""
    for network, own in predicted.items():
        pipelined, hybrid = (PAPER.values(name).get(network.title) for name in ("pipelined", "hybrid"))
        values = (None, None, None) if isinstance(own, Refusal) else (own.speedup, own.beside, _hybrid(own.speedup))
        by_formula = pipelined and _hybrid(pipelined)
        asks = {} if isinstance(own, Refusal) else asked(network)
        yield {"network": network.name}, (*values, by_formula), (pipelined, None, hybrid, hybrid), status_of(own), (), asks


def rival_rows(predicted: Mapping[Network, Pipelined | Refusal]) -> Iterator[tuple]:
    """Yield section 6.7's rivals on the same two GPUs, with the same stages."""
    for network, own in predicted.items():
        values = () if isinstance(own, Refusal) else (own.speedup, own.waiting, own.rivals.get(PIPEDREAM), *map(own.rivals.get, GPIPE))
        yield {"network": network.name}, values, (), status_of(own)


def engine_speedups(pairs: Iterable[int]) -> dict[int, tuple[float, float]]:
    """By K, the speed-ups of 2K + 1 devices with stale weights, and of K + 1 without, as the engine simulates them.

    A chain of equal layers is cut into K + 1 stages; each accelerator has a second's work (half of it forward and half backward on the
    one that has both), hosts and links take no time.
    """
    return {
        count: (_engine_speedup(f"{STRATEGY}:on=unfolded", count, 2 * count + 1), _engine_speedup(NAIVE, count, count + 1))
        for count in pairs
    }


def _engine_speedup(text: str, pairs: int, devices: int) -> float:
    machine = replace(scaled(load_machine(CHAIN_MACHINE, devices=devices), Scale(link=MOST)), hosts=())
    placement = "-".join(map(str, range(1, pairs + 1)))
    strategy, options = strategies.parse(strategies.with_options(text, f"placement={placement}"))
    plan = strategy.plan(Job(CHAIN, 4, optimizer="sgd", form="for"), machine, None, options)
    parts = Counter((task.device, task.phase) for task in plan.tasks if task.phase in (FORWARD, BACKWARD))
    last = [task.device for task in plan.tasks if task.phase == FORWARD][-1]
    seconds = [
        (0.5 if task.device == last else 1.0) / parts[task.device, task.phase] if (task.device, task.phase) in parts else 0.0
        for task in plan.tasks
    ]
    return sum(seconds) / simulate(plan, machine, [Cost("", each, each) for each in seconds]).step_s


def engine_rows(devices: Mapping[int, tuple[float, float]]) -> Iterator[tuple]:
    """Yield the simulated bound of section 4.1."""
    for pairs, gains in devices.items():
        yield {"pairs": pairs, "accelerators": 2 * pairs + 1}, gains, (2 * pairs + 1,)


def _first_blocks(steps: Steps) -> float | None:
    """The share of ResNet-20's forward and backward that its first three residual functions take."""
    job = _job("resnet20")
    target = preset_target(job, steps.machine_name)
    strategy, options = strategies.parse(BASELINE)
    target = target.planning(strategy)
    plan = strategy.plan(job, target.machine, target.costs, options)
    own = [(task, cost.cold_s) for task, cost in zip(plan.tasks, target.running(plan).costs.resolve(plan), strict=True)]
    seconds = {
        first: sum(s for task, s in own if task.phase in (FORWARD, BACKWARD) and task.layer.startswith(first)) for first in ("layer1", "")
    }
    return seconds["layer1"] / seconds[""]


def as_in_table_5(networks: Mapping[Network, Pipelined | Refusal]) -> Iterator[Check]:
    """Judge the speed-ups of table 5, and the greatest of them; without stale weights, one stage works at a time."""
    known = {network: own for network, own in networks.items() if isinstance(own, Pipelined)}
    printed = {network: PAPER.values("pipelined").get(network.title) for network in known}
    named = {network: own for network, own in known.items() if printed[network]}

    def judged(claim: Claim, of: Mapping[Network, Pipelined]) -> Check:
        within = {network.name: (near(theirs),) for network in of if (theirs := printed[network])}
        return claim.beside(*(claim.each({n.name: (gain(own),) for n, own in of.items()}, within) for gain in (_gain, _waiting)))

    yield judged(PAPER.claim("table 5"), named)
    most = max(named, key=lambda network: printed[network] or 0.0, default=None)
    yield judged(PAPER.claim("greatest"), {} if most is None else {most: named[most]})
    hybrid = {network.name: (_hybrid(own.speedup), PAPER.values("hybrid")[network.title]) for network, own in named.items()}
    yield PAPER.claim("hybrid, table 5").each(hybrid, {name: (near(theirs),) for name, (_, theirs) in hybrid.items()})


def _gain(own: Pipelined) -> float:
    return own.speedup


def _waiting(own: Pipelined) -> float | None:
    return own.waiting


def faster_than_gpipe(networks: Mapping[Network, Pipelined | Refusal]) -> Check:
    """Judge: stale weights gain 1.7x where GPipe gains 1.3x."""
    printed, (own, theirs) = PAPER.values("GPipe"), (PAPER.claim("GPipe"), ("stale weights", "GPipe"))
    cases = {n.name: (each.speedup, each.gpipe) for n, each in networks.items() if isinstance(each, Pipelined) and n.name == "ResNet-110"}
    return own.each(cases, dict.fromkeys(cases, tuple(near(printed[name]) for name in theirs)))


def as_fast_as_pipedream(networks: Mapping[Network, Pipelined | Refusal]) -> Check:
    """Judge: PipeDream, whose weights are stashed, gains as much; transfers run beside computation in both. GPipe has bubbles."""
    claim = PAPER.claim("PipeDream")
    known = {network.name: own for network, own in networks.items() if isinstance(own, Pipelined)}
    within = {name: ((None, None), (own.beside, own.beside)) for name, own in known.items()}
    rivals = [{name: rival(own) for name, own in known.items()} for rival in (lambda own: own.rivals.get(PIPEDREAM), lambda own: own.gpipe)]
    return claim.beside(*(claim.each({name: (own.beside, gains[name]) for name, own in known.items()}, within) for gains in rivals))


def devices_all_busy(devices: Mapping[int, tuple[float, float]]) -> Check:
    """Judge: 2K + 1 devices with equal work are 2K + 1 times as fast as one."""
    claim = PAPER.claim("2K + 1 devices")
    within = {f"K = {pairs}": ((2.0 * pairs + 1,) * 2,) for pairs in devices}
    return claim.beside(*(claim.each({f"K = {pairs}": (gains[place],) for pairs, gains in devices.items()}, within) for place in (0, 1)))


def modest_peak(increases: Mapping[Network, float | None]) -> Check:
    """Judge: the peak of what a plan allocates increases by no more than the published percentage."""
    return PAPER.claim("modest peak").each({network.name: (own,) for network, own in increases.items()})


def as_in_table_9(networks: Captured) -> Check:
    """Judge: counted as the paper counts, memory increases as in table 9, by both pipelines."""
    names = list(INCREASES)[:2]
    cases = {
        n.title: [INCREASES[name](own, n.placement, BATCH) for name in names]
        for n, own in networks.items()
        if n.title in PAPER.values("counted")
    }
    within = {title: [(each, each) for each in PAPER.values("counted")[title]] for title in cases}
    return PAPER.claim("table 9").each(cases, within)


def early_layers_take_most(share: float | None) -> Check:
    """Judge: ResNet-20's first three residual functions take more than half of its time."""
    return PAPER.claim("early layers").each({"ResNet-20": (share,)})


def _layer_rows(networks: Iterable[Network], layers: Layers, figures: Callable, placed: bool = True) -> Iterator[tuple]:
    """Yield a row for each network. `figures`: by network and layers (None if not captured), the computed and the published ones."""
    for network in networks:
        own = layers[network.model]
        captured, status = (None, status_of(own)) if isinstance(own, Refusal) else (own, OK)
        yield {"network": network.name, **({"placement": network.placed} if placed else {})}, *figures(network, captured), status


def _staleness(network: Network, own: tuple[NumberedLayer, ...] | None) -> tuple[Sequence, Sequence]:
    """Sections 4.1 and 6.3: how many weights are stale, and by how many cycles at most."""
    degree = 2 * len(network.placement)
    return (degree + 2, degree, own and model.stale_weights(own, network.placement)), ()


def _sizes(network: Network, own: tuple[NumberedLayer, ...] | None) -> tuple[Sequence, Sequence]:
    """Table 9: what the increases of memory are computed from."""
    weights, activations = (own and sum(getattr(each, name) for each in own) for name in ("weights_bytes", "activations_bytes"))
    return (weights, activations and 2 * activations), [mib * MIB for mib in PAPER.values("sizes, MiB").get(network.title, ())]


def _increases(
    network: Network, own: tuple[NumberedLayer, ...] | None, planned: Mapping[Network, float | None] = MappingProxyType({})
) -> tuple[Sequence, Sequence]:
    """Tables 7 and 9: memory beyond plain training, with both accountings of PipeDream's copies of the weights, and the plan's."""
    increases = [own and increase(own, network.placement, BATCH) for increase in INCREASES.values()]
    return [*increases, planned.get(network)], PAPER.values("memory").get(network.title, ())


def more_with_depth(networks: Mapping[Network, Pipelined | Refusal]) -> Check:
    """Judge: deeper networks gain more."""
    known = [step for step in networks.values() if isinstance(step, Pipelined)]
    claim, gains = PAPER.claim("gain by depth"), ([step.speedup for step in known], [step.beside for step in known])
    return claim.beside(*(claim.trend(list(enumerate(own))) for own in gains))


def bounded(pairs: Iterable[int]) -> Check:
    """Judge: pipelines of K pairs reach 2K + 1, K + 1 and 1.5K + 1."""
    cases = {f"K = {k}": (model.of_equal_accelerators(k), model.of_equal_stages(k), model.of_equal_layers(k, 2.0)) for k in pairs}
    limits = [(2 * k + 1, k + 1, 1.5 * k + 1) for k in pairs]
    return PAPER.claim("bounds").each(cases, {case: [(each, each) for each in own] for case, own in zip(cases, limits, strict=True)})


def hybrid_bounded(networks: Mapping[Network, Pipelined | Refusal]) -> Check:
    """Judge: half a training that is pipelined on two GPUs gains, and by less than a third."""
    known = {network.name: (_hybrid(step.speedup),) for network, step in networks.items() if isinstance(step, Pipelined)}
    return PAPER.claim("hybrid speed-up").each(known)


def more_by_weights(networks: Captured) -> Check:
    """Judge: what PipeDream is charged beyond stale weights grows with the weights relative to the activations."""
    points = []
    for network, own in networks.items():
        ratio = sum(layer.weights_bytes for layer in own) / sum(layer.activations_bytes for layer in own)
        points.append((ratio, _charged(network, own, BATCH)))
    return PAPER.claim("stashing by weights").trend(points)


def less_by_batch(networks: Captured) -> Check:
    """Judge: it falls with the batch; of the network for which it is the largest."""
    most = max(networks, key=lambda network: _charged(network, networks[network], BATCH), default=None)
    points = [(batch, _charged(most, networks[most], batch)) for batch in SCOPE.batches] if most else []
    return PAPER.claim("stashing by batch").trend(points)


def _charged(network: Network, own: tuple[NumberedLayer, ...], batch: int) -> float:
    """What PipeDream is charged beyond stale weights, as a share of plain training's memory."""
    return model.pipedream_increase(own, network.placement, batch) - model.stale_increase(own, network.placement, batch)


def modest_memory(networks: Captured) -> Check:
    """Judge: the memory of the deep ResNets increases by no more than the published percentage. The paper prints whole percents."""
    return PAPER.claim("modest memory").each({n.name: (model.stale_increase(own, n.placement, BATCH),) for n, own in networks.items()})


def more_by_stashing(networks: Captured) -> Check:
    """Judge: PipeDream needs more memory than the paper's pipeline, with its weights as it stores them rather than as the paper charges."""
    cases = {n.title: [increase(own, n.placement, BATCH) for increase in INCREASES.values()] for n, own in networks.items()}
    return PAPER.claim("weight stashing").each(cases)


def _chart(networks: Captured) -> Chart:
    """Figure 8: the increase of memory over the batch, with the figures of table 9."""
    panels = []
    for network, own in networks.items():
        series = [
            line(name, ((batch, 100 * increase(own, network.placement, batch)) for batch in SCOPE.batches))
            for name, increase in INCREASES.items()
        ]
        printed = zip(INCREASES, PAPER.values("memory").get(network.title, ()), strict=False)
        series += [line(f"{name}, published", [(BATCH, 100 * value)], published=True) for name, value in printed]
        panels.append(Panel(title=network.title, series=tuple(series)))
    return PAPER.chart("memory", panels)
