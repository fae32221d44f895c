"""What a job has that nobody stated: for a language model on several GPUs, what people train such models with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.machine.presets import precisions_of
from simulator.model.checkpoint import choice
from simulator.model.job import DEFAULT, Job
from simulator.model.workloads.registry import is_language_model
from simulator.predict.forecast import Forecast
from traces.errors import Refusal

#: Activation checkpointing, the least first: each needs less memory than the one before, and more time.
LEAST_FIRST = (choice.NONE, choice.SELECTIVE, choice.FULL)
#: Autocast by the precision of its products, the most usual first.
_AUTOCAST = {"bf16": "amp", "fp16": "amp-fp16"}


@dataclass(frozen=True)
class Usual:
    """The fields of a request that it need not state. `strategies`: none for the plain loops.

    `checkpoint`: None for the least with which a step fits in memory (`least_checkpoint`).
    """

    strategies: tuple[str, ...] = ()
    optimizer: str = "momentum"
    form: str = "foreach"
    precision: str = DEFAULT
    checkpoint: str | None = choice.NONE


#: Of all other jobs.
PLAIN = Usual()


def usual_of(model: str, machine: str, gpus: int) -> Usual:
    """What is usual for a model on so many GPUs of the preset called `machine`; any other name stands for GPUs that have bf16.

    >>> usual_of("llama3:8b", "8xh100", gpus=8)
    Usual(strategies=('fsdp',), optimizer='adamw', form='fused', precision='amp', checkpoint=None)
    >>> usual_of("llama3:8b", "8xv100", gpus=8).precision, usual_of("resnet50", "8xh100", gpus=8) == PLAIN
    ('amp-fp16', True)
    """
    if gpus < 2 or not is_language_model(model):
        return PLAIN
    fast = precisions_of(machine) or frozenset(_AUTOCAST)
    precision = next((name for product, name in _AUTOCAST.items() if product in fast), DEFAULT)
    return Usual(("fsdp",), "adamw", "fused", precision, None)


def least_checkpoint(job: Job, texts: Sequence[str], known: Callable[[Job, str], Forecast | Refusal]) -> Job:
    """The job with the least activation checkpointing with which one of the strategies fits in memory, with room to spare; with the most if
    none does.

    `known`: forecasts a strategy of a job.
    """
    for kind in LEAST_FIRST:
        tried = job.varied(checkpoint=kind)
        if any(isinstance(own := known(tried, text), Forecast) and own.fits and not own.at_limit for text in texts):
            break
    return tried
