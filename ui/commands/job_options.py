"""The options of a job and its placement, shared by every command that takes a model, their checks, and what the shell completes.

Loads the simulator when an option is completed or checked, and never PyTorch.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, replace
from typing import Annotated, Any

import typer

from traces.errors import SchedcastError
from traces.units import read_integer
from ui.request import DECLARED, JobRequest, Option, machine_named, optimizer_and_form


def complete_models(incomplete: str) -> list[str]:
    """The built-in models with this prefix."""
    from simulator.model.workloads import registry

    return _beginning(incomplete, registry.names())


def complete_strategies(incomplete: str) -> list[str]:
    """The strategies with this prefix; after the colon, the options of the strategy except those that it already has."""
    from simulator.strategies import registry as strategies

    name, colon, given = incomplete.partition(":")
    if not colon or name not in strategies.names():
        return _beginning(incomplete, [*strategies.names(), *strategies.EVERYDAY])
    *before, _ = given.split(",")
    settled = {option.partition("=")[0] for option in before}
    options = [option for option, *_ in strategies.get(name).option_docs() if option not in settled]
    return _beginning(incomplete, [f"{name}:{','.join([*before, f'{option}='])}" for option in options])


def complete_machines(incomplete: str) -> list[str]:
    """The machines with this prefix; after a comma, those that are not named yet."""
    from simulator.machine.presets import THIS_CPU, THIS_GPU, machine_names

    *before, _ = incomplete.split(",")
    names = [name for name in (THIS_CPU, THIS_GPU, *machine_names()) if name not in before]
    return _beginning(incomplete, [",".join([*before, name]) for name in names])


def _beginning(incomplete: str, names) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


#: Parameters that `takes_job` passes in place of the options.
_PASSED = ("request", "requests")
#: Fields of a request that commands declare themselves, by the names of their parameters.
_FIELDS = {"strategy": "strategies", "tries": "tries", "host": "host", "scale": "scale", "tokens": "tokens", "price": "price"}
#: Those of them that have one value.
_SINGLE = ("host", "scale", "tokens", "price")


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


#: The option that shows the options which --help does not.
_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option("--help-all", is_eager=True, callback=_show_all, help="Also show the options that are rarely needed, and exit."),
    ],
)


def _parameter(option: Option) -> inspect.Parameter:
    """The option as a parameter of a command."""
    complete = complete_models if option.name == "model" else None
    names = [f"--{name}" for name in (option.key, option.also) if name]
    about = typer.Option(
        *names, help=option.help, metavar=option.metavar, rich_help_panel=option.group, autocompletion=complete, hidden=option.rare
    )
    default = inspect.Parameter.empty if option.default is MISSING else option.default or None
    kind = list[str] | None if option.several else option.kind
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, about])


#: The model without the name of its option, as in schedcast predict resnet50.
_MODEL_WORD = inspect.Parameter(
    "model_word",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[str | None, typer.Argument(metavar="MODEL", autocompletion=complete_models, help="The model, as --model.")],
)


def _model_of(word: str | None, option: str | None) -> str | None:
    """The model that a command names by a word or by --model; None if it names none. Raises SchedcastError for two."""
    if word is not None and option is not None and word != option:
        raise SchedcastError(f"{word} and --model {option} both name a model; drop one of the two")
    return option if word is None else word


def _batches(batch: Option) -> Option:
    """--batch of a command that takes several."""
    about = batch.help.replace("together.", "together; several are compared.")
    return replace(batch, kind=tuple[str, ...], metavar="N[,N...]", help=about)


def takes_job(*, memory_limit: bool = True, several: bool = False, optional: bool = False) -> Callable[[Callable], Callable]:
    """Give a command the options of a job. The command receives `request: JobRequest` instead.

    Options that a command itself declares, such as --strategy, --machine, --profile and --scale, are only in the request.
    `memory_limit`: whether the command has --memory-limit. With `several`, --batch and --machine take several values, and the command
    receives `requests: list[JobRequest]`, one machine after the other. The model may also be a word. With `optional`, it may not, and a
    command without --model receives a request without one.
    --help hides the options of a job that are rarely needed and the command's own hidden ones; --help-all shows them.
    Options are listed in this order: model, the command's own required options, the other options of a job, the command's other options.
    """
    offered = [option for option in DECLARED if option.help and (memory_limit or option.name != "memory_limit")]
    offered[0] = replace(offered[0], default="")
    words = [] if optional else [_MODEL_WORD]
    if optional:
        offered = [replace(option, rare=option.name not in ("model", "batch")) for option in offered]
    shared = [_parameter(_batches(option) if several and option.name == "batch" else option) for option in offered]

    def decorate(command: Callable) -> Callable:
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name not in _PASSED
        ]
        listed = sorted([*words, *shared, *own, _HELP_ALL], key=lambda parameter: parameter.default is not inspect.Parameter.empty)

        @functools.wraps(command)
        def with_job(**values: Any) -> None:
            from simulator.model.find import check_built_in

            del values["help_all"]
            given = {option.name: values.pop(option.name) for option in shared}
            given["model"] = _model_of(values.pop("model_word", None), given["model"])
            no_model = given["model"] is None
            if no_model and not optional:
                raise SchedcastError("Missing option '--model'; give a model as in --model resnet50; schedcast models lists them")
            extra = [option.key for option in offered if given[option.name] not in (option.default, None, [])]
            if extra and no_model:
                raise SchedcastError(f"--{extra[0]} is given without a model; add --model")
            given |= {"model": given["model"] or "", "settings": tuple(given["settings"] or ())}
            given |= optimizer_and_form(given["optimizer"]) if given["optimizer"] else {}
            for name in _FIELDS.keys() & values.keys():
                value = values.pop(name)
                given[_FIELDS[name]] = value if name in _SINGLE else (value,) if isinstance(value, str) else tuple(value or ())
            named, profile = values.pop("machine", None) or [], values.pop("profile", None)
            machines = [named] if isinstance(named, str) else listed_values(named)
            batch = given.pop("batch")
            request = JobRequest(**given, machine=machine_named(machines[0] if machines else None, profile))
            if no_model:
                command(request=request, **values)
                return
            check_built_in(request.model, request.image_size)  # before anything heavy is loaded
            batches: list[int | None] = ([*listed_numbers("--batch", batch or [])] or [None]) if several else [batch]
            jobs = [replace(request, batch=each).job(machines) for each in batches]
            if request.strategies:
                request.chosen()
            request.placement()
            requests = [replace(request, machine=name, batch=job.batch) for name in machines or [request.machine] for job in jobs]
            with _usual_batch_named(requests[0] if not batch else None):
                command(**({"requests": requests} if several else {"request": requests[0]}), **values)

        with_job.__dict__["__signature__"] = inspect.Signature(listed)
        with_job.__annotations__ = {parameter.name: parameter.annotation for parameter in listed}
        return with_job

    return decorate


@contextmanager
def _usual_batch_named(request: JobRequest | None) -> Iterator[None]:
    """Log at the end which batch was used, if `request` has its model's usual one. A refused request gets only the refusal."""
    try:
        yield
    except typer.Exit:
        _name_batch(request)
        raise
    _name_batch(request)


def _name_batch(request: JobRequest | None) -> None:
    if request is not None:
        print(f"schedcast: the batch was {request.batch}, a usual one of {request.model}; choose another with --batch", file=sys.stderr)


def listed_values(texts: list[str]) -> list[str]:
    """The values of an option that may be repeated and may hold several, separated by commas. Duplicates are dropped."""
    return list(dict.fromkeys(value.strip() for text in texts for value in text.split(",")))


def listed_numbers(option: str, texts: list[str]) -> list[int]:
    """The numbers of an option, as `listed_values` reads them. Raises SchedcastError for anything else."""
    numbers = []
    for value in listed_values(texts):
        number = read_integer(value)
        if number is None:
            shown = value if len(value) <= 40 else f"{value[:40]}..."
            raise SchedcastError(f"{option} {shown!r} is not an integer; give it as in {option} 32 or {option} 8,16,32")
        numbers.append(number)
    return numbers
