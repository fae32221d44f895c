"""The long probes: the machine's figures, and validations, the most informative first. Strategies come from the registry."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from calibrate.cuda.testbed import MODE_REASON
from calibrate.identity import same_device
from calibrate.numerics import Numerics
from calibrate.planned import skipped_row
from calibrate.preflight.probe import (
    UNCERTAIN,
    WRONG,
    Context,
    CutShortError,
    FreshProcessError,
    Order,
    Probe,
    ProbeTestbed,
    UnsuitedError,
    usable,
)
from calibrate.validation import BASELINE, validate
from simulator.model.job import Job
from simulator.model.user_code import brief
from simulator.strategies import registry as strategies
from simulator.strategies.options import option_values
from traces import units
from traces.documents.comparison import Validation
from traces.documents.gpu_report import GOOD_ERROR, VALIDATIONS, good
from traces.documents.shipped import FILES
from traces.errors import SchedcastError, UnusableFileError

MODES = ("eager", "graph")
#: The first `FIRST` models also run with a small batch, and run every strategy early.
FIRST, SMALL_BATCH = 2, 8
#: Estimates in seconds, which the times of the first probes correct: the machine's figures, a job's keys, and the rounds per program.
MACHINE_S, KEYS_S, ROUNDS_S = 15.0, 15.0, {"eager": 3.0, "graph": 4.0}
#: Rounds of a validation, so many that signed ranks tell strategies apart. On an H100, two runs of the baseline differ by less than 0.5 %.
ROUNDS = 12
#: A long probe is abandoned after this many times its estimate, but not before this many seconds: the first one of its kind corrects
#: estimates.
TIMES, LEAST_S = 3.0, 120.0
#: Errors of a peak by fewer bytes need no correction.
LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class Target:
    """A model and its batch."""

    model: str
    batch: int


TARGETS = (
    Target("resnet50", 64), Target("gpt2:small", 8), Target("transformer_base", 32), Target("mobilenet_v2", 32), Target("vgg16", 32),
)  # fmt: skip
#: How most users train on today's GPUs, as fields of `Case`.
USUAL = {"precision": "amp", "optimizer": "adamw", "form": "fused"}

#: Recurrent jobs, as (sequence length, batch) of the model `RECURRENT`: those of BPPSA's tables, steps dominated by launches, long ones.
SEQUENCES, SHORT_SEQUENCES, LONG_SEQUENCES = ((1000, 16), (1000, 128)), ((64, 16), (1000, 2)), ((10_000, 16),)
RECURRENT = "rnn_bitstream"
#: Models with attention.
ATTENTIVE = ("gpt2:small", "transformer_base")
#: Strategies for the recurrent jobs. A validation also times plain PyTorch, which is cuDNN's own RNN.
SCANS = (BASELINE, "bppsa:scan=blelloch", "bppsa:scan=linear")
#: Data parallelism on partitions of the GPU: how many, and the strategies; the baseline runs on the whole GPU.
PARTITIONS = 2
DATA_PARALLEL = (BASELINE, "data-parallel", "data-parallel:overlap=off")
#: Pipelines on the partitions: with a drain in each step, with the backward split, and with stale weights.
PIPELINES = (BASELINE, "gpipe", "1f1b", "zero-bubble", "stale-pipeline")
#: Parallelism by layer on the partitions: the model, and the strategies.
LAYERED, LAYERWISE = Target("alexnet_cifar", 128), (BASELINE, "owt", "deepa")
#: The job of the paper on fused updates.
UPDATED = Target("mobilenet_v2", 32)


@dataclass(frozen=True)
class Case:
    """One validation: a job in one mode under some strategies.

    `variant` tells it apart from other validations of the same job; it is empty for the baseline alone. `partitions` is how many partitions
    of the GPU there are, each a device.
    """

    target: Target
    mode: str
    strategies: tuple[str, ...] = (BASELINE,)
    variant: str = ""
    precision: str = "fp32"
    layout: str = "nchw"
    optimizer: str = "momentum"
    form: str = "foreach"
    image_size: int | None = None
    partitions: int = 1

    def job(self) -> Job:
        job = Job(self.target.model, self.target.batch, self.image_size, optimizer=self.optimizer, form=self.form)
        fields: dict[str, Any] = job.describe() | {"precision": self.precision, "layout": self.layout}
        return Job(**fields)

    @property
    def tf32(self) -> bool:
        """Which of the two profiles it uses."""
        return self.precision == "tf32"

    @property
    def needs(self) -> tuple[str, ...]:
        """The quick probes that try what it cannot do without."""
        graphs = ("captures", "events") if self.mode == "graph" else ()
        return (*graphs, *(("attention",) if self.target.model in ATTENTIVE else ()), *(("partitions",) if self.partitions > 1 else ()))

    @property
    def name(self) -> str:
        """A unique name that can be a file name, such as resnet50-b64-eager-fp32."""
        usual = (self.optimizer, self.form) == ("momentum", "foreach")
        more = ("nhwc" if self.layout == "nhwc" else "", "" if usual else f"{self.optimizer}-{self.form}", self.variant)
        return "-".join(word for word in (self.job().label, self.mode, self.precision, *more) if word)

    @property
    def file(self) -> str:
        """The path of its document within the report's folder."""
        return f"{VALIDATIONS}/{self.name}.json"

    @property
    def title(self) -> str:
        model = self.job().label.removesuffix(f"-b{self.target.batch}")
        job = f"{model} batch {self.target.batch}, {self.mode}, {self.precision}" + (", nhwc" if self.layout == "nhwc" else "")
        more = "" if self.optimizer == "momentum" else f", {self.optimizer}:{self.form}"
        more += f", {self.partitions} partitions of the GPU" if self.partitions > 1 else ""
        return f"{job}{more}: {'baseline' if len(self.strategies) == 1 else f'{len(self.strategies)} strategies'}"

    @property
    def key_group(self) -> tuple:
        """Cases with the same value of this property share most of their keys."""
        return self.target, self.image_size, self.precision, self.layout, self.optimizer, self.form, self.partitions


