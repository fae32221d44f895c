"""Variants of a job that a search tries: microbatches and activation checkpointing, which belong to the job and not to a strategy.

A candidate of a search is a strategy's text, with the options of the command line behind it that its variant sets: `fsdp:shard=1
--accumulate 4 --checkpoint selective`.
"""

from collections.abc import Mapping, Sequence
from itertools import product

from simulator.machine.machine import Machine
from simulator.model.checkpoint import choice
from simulator.model.job import Job
from simulator.model.workloads.registry import is_language_model
from traces.errors import SchedcastError, UnknownNameError
from traces.units import read_integer

#: The fields of a job that a search may vary, with what reads their values.
VARIED = {"accumulate": int, "checkpoint": str}
#: What a search tries for a language model on several devices: numbers of microbatches, and checkpointing.
_ACCUMULATE, _CHECKPOINT = (1, 2, 4, 8, 16), (choice.NONE, choice.SELECTIVE, choice.FULL)
_EXAMPLE = "--try accumulate=1,2,4 or --try checkpoint=none,full"

#: The values to try, by field; an omitted field keeps the job's value.
Tries = Mapping[str, tuple[str, ...]]


def read_tries(texts: Sequence[str]) -> Tries:
    """Read FIELD=VALUE[,VALUE...] of `--try`. Raises SchedcastError for anything else."""
    tries: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name, listed = name.strip(), tuple(dict.fromkeys(value.strip() for value in values.split(",")))
        if name not in VARIED:
            raise UnknownNameError("field for --try", name, tuple(VARIED), f"give it as in {_EXAMPLE}")
        for value in listed:
            if name == "accumulate" and read_integer(value, 1) is None:
                raise SchedcastError(f"--try {text[:60]}: {value[:40]!r} is not a number of at least 1; give it as in {_EXAMPLE}")
            if name == "checkpoint":
                choice.read(value)
        tries[name] = tuple(dict.fromkeys((*tries.get(name, ()), *listed)))
    return tries


def usual_tries(job: Job, machine: Machine) -> Tries:
    """What a search tries by default: for a language model on several devices, each field that has its default in the job."""
    if len(machine.devices) < 2 or not is_language_model(job.model):
        return {}
    tries: dict[str, tuple[str, ...]] = {}
    if job.accumulate == Job.accumulate:
        tries["accumulate"] = tuple(str(count) for count in _ACCUMULATE if job.batch % count == 0)
    if job.checkpoint == Job.checkpoint:
        tries["checkpoint"] = _CHECKPOINT
    return tries


def variants(text: str, tries: Tries) -> list[tuple[int, str]]:
    """The candidates of a strategy's text, one for each combination of values; with the number of its checkpointing among those tried.

    Less checkpointing is usually faster. If it is tried for all texts before more of it, fewer plans that lose are simulated.

    >>> for number, candidate in variants("fsdp", {"accumulate": ("1", "2"), "checkpoint": ("none", "full")}):
    ...     print(number, candidate)
    0 fsdp --accumulate 1 --checkpoint none
    1 fsdp --accumulate 1 --checkpoint full
    0 fsdp --accumulate 2 --checkpoint none
    1 fsdp --accumulate 2 --checkpoint full
    """
    stated = [[f" --{name} {value}" for value in values] for name, values in tries.items()]
    number = {value: at for at, value in enumerate(tries.get("checkpoint", ()))}
    texts = (text + "".join(each) for each in product(*stated))
    return [(number.get(split(each)[1].get("checkpoint", ""), 0), each) for each in texts]


def split(candidate: str) -> tuple[str, dict[str, str]]:
    """The strategy's text of a candidate, and the values of its variant by field."""
    text, *stated = candidate.split(" --")
    return text, dict(each.split(" ", 1) for each in stated)


def but_microbatches(candidate: str) -> tuple[str, str]:
    """A candidate apart from its number of microbatches: its strategy's text, and its checkpointing if that varies."""
    text, values = split(candidate)
    return text, values.get("checkpoint", "")


def varied(job: Job, candidate: str) -> Job:
    """The job of a candidate. Raises SchedcastError for values that no job has."""
    return job.varied(**{name: VARIED[name](value) for name, value in split(candidate)[1].items()})
