"""A request as a command line and as the query of a link. Both name the same options, and omit defaults."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.strategies.registry import written
from traces.documents.comparison import Validation
from ui.present.labels import options_text
from ui.request import LINKED, JobRequest, optimizer_and_form, stored_profiles

#: The names of all options.
OPTIONS = tuple(option.key for option in LINKED)
#: Options of a prediction that a validation lacks: it runs on this machine as it is.
_ONLY_PREDICTED = frozenset({"machine", "host", "scale", "memory-limit"})


def options_of(request: JobRequest) -> list[tuple[str, str]]:
    """(option, value) pairs of a request, without defaults except for the machine: the command line has a different default."""
    pairs = []
    for option, value, usual in request.stated():
        if option.several:
            pairs += [(option.key, text) for text in value]
        elif not usual or option.name == "machine":
            pairs.append((option.key, f"{value:g}" if isinstance(value, float) else str(value)))
    return pairs


def command(request: JobRequest, *more: str, name: str = "predict") -> str:
    """The command line that gives the same answers: schedcast predict --model resnet50 ... `name`: the command's."""
    return shlex.join(["schedcast", *arguments(request, *more, name=name)])


def arguments(request: JobRequest, *more: str, name: str = "predict") -> list[str]:
    """The arguments of that command line, the command's name first."""
    profile = stored_profiles().get(request.machine)
    words = []
    for option, value in options_of(request):
        if name != "validate" or option not in _ONLY_PREDICTED:
            words += ["--profile", str(profile)] if option == "machine" and profile is not None else [f"--{option}", value]
    return [name, *words, *more]


def request_of(validation: Validation) -> JobRequest:
    """The arguments of such a validation on this machine."""
    device = validation.device
    several = {name: device[key] for name, key in (("devices", "devices"), ("partition", "partitions")) if device.get(key, 1) != 1}
    optimizer = optimizer_and_form(validation.optimizer)
    texts = [f"{row.strategy}:{options_text(row.options)}" if row.options else row.strategy for row in validation.results]
    return JobRequest(
        validation.model, validation.batch_size, validation.image_size, optimizer["optimizer"], optimizer["form"], **several,
        precision=validation.precision, mode=validation.mode, device="cuda" if device.get("kind") == "gpu" else "cpu",
        strategies=tuple(texts),
    )  # fmt: skip


def query_of(request: JobRequest) -> dict[str, list[str]]:
    """The query of a link that reproduces the page."""
    query: dict[str, list[str]] = {}
    for option, value in options_of(request):
        query.setdefault(option, []).append(value)
    return query


def request_fields(query: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The fields of a request that a query names. Unknown names and unreadable values are skipped: links come from anywhere."""
    given: dict[str, Any] = {}
    for option in LINKED:
        texts = [text for text in query.get(option.key, ()) if text]
        if not texts:
            continue
        if option.several:
            given[option.name] = tuple(dict.fromkeys(map(written, texts) if option.name == "strategies" else texts))
        elif option.name == "optimizer":
            given |= optimizer_and_form(texts[-1])
        else:
            value = option.read(texts[-1])
            if value is not None:
                given[option.name] = value
    if "model" in given and "machine" in given:
        named = JobRequest(given["model"], machine=given["machine"])
        given |= {"model": named.model, "machine": named.machine}
    return given