def cases(targets: Sequence[Target] = TARGETS) -> list[tuple[Order, Case]]:
    """Every validation with its place in the order, first what is worth most.

    The first model and a language model run as most train them, also with a batch so small that steps wait for the host. Each published
    system has its jobs: recurrent ones for scans, the first model on partitions of the GPU for pipelines and data parallelism, a network
    of convolutions and large products for parallelism by layer, and one with many small updates for fused ones. `METHODS`: every strategy,
    TurboDL's methods one by one, and the optimizer's forms. `REST`: the other models, channels-last (the first one), bf16, long sequences,
    and fp32 without TF32 last of all.
    """
    names = (BASELINE, *(name for name in strategies.names(1) if name != BASELINE))
    fusions = tuple(name for name in names if name == BASELINE or name.endswith("-fusion"))
    schedules = (*fusions, "turbodl")
    first, third, rest = tuple(targets[:FIRST]), tuple(targets[FIRST : FIRST + 1]), tuple(targets[FIRST + 1 :])
    small = tuple(Target(target.model, SMALL_BATCH) for target in first if target.batch > SMALL_BATCH)

    def each(models: Sequence[Target], chosen: tuple[str, ...], variant: str = "", **more: Any) -> list[Case]:
        return [Case(target, mode, chosen, variant, **more) for target, mode in product(models, MODES)]

    def usual(models: Sequence[Target], **more: Any) -> list[Case]:
        return each(models, schedules, "schedules", **USUAL, **more)

    def divided(models: Sequence[Target], chosen: tuple[str, ...], variant: str) -> list[Case]:
        return each(models, chosen, f"{PARTITIONS}-{variant}", partitions=PARTITIONS, precision="tf32")

    def scans(sequences: Iterable[tuple[int, int]]) -> list[Case]:
        of_length = {"variant": "scans", "optimizer": "adam"}
        return [case for steps, batch in sequences for case in each((Target(RECURRENT, batch),), SCANS, image_size=steps, **of_length)]

    methods = [
        case
        for name in names
        if (strategy := strategies.get(name)).methods
        for case in each((*first, *small), (BASELINE, *strategy.steps), f"{name}-methods", **USUAL)
    ]
    updates = [case for form in ("foreach", "for") for case in each(first[-1:], fusions, "fusion", **{**USUAL, "form": form})]
    remaining = usual(rest) + each((*first, *third, *rest), names, "strategies", precision="tf32")
    remaining += each(first[:1], names, "strategies", layout="nhwc", **USUAL) + each(first, names, "strategies", precision="bf16")
    remaining += scans(LONG_SEQUENCES) + each((*targets, *small), (BASELINE,)) + each(targets, names, "strategies")
    groups = {
        Order.USUAL: usual(first[:1]),
        Order.SCANS: scans(SEQUENCES),
        Order.DIVIDED: divided(first[:1], DATA_PARALLEL, "parts") + divided(first[:1], PIPELINES, "stages"),
        Order.LAYERWISE: divided((LAYERED,), LAYERWISE, "layers"),
        Order.LANGUAGE: usual(first[1:]),
        Order.HOST_BOUND: usual(small),
        Order.UPDATES: each((UPDATED,), fusions, "fusion", optimizer="adam", form="for"),
        Order.CHANNELS_LAST: usual(first[:1], layout="nhwc"),
        Order.SEQUENCE: usual(third),
        Order.OTHER_PRECISIONS: each((*first, *small), schedules, "schedules", precision="tf32"),
        Order.METHODS: each(first, names, "strategies", **USUAL) + methods + updates + scans(SHORT_SEQUENCES),
        Order.REST: remaining,
    }
    by_name: dict[str, tuple[Order, Case]] = {}
    for place, group in groups.items():
        for case in group:
            by_name.setdefault(case.name, (place, case))
    return list(by_name.values())


