"""The parts of a GPU report, the most telling first. Strategies are asked for by name: a new one appears in it by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from calibrate.cuda.facts import measure_facts
from calibrate.cuda.report import Part, Result, usable
from calibrate.cuda.report_place import CutShortError, Place, UnsuitedError
from calibrate.numerics import TOLERANCE
from calibrate.planned import skipped_row
from calibrate.validation import BASELINE, validate
from simulator.job import Job
from simulator.models.factory import brief
from simulator.options import option_values
from simulator.strategies import registry as strategies
from traces.comparison import Validation
from traces.errors import StepcastError, UnusableFileError
from traces.files import read_document, write_json
from traces.gpu_report import FACTS, VALIDATIONS
from traces.shipped import FILES

FACTS_SCHEMA = "stepcast.gpu-facts/1"
MODES = ("eager", "graph")
#: Of the first so many models there is a small batch too, and every strategy comes early.
FIRST, SMALL_BATCH = 2, 8
#: Guesses in seconds, corrected by what the first parts take: the facts, the machine's figures, a job's keys, and rounds per program.
FACTS_S, MACHINE_S, KEYS_S, ROUNDS_S = 40.0, 15.0, 15.0, {"eager": 3.0, "graph": 4.0}


@dataclass(frozen=True)
class Target:
    """A model and its batch."""

    model: str
    batch: int


TARGETS = (Target("resnet50", 64), Target("mobilenet_v2", 32), Target("vgg16", 32), Target("transformer_base", 32))


#: Recurrent jobs, as (sequence length, batch) of RECURRENT: from where a step is all launches to where a sequence is long. Those beyond
#: LONG steps come last.
SEQUENCES, LONG = ((1000, 16), (64, 16), (1000, 2), (1000, 128), (10_000, 16)), 1000
RECURRENT = "rnn_bitstream"
#: A validation times plain PyTorch too, which is cuDNN's own RNN.
SCANS = (BASELINE, "bppsa:scan=blelloch", "bppsa:scan=linear")
#: Data parallelism on parts of the GPU: so many, with the baseline on one of them.
PARTITIONS = 2
DIVIDED = (BASELINE, "image-parallel", "image-parallel:overlap=off")


@dataclass(frozen=True)
class Case:
    """One validation: a job in one mode under some strategies. `what` tells it from others of the same job; "" for the baseline alone.

    `partitions`: of how many parts of the GPU each is a device.
    """

    target: Target
    mode: str
    strategies: tuple[str, ...] = (BASELINE,)
    what: str = ""
    precision: str = "fp32"
    layout: str = "nchw"
    optimizer: str = "momentum"
    form: str = "foreach"
    image_size: int | None = None
    partitions: int = 1

    def job(self) -> Job:
        """The job."""
        job = Job(self.target.model, self.target.batch, self.image_size, optimizer=self.optimizer, form=self.form)
        return Job(**job.describe() | {"precision": self.precision, "layout": self.layout})

    @property
    def tf32(self) -> bool:
        """Which profile it rests on."""
        return self.precision == "tf32"

    @property
    def name(self) -> str:
        """Unique, and fit for a file: resnet50-b64-eager-fp32."""
        usual = (self.optimizer, self.form) == ("momentum", "foreach")
        more = ("nhwc" if self.layout == "nhwc" else "", "" if usual else f"{self.optimizer}-{self.form}", self.what)
        return "-".join(word for word in (self.job().label, self.mode, self.precision, *more) if word)

    @property
    def file(self) -> str:
        """Its document, within the folder."""
        return f"{VALIDATIONS}/{self.name}.json"

    @property
    def title(self) -> str:
        """For people."""
        model = self.job().label.removesuffix(f"-b{self.target.batch}")
        where = f"{model} batch {self.target.batch}, {self.mode}, {self.precision}" + (", nhwc" if self.layout == "nhwc" else "")
        how = "" if self.optimizer == "momentum" else f", {self.optimizer}:{self.form}"
        how += f", {self.partitions} parts of the GPU" if self.partitions > 1 else ""
        return f"{where}{how}: {'baseline' if len(self.strategies) == 1 else f'{len(self.strategies)} strategies'}"

    @property
    def keys_of(self) -> tuple:
        """Cases that agree in this share most of their keys."""
        return self.target, self.image_size, self.precision, self.layout, self.optimizer, self.form, self.partitions


def cases(targets: Sequence[Target] = TARGETS) -> list[tuple[int, Case]]:
    """Every validation with its priority: 2 baselines, 3 all strategies on the first models, their methods and scans, 4 the rest.

    Of the rest, the smaller of the first models on parts of the GPU comes first.
    """
    names = (BASELINE, *(name for name in strategies.names(1) if name != BASELINE))
    fusions = tuple(name for name in names if name == BASELINE or name.endswith("-fusion"))
    first, rest = tuple(targets[:FIRST]), tuple(targets[FIRST:])
    small = [Target(target.model, SMALL_BATCH) for target in first if target.batch > SMALL_BATCH]
    baselines = [Case(target, mode) for target, mode in product((*targets, *small), MODES)]

    def every(some: Sequence[Target], **how: str) -> list[Case]:
        return [Case(target, mode, names, "strategies", **how) for target, mode in product(some, MODES)]

    methods = [
        Case(target, mode, (BASELINE, *strategy.steps), f"{name}-methods")
        for name in names
        if (strategy := strategies.get(name)).methods
        for target, mode in product((*first, *small), MODES)
    ]
    updates = [
        Case(target, mode, fusions, "fusion", optimizer="adam", form=form)
        for target, form, mode in product(first[-1:], ("foreach", "fused", "for"), MODES)
    ]
    scans = [
        Case(Target(RECURRENT, batch), mode, SCANS, "scans", optimizer="adam", image_size=steps)
        for (steps, batch), mode in product(SEQUENCES, MODES)
    ]
    short, long = ([case for case in scans if (case.image_size > LONG) == late] for late in (False, True))
    divided = [Case(target, mode, DIVIDED, f"{PARTITIONS}-parts", partitions=PARTITIONS) for target, mode in product(first[-1:], MODES)]
    last = divided + every(rest) + every(first, precision="tf32") + every(first, precision="bf16") + every(first, layout="nhwc")
    last += every(rest, precision="tf32") + every(rest, precision="bf16")
    found = [(2, case) for case in baselines] + [(3, case) for case in every(first) + methods + updates + short]
    found += [(4, case) for case in last + long]
    return list({case.name: (priority, case) for priority, case in reversed(found)}.values())[::-1]  # a small batch may be a target too


def parts(targets: Sequence[Target] = TARGETS) -> list[Part]:
    """The parts in the order of their priority. A profile's own figures come before the first part that rests on it."""
    found = [Part("facts", "facts of the GPU", 1, FACTS, "facts", FACTS_S, 0.0, _facts, _found_facts)]
    begun: set[bool] = set()
    calibrated = set()
    for priority, case in [(1, None), *cases(targets)]:
        tf32 = case is not None and case.tf32
        if tf32 not in begun:
            begun.add(tf32)
            found.append(_machine_part(tf32, priority))
        if case is None:
            continue
        rounds_s = ROUNDS_S[case.mode] * (len(case.strategies) + 2)
        keys_s = 0.0 if case.keys_of in calibrated else KEYS_S
        calibrated.add(case.keys_of)
        run, there = partial(_validate, case), partial(_found_validation, case)
        found.append(Part(case.name, case.title, priority, case.file, "validation", keys_s + rounds_s, rounds_s, run, there))
    return found


