"""TurboDL (Jin et al., 2020): streams within a layer, asynchronous layers, and priorities by critical path, on a P100.

The paper's denominator is Caffe with cuDNN, which is not one stream: it runs the parts of a layer's backward on separate streams, with
a barrier between layers. Both sides are issued by Caffe's C++.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Any

from simulator.machine.presets import CAFFE, PYTORCH
from simulator.model.job import Job
from simulator.papers import registry
from simulator.papers.predicting import BASELINE, Steps, StepsByStrategy, figure, ratio, speedup, status_of
from simulator.papers.registry import EQUAL, Bounds, Claim, Measurement, gain_words, line, near, span
from simulator.plan.ops import row
from simulator.plan.task import FORWARD
from simulator.strategies import registry as strategies
from traces.documents.base import Data
from traces.documents.reproduction import OK, Chart, Check, Panel, Paper
from traces.errors import Refusal

PAPER = registry.get("turbodl")
_BARRIER, _ASYNC, _ALL = strategies.get("turbodl").steps
#: The paper's configurations as strategies; each adds one method to the previous one. Callbacks of streams start the updates (section 3.1).
CUDNN, ASYNC, TURBODL = f"{_BARRIER},layers=caffe", f"{_ASYNC},update=callback", f"{_ALL},update=callback"
CALLED = {BASELINE: "one stream", CUDNN: "Caffe+cuDNN", ASYNC: "+ asynchronous", TURBODL: "+ priorities"}
TEXTS = tuple(CALLED)

#: Data-parallel training with one stream in each replica, and with TurboDL in each.
REPLICAS = tuple(f"data-parallel:{streams}bucket=0,priorities=on" for streams in ("", "streams=turbodl,"))

#: Model and batch.
Case = tuple[str, int]
#: Predicted steps by case and strategy text.
Cases = Mapping[Case, StepsByStrategy]


class TurbodlScope(Data):
    """The scope of the predictions.

    `networks`: figure 7; AlexNet and CaffeNet are those with grouped convolutions. `by_batch`: batches of figure 8 by model, from small to
    large. `depths`: models from shallow to deep, figure 9; `one_batch`: a batch for all of them. `other_machine`: the smaller card of
    figure 10, for the same networks. `flops`: the model of figure 1. `places`: an occupancy that section 2.1 reports of most kernels.
    `cluster` and `replicas`: a machine of several cards, and what data-parallel replicas train there (section 3.3).
    """

    networks: tuple[Case, ...]
    by_batch: dict[str, tuple[int, ...]]
    depths: tuple[Case, ...]
    one_batch: int
    other_machine: str
    flops: str
    places: float
    cluster: str
    replicas: tuple[Case, ...]


SCOPE = PAPER.scope(TurbodlScope)
#: The model whose gains are printed by batch.
_BATCHED = next(iter(PAPER.values("batches")))


def predictions() -> int:
    """Return the number of jobs that `reproduce` predicts."""
    by_batch = {(model, batch) for model, batches in SCOPE.by_batch.items() for batch in batches}
    return 7 * len(SCOPE.networks) + len(SCOPE.replicas) + len(by_batch) + 2 * len({*SCOPE.networks, *by_batch}) + 2 * len(SCOPE.depths)


def job(model: str, batch: int) -> Job:
    """Return a job as Caffe trains it: stochastic gradient descent with momentum, with separate kernels for each parameter."""
    return Job(model, batch, form="for")


def reproduce(steps: Steps) -> Paper:
    """Predict the paper's figures. A step that cannot be predicted retains its row with that status."""
    steps = steps.under(host=CAFFE)
    other = steps.on(SCOPE.other_machine)
    networks = {case: steps.predict(job(*case), TEXTS) for case in SCOPE.networks}
    by_batch = {(m, batch): steps.predict(job(m, batch), TEXTS) for m, batches in SCOPE.by_batch.items() for batch in batches}
    depths = {case: steps.predict(job(*case), TEXTS) for case in SCOPE.depths}
    one_batch = {case: steps.predict(job(case[0], SCOPE.one_batch), TEXTS) for case in SCOPE.depths}
    others = {case: other.predict(job(*case), TEXTS) for case in SCOPE.networks}
    machines = {steps.machine_name: networks, other.machine_name: others}
    filled, filled_other = steps.under(filled=True), other.under(filled=True)
    if_filled = {case: filled.predict(job(*case), TEXTS) for case in dict.fromkeys((*SCOPE.networks, *by_batch))}
    others_if_filled = {case: filled_other.predict(job(*case), TEXTS) for case in SCOPE.networks}
    places, other_places = steps.under(places=SCOPE.places), other.under(places=SCOPE.places)
    small = {case: places.predict(job(*case), TEXTS) for case in dict.fromkeys((*SCOPE.networks, *by_batch))}
    others_small = {case: other_places.predict(job(*case), TEXTS) for case in SCOPE.networks}
    python, coarse = (
        {case: changed.predict(job(*case), TEXTS) for case in SCOPE.networks}
        for changed in (steps.under(host=PYTORCH), steps.under(coarse=True))
    )
    single = {case: steps.predict(job(case[0], 1), ()) for case in SCOPE.networks}
    cluster = steps.on(SCOPE.cluster)
    replicas = {case: cluster.predict(job(*case), REPLICAS) for case in SCOPE.replicas}
    tables = (
        PAPER.table("networks", _configurations(steps, networks, _speed)),
        PAPER.table("streams", _configurations(steps, networks, _concurrency)),
        PAPER.table("causes", _causes(networks, small, python)),
        PAPER.table("coarse", _coarse(networks, coarse)),
        PAPER.table("plain Caffe", _by_image(networks, single)),
        PAPER.table("batch", _gains(steps, by_batch, _by_batch(by_batch), if_filled)),
        PAPER.table("depth", _gains(steps, depths, _published(depths, "depths"), one_batch), batch=SCOPE.one_batch),
        PAPER.table("machines", _on_both(machines, (if_filled, others_if_filled)), machine=steps.machine_name, other=other.machine_name),
        PAPER.table("replicas", _replicas(replicas), cluster=SCOPE.cluster),
        PAPER.table("flops", _flops(), model=SCOPE.flops),
    )
    checks = (
        *_by_network(networks, small, if_filled),
        _on_average(networks, small, if_filled),
        _residual_paths(networks),
        _asynchronous(networks),
        _streams(networks),
        _over_plain_caffe(networks, single),
        _published_depths(depths),
        _published_batches(by_batch),
        _methods(networks, small),
        _profile(networks),
        _batch(by_batch, if_filled, small),
        _depth(depths, one_batch),
        _card(networks, others, (if_filled, others_if_filled), (small, others_small)),
        PAPER.claim("flops").each({SCOPE.flops: (max(counts := _multiplications().values()) / min(counts),)}),
        _convergence(()),
    )
    by_host = {case[0]: (hosted, issued) for case, own in networks.items() if (issued := gain(own)) and (hosted := gain(python[case]))}
    differ = {name: both for name, both in by_host.items() if abs(both[0] - both[1]) > EQUAL}
    finding = ["; ".join(f"{name} {hosted:.3f}x in place of {issued:.3f}x" for name, (hosted, issued) in differ.items()) or "none"]
    finding.append(span([hosted for name, (hosted, _) in by_host.items() if name not in differ] or [1.0]))
    return PAPER.paper(steps, tables, checks, _charts(by_batch, depths, networks), finding=finding)