def probes(targets: Sequence[Target] = TARGETS) -> list[Probe]:
    """The long probes in their order. A profile's own figures come before the first validation that uses it.

    The machine's figures come first of all, before any session of the profiler, which may slow the host down.
    """
    ordered: list[Probe] = []
    begun: set[bool] = set()
    calibrated = set()
    for place, case in cases(targets):
        if case.tf32 not in begun:
            begun.add(case.tf32)
            ordered.append(_machine_probe(case.tf32, place))
        rounds_s = ROUNDS_S[case.mode] * (len(case.strategies) + 2)
        estimate_s = rounds_s + (0.0 if case.key_group in calibrated else KEYS_S)
        calibrated.add(case.key_group)
        more: dict[str, Any] = {"limit_s": max(LEAST_S, TIMES * estimate_s), "estimate_s": estimate_s, "reserve_s": rounds_s}
        more |= {"kind": "validation", "needs": case.needs}
        run, earlier = partial(_validate, case), partial(_earlier_validation, case)
        ordered.append(Probe(case.name, case.title, run, place, file=case.file, earlier=earlier, **more))
    return ordered


def _machine_probe(tf32: bool, place: Order) -> Probe:
    name, precision = ("machine-tf32", "tf32") if tf32 else ("machine", "fp32")
    limits: dict[str, Any] = {"limit_s": max(LEAST_S, TIMES * MACHINE_S), "estimate_s": MACHINE_S}
    run, earlier = partial(_machine, tf32), partial(_earlier_machine, tf32)
    asks = f"host costs, rates and transfers, {precision}"
    return Probe(name, asks, run, place, file=FILES[tf32], kind="machine", earlier=earlier, **limits)


def _machine(tf32: bool, context: Context) -> str:
    profile = context.profiles[tf32]
    before = list(profile.notes)
    ProbeTestbed(context, "eager", "tf32" if tf32 else "fp32").measure_machine(profile, again=True)
    profile.save(context.profile_path(tf32))
    context.flags += [note for note in profile.notes if note not in before]
    return ""


def _earlier_machine(tf32: bool, context: Context) -> dict[str, Any] | None:
    return {} if context.profiles[tf32].dispatch.dispatch_s is not None else None


def _validate(case: Case, context: Context) -> str:
    """Calibrate, predict, run and compare. If that fails, validate the strategies one by one, so that one failure leaves the others."""
    if case.partitions > 1:
        try:
            context.driver.partitions(case.partitions)
        except SchedcastError as error:
            raise UnsuitedError(str(error)) from error
    notes, flags = list(context.profiles[case.tf32].notes), context.flags
    try:
        validation = _measure(case, case.strategies, context)
    except (CutShortError, FreshProcessError):
        raise
    except Exception as error:
        if len(case.strategies) <= 2 or not usable(context.driver):
            raise
        flags.append(f"the strategies were validated one by one, since they failed together: {context.scrubbed(brief(error))}")
        del error
        validation = _one_by_one(case, context)
    if not validation.ran:
        raise SchedcastError(validation.results[0].status.removeprefix("skipped: "))
    validation.save(context.path(case.file))
    flags += [note[:200] for note in context.profiles[case.tf32].notes if note not in notes]
    context.same_numbers = _same_numbers(validation)
    context.faults += _errors(validation)
    return ""