def _machine_part(tf32: bool, priority: int) -> Part:
    name, of = ("machine-tf32", "tf32") if tf32 else ("machine", "fp32")
    title = f"host costs, rates and transfers, {of}"
    return Part(name, title, priority, FILES[tf32], "machine", MACHINE_S, 0.0, partial(_machine, tf32), partial(_found_machine, tf32))


def _facts(place: Place) -> Result:
    place.testbed("eager", "fp32")  # sets the GPU's precision
    document = {
        "schema": FACTS_SCHEMA,
        "device": place.device,
        "record": place.record.facts,
        "record_notes": list(place.record.notes),
        "facts": measure_facts(place.driver, place.thoroughness.scale),
    }
    write_json(place.folder / FACTS, _plain(document), indent=1)
    failed = [f"the fact {name} could not be had: {fact['failed']}" for name, fact in document["facts"].items() if "failed" in fact]
    return Result(flags=tuple(failed))


def _found_facts(place: Place) -> Result | None:
    try:
        document = read_document(place.folder / FACTS, "GPU facts", FACTS_SCHEMA)
    except UnusableFileError:
        return None
    return Result() if document.get("device") == place.device else None


def _plain(value: object) -> object:
    """As JSON can say it: numbers that are not finite are null."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _machine(tf32: bool, place: Place) -> Result:
    profile = place.profiles[tf32]
    before = list(profile.notes)
    place.testbed("eager", "tf32" if tf32 else "fp32").measure_machine(profile)
    profile.save(place.profile_path(tf32))
    return Result(flags=tuple(note for note in profile.notes if note not in before))


def _found_machine(tf32: bool, place: Place) -> Result | None:
    return Result() if place.kept[tf32] else None


def _validate(case: Case, place: Place) -> Result:
    """Calibrate, predict, run and compare. Where that fails, one strategy after the other, so that one does not take the rest with it."""
    if case.partitions > 1:
        try:
            place.driver.partitions(case.partitions)
        except StepcastError as error:
            raise UnsuitedError(str(error)) from error
    notes = list(place.profiles[case.tf32].notes)
    flags: list[str] = []
    try:
        validation = _measured(case, case.strategies, place, flags)
    except CutShortError:
        raise
    except Exception as error:
        if len(case.strategies) <= 2 or not usable(place.driver):
            raise
        flags.append(f"the strategies were validated one by one, since together they failed: {place.scrubbed(brief(error))}")
        del error
        validation = _one_by_one(case, place, flags)
    if not validation.ran:
        raise StepcastError(validation.results[0].status.removeprefix("skipped: "))
    validation.save(place.folder / case.file)
    flags += [note[:200] for note in place.profiles[case.tf32].notes if note not in notes]
    return Result(_same_numbers(validation), tuple(dict.fromkeys(flags)))


def _measured(case: Case, names: Sequence[str], place: Place, flags: list[str]) -> Validation:
    testbed = place.testbed(case.mode, case.precision, case.partitions)
    profile, path = place.profiles[case.tf32], place.profile_path(case.tf32)
    outcome = validate(case.job(), names, {}, profile, True, path, place.progress, testbed, case.mode, timelines=False)
    flags += testbed.flags
    if outcome.rejected_rounds:
        flags.append(f"{outcome.rejected_rounds} rounds were disturbed")
    drift = outcome.validation.anchor_drift
    if drift is not None and abs(drift - 1) > 0.02:
        flags.append(f"a fixed operation took {drift:.3f} times its time at calibration")
    return outcome.validation


def _one_by_one(case: Case, place: Place, flags: list[str]) -> Validation:
    """One validation of every strategy, each run beside the baseline alone; the baseline's row is that of the first."""
    whole, rows = None, []
    for name in case.strategies:
        try:
            found = _measured(case, (name,), place, flags)
        except CutShortError:
            raise
        except Exception as error:
            if name == BASELINE or not usable(place.driver):
                raise
            strategy, options = strategies.parse(name, {})
            rows.append(skipped_row(strategy.name, option_values(options), place.scrubbed(brief(error))))
            continue
        whole = whole or found
        rows += [row for row in found.results if (row.strategy == BASELINE) == (name == BASELINE)]
    spreads = [whole.aa_spread] if whole.aa_spread is not None else []
    return whole.model_copy(update={"results": tuple(rows), "aa_spread": max(spreads, default=None)})


def _found_validation(case: Case, place: Place) -> Result | None:
    """An earlier run's result, if it is whole, of this machine, and has every strategy that there is."""
    if not place.kept[case.tf32]:
        return None
    try:
        found = Validation.load(place.folder / case.file)
    except UnusableFileError:
        return None
    device, target = place.about(case.partitions), case.target
    expected = (device, target.model, target.batch, case.mode, case.precision, f"{case.optimizer}:{case.form}")
    same = (found.device, found.model, found.batch_size, found.mode, found.precision, found.optimizer) == expected
    asked = [strategies.parse(text) for text in case.strategies]
    there = [(row.strategy, row.options) for row in found.results]
    if not same or not found.ran or any((strategy.name, option_values(options)) not in there for strategy, options in asked):
        return None
    return Result(_same_numbers(found))


def _same_numbers(validation: Validation) -> bool:
    """Whether every strategy that ran computed what plain PyTorch does."""
    errors = [error for row in validation.ran for error in (row.max_grad_error, row.max_param_error)]
    return all(error is not None and error <= TOLERANCE[validation.precision] for error in errors)