def judged(paper: Paper) -> Paper:
    """Return the paper with the claim judged that a validation on this machine decides."""
    checks = (_convergence(paper.measured) if check.name == "convergence" else check for check in paper.checks)
    return paper.model_copy(update={"checks": tuple(checks)})


def gain(steps: StepsByStrategy) -> float | None:
    """Return the speed-up of TurboDL over Caffe+cuDNN; None if either could not be predicted."""
    return speedup(steps, TURBODL, CUDNN)


def _unprioritized(steps: StepsByStrategy) -> float | None:
    """Return the speed-up of asynchronous layers without priorities over Caffe+cuDNN."""
    return speedup(steps, ASYNC, CUDNN)


def _beside(claim: Claim, cases: Mapping[str, StepsByStrategy], within: Mapping[str, Sequence[Bounds]] | None = None) -> Check:
    """Judge the gains of cases, with priorities and without."""
    return claim.beside(*(claim.each({name: (of(own),) for name, own in cases.items()}, within) for of in (gain, _unprioritized)))


def _by_network(networks: Cases, small: Cases, filled: Cases) -> Iterator[Check]:
    """Judge figure 7, network by network. `small`, `filled`: if kernels leave three quarters of the card to others, or nothing."""
    for case, own in networks.items():
        if case[0] in PAPER.values("headlines"):
            limit = ratio(figure(own[CUDNN]), figure(own[TURBODL], "least_s"))
            claim = PAPER.claim(case[0]).because(*map(gain_words, (limit, gain(small[case]), gain(filled[case]))))
            yield _beside(claim, {case[0]: own}, {case[0]: (near(PAPER.values("networks")[case[0]]),)})


