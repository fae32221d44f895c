"""Finds the strategies and reads their options. A strategy turns a job into a plan; each is one module in this folder.

A strategy module defines `NAME`, `ABOUT` (one line), a frozen dataclass `Options` with a docstring per field, and a function `plan` of type
`PlanFunction`. A module of this folder without `NAME` is not a strategy. Optional constants:

- `FAMILY`: the strategies of one family are variants of one idea, whose prediction errors are similar (default: a separate family).
- `USES_COSTS = True`: the plan depends on the costs, or on rates and times of the machine. Its keys are measured before it is made final.
- `METHODS`: option texts that switch on the strategy's methods one after another; reports compare them.
- `LEAST_DEVICES`: the smallest number of devices the strategy runs on (default 1).
- `EXECUTED = False`: it is only predicted; no executor runs it (plain PyTorch).
- `CANDIDATES`: option texts that a search tries in addition to the default options (default: `METHODS`); or a function `candidates` of the
  job and the machine that returns them, for example those degrees that divide the batch and the devices.
- `FOR_LANGUAGE_MODELS = True`: by default, a search for a language model on several devices tries only such strategies.
- `portion`: a function of the job, the machine and options that returns lower bounds of a device's work and memory (`Portion`); None if
  they are not known before there is a plan.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, wraps
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from simulator.engine.collectives.tasks import over_links
from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.model.whole_mean import COUNT
from simulator.plan.discovery import modules
from simulator.plan.editor import order_csv
from simulator.plan.plan import Plan
from simulator.strategies.builder import FEW_PARTS, MOST_TASKS
from simulator.strategies.options import AnyOptions, Portion, check, option_names, option_values, said
from simulator.strategies.runs import run_of
from traces.documents.comparison import BASELINE, PYTORCH_DDP, PYTORCH_FSDP
from traces.errors import Code, SchedcastError, UnknownNameError


class PlanFunction(Protocol):
    """The contract of a strategy: a function that plans a job on a machine."""

    def __call__(self, job: Job, machine: Machine, costs: PlanCosts | None, options: Any) -> Plan:
        """Return the plan. Raises SchedcastError if the strategy cannot run the job on the machine.

        `costs`: predicted task times; None for those of the committed table. `options`: an instance of the strategy's `Options`.
        """


@dataclass(frozen=True)
class Strategy:
    """A strategy module. The fields are its constants of the same names."""

    name: str
    about: str
    options_type: type[AnyOptions]
    plan: PlanFunction
    family: str
    uses_costs: bool = False
    methods: tuple[str, ...] = ()
    least_devices: int = 1
    executed: bool = True
    candidates: Callable[[Job, Machine], Iterable[str]] | Sequence[str] | None = None
    portion: Callable[[Job, Machine, Any], Portion | None] = lambda job, machine, options: None
    for_language_models: bool = False

    def texts(self, job: Job, machine: Machine) -> tuple[str, ...]:
        """`NAME[:option=value,...]` of everything that a search tries, the default options first, each once."""
        more = self.methods if self.candidates is None else self.candidates
        options = more(job, machine) if callable(more) else more
        usual = option_values(self.options())
        different = {self.name: None}
        for text in options:
            chosen = option_values(parse(f"{self.name}:{text}")[1])
            pairs = [pair for pair in text.split(",") if chosen[name := pair.partition("=")[0]] != usual[name]]
            different[f"{self.name}:{','.join(pairs)}" if pairs else self.name] = None
        return tuple(different)

    @property
    def steps(self) -> tuple[str, ...]:
        """`methods` as texts `NAME:option=value,...`: each adds one method to the previous text."""
        return tuple(f"{self.name}:{options}" for options in self.methods)

    @property
    def option_names(self) -> tuple[str, ...]:
        """Names of its options."""
        return option_names(self.options_type)

    def option_docs(self) -> list[tuple[str, str, object]]:
        """(name, description, default) of each option. A description is what is said of a shared option, and the field's docstring."""
        docs: dict[str, str] = {}
        for own in reversed([each for each in self.options_type.__mro__ if is_dataclass(each)]):
            tree = ast.parse(textwrap.dedent(inspect.getsource(own)))
            for fields_and_docs in pairwise(each for node in tree.body if isinstance(node, ast.ClassDef) for each in node.body):
                match fields_and_docs:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        docs[name] = " ".join(text.split())
        shared = said(self.options_type)
        return [
            (name, " ".join(filter(None, (shared.get(name), docs.get(f.name)))), f.default)
            for name, f in zip(self.option_names, fields(self.options_type), strict=True)
        ]

    def options(self, texts: Mapping[str, str] | None = None) -> AnyOptions:
        """Options from texts by name; missing ones get their defaults. Raises SchedcastError for an unknown option, and for values
        that are invalid or do not go together.
        """
        texts = dict(texts or {})
        for name in texts:
            if name not in self.option_names:
                raise UnknownNameError(f"option of strategy {self.name}", name, self.option_names)
        fields_of = dict(zip(self.option_names, (f.name for f in fields(self.options_type)), strict=True))
        try:
            options = TypeAdapter(self.options_type).validate_python({fields_of[name]: text for name, text in texts.items()})
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]).removesuffix("_")
            expected = " or ".join(fault["msg"] for fault in error.errors() if fault["loc"][0] == first["loc"][0])
            raise SchedcastError(
                f"strategy {self.name}: option {name}={first['input']!r}: {expected}; see schedcast strategies {self.name}"
            ) from error
        check(self.name, options)
        return options