def _errors(validation: Validation) -> list[tuple[int, str]]:
    """Which predictions of a validation to fix, with their worth: of step times, and of memory, that are far off."""
    faults = []
    for row in validation.ran:
        predicted_s, measured_s = row.steps_s
        what = f"{row.strategy} is predicted at {units.duration(predicted_s)}, measured at {units.duration(measured_s)}"
        if row.scored_error is not None and not good(row.scored_error, validation.aa_spread):
            faults.append((WRONG, f"correct the step time: {what} ({units.percent(row.scored_error)})"))
        predicted, measured = row.predicted_peak_bytes, row.measured_peak_bytes
        if predicted is not None and measured and abs(predicted - measured) > max(GOOD_ERROR * measured, LEAST_BYTES):
            sizes = f"{units.memory(predicted)} for {row.strategy}, measured {units.memory(measured)}"
            faults.append((WRONG, f"correct the memory: predicted {sizes} ({units.error(predicted, measured)})"))
    return faults


def _measure(case: Case, names: Sequence[str], context: Context) -> Validation:
    testbed = ProbeTestbed(context, case.mode, case.precision, case.partitions)
    profile, path = context.profiles[case.tf32], context.profile_path(case.tf32)
    outcome = validate(case.job(), names, {}, profile, testbed, save_to=path, progress=context.progress, timelines=False, rounds=ROUNDS)
    if outcome.rejected_rounds:
        context.flags.append(f"{outcome.rejected_rounds} rounds were disturbed")
    if outcome.rejected_rounds > ROUNDS // 4:
        context.fault(UNCERTAIN, f"measure again on a quiet machine: {outcome.rejected_rounds} rounds were disturbed")
    drift = outcome.validation.anchor_drift
    if drift is not None and abs(drift - 1) > 0.02:
        context.flags.append(f"a fixed operation took {drift:.3f} times its time at calibration")
    return outcome.validation


def _one_by_one(case: Case, context: Context) -> Validation:
    """Validate each strategy in a run with the baseline alone. The baseline's row is that of the first run."""
    first, rows = None, []
    for name in (name for name in case.strategies if name != BASELINE):
        try:
            validation = _measure(case, (name,), context)
        except (CutShortError, FreshProcessError):
            raise
        except Exception as error:
            if not usable(context.driver):
                raise
            strategy, options = strategies.parse(name, {})
            rows.append(skipped_row(strategy.name, option_values(options), context.scrubbed(brief(error))))
            continue
        first = first or validation
        rows += [row for row in validation.results if row.strategy != BASELINE]
    first = first or _measure(case, (BASELINE,), context)
    return first.model_copy(update={"results": (*(row for row in first.results if row.strategy == BASELINE), *rows)})


def _earlier_validation(case: Case, context: Context) -> dict[str, Any] | None:
    """The result of an earlier run, if its document is complete, of this machine, and has every strategy."""
    if _earlier_machine(case.tf32, context) is None:
        return None
    try:
        validation = Validation.load(context.path(case.file))
    except UnusableFileError:
        return None
    device, target = context.about(case.partitions), case.target
    measured_on = {name: fact for name, fact in validation.device.items() if name != MODE_REASON}
    mode = validation.mode if MODE_REASON in validation.device else case.mode  # this GPU cannot run the mode: another try would not either
    expected = (target.model, target.batch, mode, case.precision, f"{case.optimizer}:{case.form}")
    actual = (validation.model, validation.batch_size, validation.mode, validation.precision, validation.optimizer)
    asked = [strategies.parse(text) for text in case.strategies]
    rows = [(row.strategy, row.options) for row in validation.results]
    complete = all((strategy.name, option_values(options)) in rows for strategy, options in asked)
    same = actual == expected and same_device(measured_on, device)
    return {"same_numbers": _same_numbers(validation)} if same and validation.ran and complete else None


def _same_numbers(validation: Validation) -> bool:
    """Whether every strategy that ran computed what plain PyTorch does."""
    return all(Numerics.of_row(row).equal(validation.precision) for row in validation.ran)