def _on_average(networks: Cases, small: Cases, filled: Cases) -> Check:
    """Judge the mean of figure 7."""
    printed = PAPER.values("headlines")
    cases = [case for case in networks if case[0] in printed]

    def mean(of: Cases, gain_of: Callable[[StepsByStrategy], float | None] = gain) -> float | None:
        gains = [value for case in cases if (value := gain_of(of[case])) is not None]
        return fmean(gains) if gains else None

    own = PAPER.claim("average").because(*(gain_words(mean(of)) for of in (small, filled)))
    within = {"mean": (near(fmean(printed.values())),)}
    return own.beside(*(own.each({"mean": (mean(networks, of),)}, within) for of in (gain, _unprioritized)))


def _residual_paths(networks: Cases) -> Check:
    """Judge: ResNet-50 gains more than VGG-16."""
    own, models = PAPER.claim("residual paths"), dict.fromkeys(("vgg16", "resnet50"))
    steps = {case[0]: each for case, each in networks.items() if case[0] in models}

    def judged(of: Callable[[StepsByStrategy], float | None]) -> Check:
        return own.each({"gains": tuple(of(steps[model]) for model in models)} if len(steps) == 2 else {})

    return own.beside(judged(gain), judged(_unprioritized))


def _asynchronous(networks: Cases) -> Check:
    """Judge figure 11b: asynchronous layers alone; without them, there is the barrier."""
    printed = PAPER.values("asynchronous")
    cases = {case[0]: (_unprioritized(own),) for case, own in networks.items() if case[0] in printed}
    return PAPER.claim("asynchronous").each(cases, {name: (near(printed[name]),) for name in cases})


def _streams(networks: Cases) -> Check:
    """Judge section 4.3's numbers of streams."""
    own = {case[0]: {text: _concurrency(case[0], text, steps)[0][0] for text in (CUDNN, TURBODL)} for case, steps in networks.items()}
    cases = {name: tuple(counts.values()) for name, counts in own.items() if name in PAPER.values("streams")}
    return PAPER.claim("streams").each(cases)


def _over_plain_caffe(networks: Cases, single: Cases) -> Check:
    """Judge the mean over Caffe without cuDNN."""
    means = {labels["network"]: values[1:] for labels, values, *_ in _by_image(networks, single)}
    within = {"mean": (near(PAPER.values("plain Caffe")["average"]),)}
    return PAPER.claim("plain Caffe").each({name: values for name, values in means.items() if name == "mean"}, within)


def _published_depths(depths: Cases) -> Check:
    """Judge the gains of figure 9."""
    within = {name: (near(printed),) for name, printed in PAPER.values("depths").items()}
    return _beside(PAPER.claim("depths"), {case[0]: own for case, own in depths.items()}, within)