def _on_machine(name: str, plan: PlanFunction, uses_costs: bool) -> PlanFunction:
    """The same function for a job that runs as the machine's devices run it.

    An equal plan that is still in use is returned again, with what was derived from it. If the plan does not use costs, no other is made.
    """

    @wraps(plan)
    def on_machine(job: Job, machine: Machine, costs: PlanCosts | None, options: Any) -> Plan:
        job = job.on(machine.devices[0].kind)
        key = (name, options, job.autocast, machine.layout, job.compact)
        before = job.plans.get(key)
        if before is not None and not uses_costs:
            return before
        _check_size(name, job, options)
        made = over_links(plan(job, machine, costs, options), machine)
        _check_counts(name, made)
        require_simulated(name, len(made.every_task), len(made.devices))
        if made != before:
            job.plans[key] = before = made
        return before

    return on_machine


def require_simulated(name: str, tasks: int, devices: int) -> None:
    """Raise SchedcastError if a plan has more tasks than can be simulated in a minute."""
    if tasks > MOST_TASKS:
        raise SchedcastError(
            f"{name}: {tasks:,} tasks in a step on {devices} devices, more than the {MOST_TASKS:,} that can be simulated in a minute;"
            " choose fewer devices or microbatches"
        )


def _check_size(name: str, job: Job, options: Any) -> None:
    """Raise SchedcastError if there are too many microbatches to plan and simulate a step in a minute."""
    parts = max([job.accumulate, *(count for count in [getattr(options, "microbatches", None)] if isinstance(count, int))])
    if parts > max(FEW_PARTS, job.batch):
        raise SchedcastError(
            f"{name}: --batch {job.batch} does not divide into {parts:,} microbatches; choose at most {job.batch}", Code.BATCH
        )
    if not job.compact and parts > FEW_PARTS and parts * len(job.graph(max(1, job.batch // parts), parts).ops) > MOST_TASKS:
        raise SchedcastError(f"{name}: {parts:,} microbatches make more than {MOST_TASKS:,} tasks in a step; choose fewer, larger ones")


def _check_counts(name: str, plan: Plan) -> None:
    """Raise SchedcastError if losses are divided by numbers of the whole batch that the strategy does not count."""
    needed = {value for value in plan.values if value.startswith(COUNT)}
    if needed and not needed <= {operand.value for task in plan.tasks for operand in task.writes}:
        raise SchedcastError(
            f"{name} does not count the targets of a whole batch before its forwards; use --loss-mean parts, or another strategy, such as"
            " baseline, data-parallel, fsdp or 1f1b",
            Code.MODEL,
        )


@cache
def _discover() -> dict[str, Strategy]:
    strategies = {}
    for module in modules(__package__):
        if not hasattr(module, "NAME"):
            continue
        uses_costs = getattr(module, "USES_COSTS", False)
        strategies[module.NAME] = Strategy(
            name=module.NAME,
            about=module.ABOUT,
            options_type=module.Options,
            plan=_on_machine(module.NAME, module.plan, uses_costs),
            family=getattr(module, "FAMILY", module.NAME),
            uses_costs=uses_costs,
            methods=getattr(module, "METHODS", ()),
            least_devices=getattr(module, "LEAST_DEVICES", 1),
            executed=getattr(module, "EXECUTED", True),
            candidates=getattr(module, "candidates", getattr(module, "CANDIDATES", None)),
            portion=getattr(module, "portion", Strategy.portion),
            for_language_models=getattr(module, "FOR_LANGUAGE_MODELS", False),
        )
    return dict(sorted(strategies.items(), key=lambda item: (item[0] != "baseline", item[1].least_devices, item[0])))


#: Everyday words for strategies. Options that follow a word are added to those that it means, and win: megatron:tp=8.
#: DeepSpeed's stage is the one that accelerate starts it with.
EVERYDAY: Mapping[str, str] = MappingProxyType({
    "ddp": "data-parallel", "image-parallel": "data-parallel", "fsdp2": PYTORCH_FSDP, "zero1": "fsdp:shard=1", "zero2": "fsdp:shard=2",
    "zero3": "fsdp:shard=3", "deepspeed": "fsdp:shard=2", "megatron": "fsdp:tp=2,shard=1",
})  # fmt: skip


def written(text: str) -> str:
    """`NAME[:option=value,...]` with the name of a strategy in place of an everyday word.

    >>> written("zero2"), written("Megatron:tp=8"), written("gpipe:stages=4")
    ('fsdp:shard=2', 'fsdp:shard=1,tp=8', 'gpipe:stages=4')
    """
    name, _, own = text.partition(":")
    meant = EVERYDAY.get(name.strip().lower(), "")
    if not meant:
        return text
    strategy, _, options = meant.partition(":")
    given = {pair.partition("=")[0].strip() for pair in own.split(",")}
    kept = [pair for pair in options.split(",") if pair and pair.partition("=")[0] not in given]
    tail = ",".join([*kept, *filter(None, [own])])
    return f"{strategy}:{tail}" if tail else strategy


def _named(name: str) -> Strategy | None:
    return _discover().get(written(name).partition(":")[0])


def names(devices: int | None = None) -> list[str]:
    """Names of the strategies that executors run: baseline, then those of one device, then the others.

    With `devices`, those that run on that many devices.
    """
    known = ((name, strategy) for name, strategy in _discover().items() if strategy.executed)
    return [name for name, strategy in known if devices is None or strategy.least_devices <= devices]


def every() -> list[Strategy]:
    """All strategies: those of `names`, and plain PyTorch, which no executor runs."""
    return list(_discover().values())


def require_executed(strategy: Strategy) -> None:
    """Raise SchedcastError for a strategy that is only predicted."""
    if strategy.executed:
        return
    several = {PYTORCH_DDP: "data-parallel", PYTORCH_FSDP: "fsdp"}.get(strategy.name, "")
    raise SchedcastError(
        f"strategy {strategy.name} is your own loop, which no executor runs; run {several or BASELINE}, the same step as a plan; predict"
        f" shows {strategy.name}, and validate times it too{', under torchrun' if several else ''}"
    )


def family(text: str) -> str:
    """The family of a strategy by its name, with or without options. An unknown name is a separate family."""
    name = text.partition(":")[0]
    strategy = _named(name)
    return strategy.family if strategy else name


def get(name: str) -> Strategy:
    """The strategy called `name`. Raises UnknownNameError if there is none."""
    if strategy := _named(name):
        return strategy
    raise UnknownNameError("strategy", name, [*_discover(), *EVERYDAY], "schedcast strategies lists them")


#: The option by which every strategy follows a file: the order of its plan's tasks, or a pipeline's actions.
SCHEDULE = "schedule"


def _following(plan: PlanFunction, path: str) -> PlanFunction:
    """The same function for a strategy whose tasks run in the order of the file at `path`, which is read now."""
    order = order_csv.read(path)

    @wraps(plan)
    def following(job: Job, machine: Machine, costs: PlanCosts | None, options: Any) -> Plan:
        return order_csv.followed(plan(job.planned(compact=False), machine, costs, options), machine, order, path)

    return following


#: The option by which a run goes on with another strategy's plan: STRATEGY@ITERATION/ITERATIONS.
THEN = "then"
#: What must be the same of two plans for which plain PyTorch is one reference.
_COMPARED = "batch_norm_parts"


def _going_on(plan: PlanFunction, text: str, shared: Mapping[str, str] | None) -> PlanFunction:
    """The same function for a run that goes on with another strategy's plan. `text`: the value of the option THEN.

    Options of the other strategy follow its name as usual, with `+` in place of commas.
    """
    parts = re.fullmatch(r"(.+)@(\d{1,9})/(\d{1,9})", text)
    if parts is None or not 0 < (switch := int(parts[2])) < (iterations := int(parts[3])):
        raise SchedcastError(
            f"{THEN} is {text!r}; expected a strategy, the number of iterations before it, and that of the run, as in gpipe@60/100"
        )
    other, own_options = parse(parts[1].replace("+", ","), shared)
    require_executed(other)

    @wraps(plan)
    def going_on(job: Job, machine: Machine, costs: PlanCosts | None, options: Any) -> Plan:
        first = plan(job.planned(compact=False), machine, costs, options)
        placed = getattr(own_options, "placement", None) == "" and first.semantics.get("placement")
        then = other.plan(job.planned(compact=False), machine, costs, replace(own_options, placement=placed) if placed else own_options)
        if first.earlier or then.earlier:
            raise SchedcastError(f"{(first if first.earlier else then).strategy} is a run of two plans already; drop {THEN}={text}")
        if first.semantics.get(_COMPARED) != then.semantics.get(_COMPARED):
            raise SchedcastError(f"{first.strategy} and {then.strategy} divide batch-norms differently; drop {THEN}={text}")
        semantics = dict(first.semantics) | {THEN: dict(then.semantics)}
        return run_of(first.strategy, [(first, switch), (then, iterations - switch)], dict(first.options) | {THEN: text}, semantics)

    return going_on


def with_options(spec: str, *options: str) -> str:
    """`NAME[:option=value,...]` with more options.

    >>> with_options("gpipe", "tp=2"), with_options("gpipe:tp=2", "fold=on", "fetch=off")
    ('gpipe:tp=2', 'gpipe:tp=2,fold=on,fetch=off')
    """
    return f"{spec}{',' if ':' in spec else ':'}{','.join(options)}"


def parse(spec: str, shared: Mapping[str, str] | None = None) -> tuple[Strategy, AnyOptions]:
    """Read `NAME[:option=value,...]`. Returns the strategy and its options.

    Options in `shared` that the strategy has serve as defaults. With the option schedule=FILE, the tasks of the strategy's plan run in the
    order of the file (`order_csv`); pipelines also read the order of their actions. With then=STRATEGY@ITERATION/ITERATIONS, a run of so
    many iterations goes on with another strategy's plan. Raises SchedcastError for an unknown strategy, an unusable option or an unusable
    file.

    >>> from simulator.machine.presets import load_machine
    >>> strategy, options = parse("backward-fusion:update_stream=on")
    >>> options
    Options(update_stream=True)
    >>> plan = strategy.plan(Job("lenet5", batch=64), load_machine("h100"), None, options)
    >>> sorted({(task.phase, task.stream) for task in plan.tasks})
    [('backward', 0), ('forward', 0), ('update', 1)]
    """
    name, _, tail = written(spec).partition(":")
    strategy = get(name)
    texts = {k: v for k, v in (shared or {}).items() if k in strategy.option_names}
    for text in filter(None, tail.split(",")):
        key, equals, value = text.partition("=")
        if not equals:
            raise SchedcastError(f"option {text!r} of strategy {name} has no value; expected option=value; see schedcast strategies {name}")
        texts[key.strip()] = value.strip()
    if texts.get(SCHEDULE) and (SCHEDULE not in strategy.option_names or order_csv.names_tasks(texts[SCHEDULE])):
        strategy = replace(strategy, plan=_following(strategy.plan, texts.pop(SCHEDULE)))
    if THEN in texts and THEN not in strategy.option_names:
        strategy = replace(strategy, plan=_going_on(strategy.plan, texts.pop(THEN), shared))
    return strategy, strategy.options(texts)


def check_shared(requested: Sequence[str], shared: Mapping[str, str]) -> None:
    """Raise SchedcastError for an option of `shared` that no requested strategy (`NAME[:option=value,...]`) has."""
    offered = {name for text in requested for name in get(text.partition(":")[0]).option_names}
    for name in shared:
        if name not in offered:
            raise UnknownNameError("option for --set", name, sorted(offered), "schedcast strategies lists each strategy's options")
