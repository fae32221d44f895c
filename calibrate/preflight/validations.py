"""The long probes: the machine's figures, and validations, the most informative first. Strategies come from the registry."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from calibrate.cuda.testbed import MODE_REASON
from calibrate.identity import same_device
from calibrate.numerics import Numerics
from calibrate.planned import skipped_row
from calibrate.preflight.probe import Context, CutShortError, FreshProcessError, Probe, ProbeTestbed, UnsuitedError, usable
from calibrate.validation import BASELINE, validate
from simulator.model.job import Job
from simulator.model.user_code import brief
from simulator.strategies import registry as strategies
from simulator.strategies.options import option_values
from traces.documents.comparison import Validation
from traces.documents.gpu_report import VALIDATIONS
from traces.documents.shipped import FILES
from traces.errors import SchedcastError, UnusableFileError

MODES = ("eager", "graph")
#: The first `FIRST` models also run with a small batch, and run every strategy early.
FIRST, SMALL_BATCH = 2, 8
#: Estimates in seconds, which the times of the first probes correct: the machine's figures, a job's keys, and the rounds per program.
MACHINE_S, KEYS_S, ROUNDS_S = 15.0, 15.0, {"eager": 3.0, "graph": 4.0}
#: Rounds of a validation. On an H100, two runs of the baseline differ by less than 0.5 %.
ROUNDS = 6
#: A long probe is abandoned after this many times its estimate, but not before this many seconds: the first one of its kind corrects
#: estimates.
TIMES, LEAST_S = 3.0, 120.0
#: Priorities of the groups of validations, among the quick probes: what users train comes before what explains it, so that the first
#: minutes on a GPU answer the question that matters most. Those that may leave a GPU unusable, or that few need, come last.
MAIN, SEQUENCE, OTHER_PRECISIONS, METHODS, SCAN, DIVIDED, REST = 2, 8, 9, 10, 11, 13, 14


@dataclass(frozen=True)
class Target:
    """A model and its batch."""

    model: str
    batch: int


TARGETS = (Target("resnet50", 64), Target("gpt2", 8), Target("transformer_base", 32), Target("mobilenet_v2", 32), Target("vgg16", 32))
#: How most users train on today's GPUs, as fields of `Case`.
USUAL = {"precision": "amp", "optimizer": "adamw", "form": "fused"}

#: Recurrent jobs, as (sequence length, batch) of the model `RECURRENT`: from steps dominated by launches to long sequences. Those longer
#: than `LONG` come last.
SEQUENCES, LONG = ((1000, 16), (64, 16), (1000, 2), (1000, 128), (10_000, 16)), 1000
RECURRENT = "rnn_bitstream"
#: Models with attention.
ATTENTIVE = ("gpt2", "transformer_base")
#: Strategies for the recurrent jobs. A validation also times plain PyTorch, which is cuDNN's own RNN.
SCANS = (BASELINE, "bppsa:scan=blelloch", "bppsa:scan=linear")
#: Data parallelism on partitions of the GPU: how many, and the strategies; the baseline runs on the whole GPU.
PARTITIONS = 2
DATA_PARALLEL = (BASELINE, "data-parallel", "data-parallel:overlap=off")
#: Pipelines on the partitions: with a drain in each step, with the backward split, and with stale weights.
PIPELINES = (BASELINE, "gpipe", "1f1b", "zero-bubble", "stale-pipeline")


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


def cases(targets: Sequence[Target] = TARGETS) -> list[tuple[int, Case]]:
    """Every validation with its priority, first what is worth most.

    `MAIN`: fusions and TurboDL on the first two models as most train them. `SEQUENCE`: the same on the third. `OTHER_PRECISIONS`: the
    first ones in TF32, also with a batch so small that steps wait for the host. `METHODS`: every strategy, TurboDL's methods one by one,
    and the optimizer's forms. `SCAN`: recurrent jobs. `DIVIDED`: the first model on partitions of the GPU. `REST`: the other models,
    channels-last (the first one), bf16, long sequences, and fp32 without TF32 last of all.
    """
    names = (BASELINE, *(name for name in strategies.names(1) if name != BASELINE))
    fusions = tuple(name for name in names if name == BASELINE or name.endswith("-fusion"))
    schedules = (*fusions, "turbodl")
    first, third, rest = tuple(targets[:FIRST]), tuple(targets[FIRST : FIRST + 1]), tuple(targets[FIRST + 1 :])
    small = tuple(Target(target.model, SMALL_BATCH) for target in first if target.batch > SMALL_BATCH)

    def each(models: Sequence[Target], chosen: tuple[str, ...], variant: str = "", **more: Any) -> list[Case]:
        return [Case(target, mode, chosen, variant, **more) for target, mode in product(models, MODES)]

    methods = [
        case
        for name in names
        if (strategy := strategies.get(name)).methods
        for case in each((*first, *small), (BASELINE, *strategy.steps), f"{name}-methods", **USUAL)
    ]
    updates = [case for form in ("foreach", "for") for case in each(first[-1:], fusions, "fusion", **{**USUAL, "form": form})]
    scans = [
        case for steps, batch in SEQUENCES for case in each((Target(RECURRENT, batch),), SCANS, "scans", optimizer="adam", image_size=steps)
    ]
    short, long = ([case for case in scans if ((case.image_size or 0) > LONG) == late] for late in (False, True))
    divided = [
        case
        for chosen, variant in ((DATA_PARALLEL, "parts"), (PIPELINES, "stages"))
        for case in each(first[:1], chosen, f"{PARTITIONS}-{variant}", partitions=PARTITIONS, precision="tf32")
    ]
    remaining = each(rest, schedules, "schedules", **USUAL) + each((*first, *third, *rest), names, "strategies", precision="tf32")
    remaining += each(first[:1], names, "strategies", layout="nhwc", **USUAL) + each(first, names, "strategies", precision="bf16") + long
    remaining += each((*targets, *small), (BASELINE,)) + each(targets, names, "strategies")
    groups = {
        MAIN: each(first, schedules, "schedules", **USUAL),
        SEQUENCE: each(third, schedules, "schedules", **USUAL),
        OTHER_PRECISIONS: each((*first, *small), schedules, "schedules", precision="tf32") + each(small, schedules, "schedules", **USUAL),
        METHODS: each(first, names, "strategies", **USUAL) + methods + updates,
        SCAN: short,
        DIVIDED: divided,
        REST: remaining,
    }
    by_name: dict[str, tuple[int, Case]] = {}
    for priority, group in groups.items():
        for case in group:
            by_name.setdefault(case.name, (priority, case))
    return list(by_name.values())


def probes(targets: Sequence[Target] = TARGETS) -> list[Probe]:
    """The long probes in the order of their priority. A profile's own figures come before the first validation that uses it.

    The machine's figures come first of all, before any session of the profiler, which may slow the host down.
    """
    ordered: list[Probe] = []
    begun: set[bool] = set()
    calibrated = set()
    for priority, case in cases(targets):
        if case.tf32 not in begun:
            begun.add(case.tf32)
            ordered.append(_machine_probe(case.tf32, priority))
        rounds_s = ROUNDS_S[case.mode] * (len(case.strategies) + 2)
        estimate_s = rounds_s + (0.0 if case.key_group in calibrated else KEYS_S)
        calibrated.add(case.key_group)
        more: dict[str, Any] = {"limit_s": max(LEAST_S, TIMES * estimate_s), "estimate_s": estimate_s, "reserve_s": rounds_s}
        more |= {"kind": "validation", "needs": case.needs}
        run, earlier = partial(_validate, case), partial(_earlier_validation, case)
        ordered.append(Probe(case.name, case.title, run, priority, file=case.file, earlier=earlier, **more))
    return ordered


def _machine_probe(tf32: bool, priority: int) -> Probe:
    name, precision = ("machine-tf32", "tf32") if tf32 else ("machine", "fp32")
    limits: dict[str, Any] = {"limit_s": max(LEAST_S, TIMES * MACHINE_S), "estimate_s": MACHINE_S}
    run, earlier = partial(_machine, tf32), partial(_earlier_machine, tf32)
    asks = f"host costs, rates and transfers, {precision}"
    return Probe(name, asks, run, priority, file=FILES[tf32], kind="machine", earlier=earlier, **limits)


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
    return ""


def _measure(case: Case, names: Sequence[str], context: Context) -> Validation:
    testbed = ProbeTestbed(context, case.mode, case.precision, case.partitions)
    profile, path = context.profiles[case.tf32], context.profile_path(case.tf32)
    outcome = validate(case.job(), names, {}, profile, testbed, save_to=path, progress=context.progress, timelines=False, rounds=ROUNDS)
    if outcome.rejected_rounds:
        context.flags.append(f"{outcome.rejected_rounds} rounds were disturbed")
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