def _published_batches(by_batch: Cases) -> Check:
    """Judge VGG-16's gains by batch."""
    printed = _by_batch(by_batch)
    within = {f"{model} at {batch}": (near(theirs),) for (model, batch), theirs in printed.items()}
    return _beside(PAPER.claim("batches"), {f"{model} at {batch}": by_batch[model, batch] for model, batch in printed}, within)


def _convergence(measured: Iterable[Mapping[str, Any]]) -> Check:
    """Judge table 1 by validations on this machine: TurboDL's gradients are those of plain PyTorch."""
    results = [result for document in measured for result in document["results"] if result["strategy"].startswith("turbodl")]
    errors = [error for result in results if (error := result["max_grad_error"]) is not None]
    return PAPER.claim("convergence").each({"in one step": (max(errors),)} if errors else {})


def _published(cases: Cases, name: str) -> dict[Case, float]:
    """Return the published gains of cases, which are printed by model."""
    values = PAPER.values(name)
    return {case: values[case[0]] for case in cases if case[0] in values}


def _by_batch(cases: Cases) -> dict[Case, float]:
    """Return the published gains of cases, which are printed by model and batch."""
    values = PAPER.values("batches")
    return {(model, batch): values[model][str(batch)] for model, batch in cases if str(batch) in values.get(model, {})}


def _configurations(steps: Steps, networks: Cases, figures: Callable) -> Iterator[tuple]:
    """Yield one row per configuration; only the last one for a network of which nothing could be predicted."""
    for (model, batch), own in networks.items():
        absent = all(isinstance(step, Refusal) for step in own.values())
        for text in (TURBODL,) if absent else CALLED:
            labels = {"network": model, "batch": batch, "configuration": CALLED[text]}
            yield labels, *figures(model, text, own), status_of(own[text]), (), {} if absent else steps.asks(job(model, batch), text)


def _speed(model: str, text: str, steps: StepsByStrategy) -> tuple[tuple, tuple]:
    """Return figures 7 and 11: predicted and published."""
    printed = {CUDNN: 1.0, ASYNC: PAPER.values("asynchronous").get(model), TURBODL: PAPER.values("networks").get(model)}
    return (figure(steps[text]), speedup(steps, text), speedup(steps, text, CUDNN)), (None, None, printed.get(text))


def _concurrency(model: str, text: str, steps: StepsByStrategy) -> tuple[tuple, tuple]:
    """Return section 4.3, and how much of a step two kernels or more run at once."""
    step, printed = steps[text], PAPER.values("streams").get(model, {})
    streams, overlapped_s = figure(step, "streams"), figure(step, "overlapped_s")
    if text == CUDNN and streams:
        streams -= 1  # Caffe does not create the default stream
    return (streams, overlapped_s, ratio(overlapped_s, figure(step))), (printed.get(CALLED[text]),)


def _gains(steps: Steps, cases: Cases, published: Mapping[Case, float], beside: Cases | None = None) -> Iterator[tuple]:
    """Yield TurboDL over Caffe+cuDNN, case by case. `beside`: other predictions of the cases, whose gains come last."""
    for case, own in cases.items():
        step, more = own[TURBODL], () if beside is None else (gain(beside[case]),)
        labels, values = {"network": case[0], "batch": case[1]}, (figure(own[CUDNN]), figure(step), gain(own), *more)
        asked = steps.asks(job(*case), CUDNN, TURBODL) if figure(step) else {}
        yield labels, values, (None, None, published.get(case)), status_of(step), (None, figure(step, "interval_s")), asked


def _causes(networks: Cases, small: Cases, python: Cases) -> Iterator[tuple]:
    """Yield what limits the gain of each network, and the gain if one mechanism is changed."""
    for case, steps in networks.items():
        least_s = figure(steps[TURBODL], "least_s")
        values = (least_s, ratio(figure(steps[CUDNN]), least_s), gain(steps), gain(small[case]), gain(python[case]))
        yield {"network": case[0], "batch": case[1]}, values, (None, None, _published(networks, "networks").get(case))


