"""The options of a job and its placement, shared by every command that takes a model. Imports typer alone, as the command line does."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ui.commands import completion

if TYPE_CHECKING:
    from calibrate.placement import Placement
    from simulator.job import Job

#: Parameters that `takes_job` passes in place of the options.
_PASSED = ("job", "jobs", "placement", "settings")


def _options(
    *,
    model: Annotated[
        str,
        typer.Option(
            autocompletion=completion.models, help="Built-in name, FILE.py:FACTORY, PACKAGE.MODULE:FACTORY, torchvision:, timm: or hf:NAME."
        ),
    ],
    batch: Annotated[int | None, typer.Option(help="Samples per step, all micro-batches together. Default: a usual number.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the image, or sequence length, of a built-in model.")] = None,
    optimizer: Annotated[str, typer.Option(help="NAME[:for|foreach|fused], such as adam:fused.")] = "momentum",
    lr: Annotated[float | None, typer.Option(help="Learning rate; by default, the optimizer's own.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Clip gradients to this global norm.")] = None,
    accumulate: Annotated[int, typer.Option(help="Micro-batches per update; must divide the batch.")] = 1,
    precision: Annotated[
        str,
        typer.Option(
            help="default (PyTorch's own: on GPUs with TF32, convolutions use it), fp32, tf32, bf16, amp (autocast to bf16), amp-fp16 (to"
            " fp16, loss scaled) or fp64."
        ),
    ] = "default",
    layout: Annotated[str, typer.Option(help="nchw or nhwc.")] = "nchw",
    mode: Annotated[str, typer.Option(help="eager, or graph (CUDA graphs).")] = "eager",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    devices: Annotated[
        int | None,
        typer.Option(help="How many devices to use: GPUs, or groups of this CPU's cores. Default: all of a named machine, else 1."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(metavar="P", help="Split one GPU into P partitions, each a device; the baseline still uses the whole GPU."),
    ] = None,
    link: Annotated[
        str,
        typer.Option(
            metavar="alias|copy[:GB/s][,blocking|,late]",
            help="How groups of CPU cores exchange data: in shared memory, or by copies at a stated rate. With blocking (for a named"
            " machine, by itself) receives hold their stream until the sender arrives, as NCCL's do; with late, they are also posted last.",
        ),
    ] = "alias",
    memory_limit: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            help="Use at most this much of each memory, in GB of 10^9 bytes (16 GB = 14.9 GiB). Devices of one memory share the limit.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="OPTION=VALUE for every strategy that has the option; repeatable.")
    ] = None,
) -> None:
    """Declares the options; never called."""


#: The groups of these options in long help; a command's own options are in the usual group.
_GROUPS = {
    "Training job": ("model", "batch", "image_size", "optimizer", "lr", "clip_norm", "accumulate", "precision", "layout"),
    "Devices": ("mode", "device", "devices", "partition", "link", "memory_limit"),
}

#: --batch of a command that takes several.
_BATCHES = inspect.Parameter(
    "batch",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        list[str] | None,
        typer.Option(
            metavar="N[,N...]", help="Samples per step, all micro-batches together; several are compared. Default: a usual number."
        ),
    ],
)


def takes_job(*, memory_limit: bool = True, several: bool = False) -> Callable[[Callable], Callable]:
    """Give a command the options of a job. The command receives `job: Job`, `placement: Placement` and `settings: list[str]` instead.

    `settings` holds the OPTION=VALUE texts of --set. `memory_limit`: whether the command has --memory-limit. With `several`, --batch takes
    several values, and the command receives `jobs: list[Job]` in place of `job`. Options are listed in this order: model, the command's own
    required options, the other options of a job, the command's other options.
    """
    shared = [option for option in inspect.signature(_options).parameters.values() if memory_limit or option.name != "memory_limit"]
    if several:
        shared = [_BATCHES if option.name == "batch" else option for option in shared]

    def decorate(command: Callable) -> Callable:
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name not in _PASSED
        ]
        listed = sorted([*shared, *own], key=lambda parameter: parameter.default is not inspect.Parameter.empty)

        @functools.wraps(command)
        def with_job(**values: Any) -> None:
            given = {option.name: values.pop(option.name) for option in shared}
            batches = (listed_numbers("--batch", given["batch"] or []) or [None]) if several else [given["batch"]]
            jobs = [_job(given | {"batch": batch}) for batch in batches]  # refuses an unknown model first: that loads the least
            _refuse_unknown(values.get("strategy"), given["settings"])
            passed = {"jobs": jobs} if several else {"job": jobs[0]}
            with _usual_batch_named(jobs[0] if not given["batch"] else None):
                command(**passed, placement=_placement(given), settings=given["settings"] or [], **values)

        for group, names in _GROUPS.items():
            for option in (each for each in listed if each.name in names):
                option.annotation.__metadata__[0].rich_help_panel = group
        with_job.__signature__ = inspect.Signature(listed)
        with_job.__annotations__ = {parameter.name: parameter.annotation for parameter in listed}
        return with_job

    return decorate


@contextmanager
def _usual_batch_named(job: "Job | None") -> Iterator[None]:
    """Say at the end which batch was used, if `job` has its model's usual one. A request that is refused gets the refusal alone."""
    try:
        yield
    except typer.Exit:
        _name_batch(job)
        raise
    _name_batch(job)


def _name_batch(job: "Job | None") -> None:
    if job is not None:
        print(f"stepcast: the batch was {job.batch}, a usual one of {job.model}; choose another with --batch", file=sys.stderr)


def listed_values(texts: list[str]) -> list[str]:
    """The values of an option that may be repeated and may hold several, separated by commas. Each is returned once."""
    return list(dict.fromkeys(value.strip() for text in texts for value in text.split(",")))


def listed_numbers(option: str, texts: list[str]) -> list[int]:
    """The numbers of an option, as `listed_values` reads them. Raises StepcastError for anything else."""
    from traces.errors import StepcastError

    numbers = []
    for value in listed_values(texts):
        try:
            numbers.append(int(value))
        except ValueError as error:
            shown = value if len(value) <= 40 else f"{value[:40]}..."
            raise StepcastError(f"{option} {shown!r} is not an integer; give it as in {option} 32 or {option} 8,16,32") from error
    return numbers


def _job(given: Mapping[str, Any]) -> "Job":
    from simulator.job import Job
    from simulator.models.find import check_built_in

    check_built_in(given["model"], given["image_size"])  # before anything heavy is loaded
    optimizer, _, form = given["optimizer"].partition(":")
    fields = ("model", "image_size", "lr", "clip_norm", "accumulate", "precision", "layout")
    batch = given["batch"]
    if batch is None:
        from simulator.models.usual_batch import usual_batch

        batch = usual_batch(given["model"])
    return Job(optimizer=optimizer, batch=batch, form=form or "foreach", **{name: given[name] for name in fields})


def _refuse_unknown(strategies: str | list[str] | None, settings: list[str] | None) -> None:
    """Raise StepcastError for an unknown strategy or option, before anything heavy is loaded."""
    from ui.commands.requests import requested

    if strategies:
        requested([strategies] if isinstance(strategies, str) else strategies, settings or [])


def _placement(given: Mapping[str, Any]) -> "Placement":
    from calibrate.placement import Placement

    return Placement.from_options(*(given[name] for name in ("device", "devices", "mode", "link", "partition")), given.get("memory_limit"))
