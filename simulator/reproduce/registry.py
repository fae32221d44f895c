"""Papers whose published figures are predicted. Each is one module here, discovered by its `NAME`.

A paper's module has `NAME`, `ABOUT` (one line), `MACHINE` (the preset to predict for), `predictions()` (how many predictions it makes, for
the progress bar), `reproduce(steps) -> traces.reproduction.Paper`, where `steps` is a `predicting.Steps` of that machine, and
`measurements(gpu) -> list[Measurement]`: what this machine can run of it. A module may also have
`document(paper) -> traces.reproduction.Reproduction`, which makes the document of the paper alone. Modules without `NAME` belong to others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from simulator.discovery import modules
from simulator.job import Job
from traces.errors import UnknownNameError
from traces.reproduction import Paper, Reproduction

#: Stands for every paper, instead of a name.
ALL = "all"


@dataclass(frozen=True)
class Measurement:
    """A job to validate on this machine under some strategies. `about` says how it differs from the paper's job."""

    job: Job
    strategies: tuple[str, ...]
    about: str


@dataclass(frozen=True)
class Source:
    """A discovered paper."""

    name: str
    module: ModuleType

    @property
    def about(self) -> str:
        """What the paper is about, in one line."""
        return self.module.ABOUT

    @property
    def machine(self) -> str:
        """The name of the preset to predict for."""
        return self.module.MACHINE

    @property
    def predictions(self) -> Callable:
        """The function that returns how many predictions `reproduce` makes."""
        return self.module.predictions

    @property
    def reproduce(self) -> Callable:
        """The function that predicts the paper's figures."""
        return self.module.reproduce

    def document(self, paper: Paper) -> Reproduction:
        """Return the document of this paper alone."""
        own = getattr(self.module, "document", None)
        return own(paper) if own else Reproduction(papers=(paper,))

    @property
    def measurements(self) -> Callable:
        """The function that returns what this machine can run."""
        return self.module.measurements


@cache
def _discover() -> dict[str, Source]:
    papers = [Source(module.NAME, module) for module in modules(__package__) if hasattr(module, "NAME")]
    return {paper.name: paper for paper in sorted(papers, key=lambda paper: paper.name)}


def names() -> list[str]:
    """Return every paper's name, in alphabetical order."""
    return list(_discover())


def get(name: str) -> Source:
    """Return the paper called `name`. Raises UnknownNameError."""
    try:
        return _discover()[name]
    except KeyError:
        raise UnknownNameError("paper", name, [*names(), ALL], "stepcast reproduce lists them") from None