def _coarse(networks: Cases, coarse: Cases) -> Iterator[tuple]:
    """Yield what priorities add to asynchronous layers, with the resident blocks of an SM and with coarse ones."""
    for case, steps in networks.items():
        values = [speedup(each, TURBODL, ASYNC) for each in (steps, coarse[case])]
        yield {"network": case[0], "batch": case[1]}, values


def _by_image(networks: Cases, single: Cases) -> Iterator[tuple]:
    """Yield what one stream takes that computes convolutions image by image, and TurboDL's speed-up over it; last two means."""
    gains = []
    for (model, batch), steps in networks.items():
        own, one = steps[BASELINE], single[model, batch][BASELINE]
        by_image_s = None
        if not isinstance(own, Refusal) and not isinstance(one, Refusal):
            by_image_s = own.step_s - own.convolutions_s + batch * one.convolutions_s
        gain = ratio(by_image_s, figure(steps[TURBODL]))
        gains += [gain] if gain else []
        yield {"network": model, "batch": batch}, (by_image_s, gain), (), status_of(own)
    if gains:
        yield {"network": "mean", "batch": ""}, (None, fmean(gains)), (None, PAPER.values("plain Caffe")["average"])
        yield {"network": "geometric mean", "batch": ""}, (None, geometric_mean(gains))


def _replicas(replicas: Cases) -> Iterator[tuple]:
    """Yield section 3.3: data-parallel replicas with one stream, and with TurboDL."""
    for (model, batch), steps in replicas.items():
        values = (*(figure(steps[text]) for text in REPLICAS), speedup(steps, REPLICAS[1], REPLICAS[0]))
        yield {"network": model, "batch": batch}, values, (), status_of(steps[REPLICAS[1]])


def _multiplications() -> dict[str, float]:
    """Return the multiplications for one image in the forward pass of each convolution and linear layer of figure 1's model."""
    forward = [op for op in job(SCOPE.flops, 1).graph().ops if op.phase == FORWARD]
    return {op.layer: op.body.flops / 2 for op in forward if op.body.has_products or row(op.body.op).weight is not None}


def _flops() -> Iterator[tuple]:
    """Yield figure 1: the layers' work, and the two convolutions whose numbers are printed."""
    for number, (layer, count) in enumerate(_multiplications().items()):
        yield {"layer": layer}, (count,), (PAPER.values("flops").get(str(number)),)


def _on_both(machines: Mapping[str, Cases], filled: Sequence[Cases]) -> Iterator[tuple]:
    """Yield figure 10: a network on the card, and on a smaller one. `filled`: both under `Conditions.filled`, whose gains come last."""
    for case in SCOPE.networks:
        both = {name: cases[case] for name, cases in machines.items()}
        failures = {name: status for name, steps in both.items() if (status := status_of(steps[TURBODL])) != OK}
        same = len(failures) == 2 and len(set(failures.values())) == 1
        status = next(iter(failures.values())) if same else "; ".join(f"{name} {why}" for name, why in failures.items()) or OK
        values = [value for steps in both.values() for value in (figure(steps[TURBODL]), gain(steps))]
        values += [gain(cases[case]) for cases in filled]
        yield {"network": case[0], "batch": case[1]}, values, (), status


def _profile(networks: Cases) -> Check:
    """Judge the part of a step in which kernels overlap, in Caffe+cuDNN and in TurboDL, with priorities and without."""
    claim = PAPER.claim("profile")

    def shares(text: str) -> dict[str, tuple[float | None, ...]]:
        return {
            case[0]: tuple(ratio(figure(step[each], "overlapped_s"), figure(step[each])) for each in (CUDNN, text))
            for case, step in networks.items()
            if case[0] in PAPER.values("streams")
        }

    return claim.beside(claim.each(shares(TURBODL)), claim.each(shares(ASYNC)))


