"""Names and values of a strategy's options, which are a frozen dataclass; and what they imply without a plan.

A field whose name is reserved in Python ends in an underscore (`async_`); users see the name without it. An option that several strategies
have is declared here: its type, what is said of it (`About`) and its smallest number (`Least`). The docstring under a strategy's own field
adds to that. `TOGETHER` says which options go with which.
"""

from dataclasses import Field, asdict, dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, cast, get_type_hints

from simulator.model.division.divide import UNDIVIDED, Division
from traces.errors import SchedcastError


@dataclass(frozen=True)
class About:
    """What is said of an option, whichever strategy has it."""

    words: str


@dataclass(frozen=True)
class Least:
    """The smallest number that an option may be."""

    number: int


#: How many there are of something.
Count = Annotated[int, Least(1)]
Update = Annotated[
    Literal["baseline", "forward-fusion", "backward-fusion", "asynchronous"],
    About(
        "When to update parameters: after backward, just before the next forward needs them, or as soon as their gradient is summed;"
        " asynchronous: one step late, so that gradients are summed during the next step."
    ),
]
Gradients = Annotated[
    Literal["freed", "kept", "fused", "held"],
    About(
        "freed: free gradients after the update; kept: retain them from step to step, as zero_grad(set_to_none=False) does; fused: also let"
        " the products of backward add to them, as Megatron-LM does; held: add them after each backward, as nanotron does."
    ),
]
TensorDegree = Annotated[
    Count,
    About(
        "The number of consecutive devices that divide each layer by heads, hidden channels and vocabulary (tensor parallelism); 1: none."
    ),
]
SequenceParallel = Annotated[bool, About("With tp, divide the ops between the products by tokens (sequence parallelism).")]
Overlap = Annotated[bool, About("Sum the gradients of replicas while backward runs; off: after backward.")]
Fetch = Annotated[bool, About("Copy each device's part of the batch from the host; off: the part is on the device already.")]
Fold = Annotated[
    Literal["auto", "on", "off"],
    About(
        "Plan one device for all that do the same, and some microbatches for more than 6 that do the same: only for predictions; auto: if"
        " there would be more than 20,000 tasks."
    ),
]
Urgent = Annotated[bool, About("Sum first the gradients of the parameters that the next forward uses first.")]
Streams = Annotated[
    Literal["one", "turbodl"],
    About("Each device computes on one stream, or on TurboDL's: dX, dW and dB of a layer concurrently, the critical path first."),
]
UpdateStream = Annotated[bool, About("Run updates on a second stream, concurrently with the rest of backward.")]


class Updating:
    """What follows from when parameters are updated."""

    update: Update

    @property
    def lag(self) -> int:
        """How many steps late a gradient is applied, after another step's backward: one rule for all parameters."""
        return int(self.update == "asynchronous")

    @property
    def notes(self) -> dict[str, object]:
        """What the semantics of a plan say about its updates."""
        return {"updates": "delayed to the next forward; sync() flushes them"} if self.update == "forward-fusion" else {}


class AnyOptions(Protocol):
    """The options of one strategy or another: an instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def option_names(options_type: type[AnyOptions]) -> tuple[str, ...]:
    """Return the names of the options as users write them."""
    return tuple(field.name.removesuffix("_") for field in fields(options_type))


def option_values(options: AnyOptions) -> dict[str, object]:
    """Return the values of the options by the names that users write."""
    return {name.removesuffix("_"): value for name, value in asdict(options).items()}


def said(options_type: type[AnyOptions]) -> dict[str, str]:
    """What is said of each option (`About`), by the name that users write; only of those that several strategies have."""
    return {name: about.words for name, about in _declared(options_type, About)}


@cache
def _declared(options_type: type[AnyOptions], kind: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(options_type, include_extras=True)
    return [
        (name, each)
        for field, name in zip(fields(options_type), option_names(options_type), strict=True)
        for each in getattr(hints[field.name], "__metadata__", ())
        if isinstance(each, kind)
    ]


class Together(NamedTuple):
    """A row of what goes with what: an option that is not at its default, or at a value of `also`, goes with `values` of `other`.

    A row is about strategies that have both. `values`: a number for all that are no smaller. `why`: what the first option does.
    """

    option: str
    other: str
    values: tuple[object, ...] | int
    why: str
    also: tuple[object, ...] = ()


TOGETHER = (
    Together("gradients", "update", ("baseline", "backward-fusion"), "they are set to zero before updates of the next step use them"),
    Together("gradients", "streams", ("one",), "the products on TurboDL's streams add to nothing"),
    Together("gradients", "shard", ("0", "1"), "stages 2 and 3 of ZeRO retain no whole gradients"),
    Together("shard", "replicas", 2, "it shards over the replicas of a stage"),
    Together("ep", "tp", (1,), "experts are divided over whole layers"),
    Together("ep", "cp", (1,), "experts are divided over whole sequences"),
    Together("layers", "streams", (True,), "it is streams with a barrier after each layer"),
    Together("layers", "async", (False,), "it is streams with a barrier after each layer"),
    Together("workers", "devices", (1,), "a device of several has one lane", also=(1,)),
    Together("microbatches", "then", ("gpipe", "1f1b"), "model-parallel has one microbatch", also=(1,)),
)


def check(strategy: str, options: AnyOptions) -> None:
    """Raise SchedcastError for a number that is too small, and for options that do not go together."""
    values = option_values(options)
    for name, least in _declared(type(options), Least):
        if values[name] < least.number:
            raise SchedcastError(f"strategy {strategy}: {name} is {values[name]}; expected at least {least.number}")
    usual = {name: field.default for name, field in zip(values, fields(options), strict=True)}
    for row in TOGETHER:
        if not {row.option, row.other} <= values.keys() or values[row.option] in (usual[row.option], *row.also):
            continue
        other = values[row.other]
        least = row.values if isinstance(row.values, int) else None
        if cast(int, other) < least if least is not None else other not in cast(tuple, row.values):
            fitting = f"{least} or more" if least is not None else " or ".join(map(_text, cast(tuple, row.values)))
            raise SchedcastError(
                f"strategy {strategy}: {row.option}={_text(values[row.option])} goes with {row.other}={fitting}, and {row.other} is"
                f" {_text(other)}: {row.why}; change one of the two"
            )


def _text(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


class Portion(NamedTuple):
    """Lower bounds of one device's work and memory, known before there is a plan.

    Each of `replicas` works on `microbatches` of a step, whose ops devices divide by `division`. They pass `stages`, cut before the units
    `cuts` (none: where predicted times balance or, if `even`, numbers of blocks). `held`: the share of its stage's parameters, with their
    optimizer state, that a device stores. `keeps`: whether activations are saved from a microbatch's forward to its backward; `gathers`:
    whether parameters, once gathered, stay gathered until the last microbatch's backward; `sums`: whether a device adds up whole gradients
    of its microbatches.
    """

    replicas: int
    microbatches: int
    held: float
    division: Division = UNDIVIDED
    stages: int = 1
    cuts: tuple[int, ...] = ()
    even: bool = False
    keeps: bool = True
    gathers: bool = False
    sums: bool = False