def _ends(by_batch: Cases) -> dict[str, tuple[float | None, float | None]]:
    """Return the gains at the smallest and at the largest batch, by model; without models whose largest does not fit the card."""
    ends = {model: (by_batch[model, batches[0]], by_batch[model, batches[-1]]) for model, batches in SCOPE.by_batch.items()}
    return {model: (gain(small), gain(large)) for model, (small, large) in ends.items() if status_of(large[TURBODL]) == OK}


def _methods(networks: Cases, small: Cases) -> Check:
    limits = "; ".join(
        f"{case[0]} {limit:.3f}x and {if_small:.3f}x"
        for case, steps in networks.items()
        if None not in (limit := ratio(figure(steps[CUDNN]), figure(steps[TURBODL], "least_s")), if_small := gain(small[case]))
    )
    claim = PAPER.claim("methods").because(limits)

    def gains(cases: Cases) -> dict[str, tuple[float | None, float | None]]:
        return {case[0]: (_unprioritized(cases[case]), gain(cases[case])) for case in networks}

    return claim.each(gains(networks))


def _batch(by_batch: Cases, filled: Cases, small: Cases) -> Check:
    """Judge that gains fall with the batch. `small`: kernels leave three quarters of the card to others at any batch."""
    claim = PAPER.claim("batch")
    if_filled = claim.each(_ends({case: filled[case] for case in by_batch}))
    claim = claim.because(if_filled.said)
    return claim.beside(claim.each(_ends(by_batch)), claim.each(_ends({case: small[case] for case in by_batch})))


def _depth(depths: Cases, one_batch: Cases) -> Check:
    """Judge that gains rise with the depth; with one batch for all depths, the critical path grows, and nothing else."""
    claim = PAPER.claim("depth").because(SCOPE.one_batch, ", ".join(f"{g:.3f}x" for steps in one_batch.values() if (g := gain(steps))))
    return claim.trend([(rank, g) for rank, steps in enumerate(depths.values()) if (g := gain(steps))])


def _card(networks: Cases, others: Cases, filled: tuple[Cases, Cases], small: tuple[Cases, Cases]) -> Check:
    """Judge that the larger card gains more. `filled`, `small`: if kernels leave nothing, and three quarters, to others."""

    def gains(on: Cases, on_other: Cases) -> dict[str, tuple]:
        fitting = [case for case in networks if status_of(others[case][TURBODL]) == OK]
        return {case[0]: (gain(on[case]), gain(on_other[case])) for case in fitting}

    claim = PAPER.claim("card")
    claim = claim.because(claim.each(gains(*filled)).said)
    return claim.beside(claim.each(gains(networks, others)), claim.each(gains(*small)))


def _charts(by_batch: Cases, depths: Cases, networks: Cases) -> Iterator[Chart]:
    yield _chart("networks", networks, _published(networks, "networks"))
    yield _chart("depth", depths, _published(depths, "depths"))
    yield _chart("batch", {case: steps for case, steps in by_batch.items() if case[0] == _BATCHED}, _by_batch(by_batch), over_batch=True)


def _chart(name: str, cases: Cases, published: Mapping[Case, float], over_batch: bool = False) -> Chart:
    """Return a chart of predicted and published gains, over the batch or by model."""
    positions = {case: case[1] if over_batch else number for number, case in enumerate(cases, start=1)}
    predicted = {case: value for case, steps in cases.items() if (value := gain(steps)) is not None}
    series = (
        line(what, ((positions[case], value) for case, value in values.items()), published=what == "published")
        for what, values in (("predicted", predicted), ("published", published))
    )
    ticks = () if over_batch else tuple(case[0] for case in cases)
    return PAPER.chart(name, [Panel(title="", series=tuple(series))], ticks, model=_BATCHED)


def measurements(gpu: bool) -> list[Measurement]:
    """Return the paper's job on a GPU; on a CPU, whose streams are cores, a smaller one, which also checks table 1: the same numbers."""
    if gpu:
        return [Measurement(job("resnet50", 32), TEXTS[1:], "the paper's job on another card")]
    return [Measurement(job("vgg16_cifar", 16), TEXTS[1:], "table 1's network on CIFAR images; streams are cores")]
