"""Papers whose published figures are predicted. Each is one module here, discovered by its `NAME`.

A paper's module offers `NAME`, `ABOUT` (one line), `MACHINE` (the preset it is predicted for), `predictions()` (how many it makes, for the
progress bar), `reproduce(steps) -> traces.reproduction.Paper`, where `steps` is a `predicting.Steps` of that machine, and
`measurements(gpu) -> list[Measurement]`: what of it can be run on this machine. One whose document says more when it is reproduced alone
also offers `document(paper) -> traces.reproduction.Reproduction`.
Modules without `NAME` are parts of others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from simulator.discovery import modules
from simulator.job import Job
from traces.errors import UnknownNameError
from traces.reproduction import Paper, Reproduction

#: In place of a name: every paper.
ALL = "all"


@dataclass(frozen=True)
class Measurement:
    """A job to validate on this machine under some strategies, and how it differs from the paper's."""

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
        """One line."""
        return self.module.ABOUT

    @property
    def machine(self) -> str:
        """Name of the preset."""
        return self.module.MACHINE

    @property
    def predictions(self) -> Callable:
        """How many predictions `reproduce` makes."""
        return self.module.predictions

    @property
    def reproduce(self) -> Callable:
        """Predicts everything."""
        return self.module.reproduce

    def document(self, paper: Paper) -> Reproduction:
        """Of this paper alone."""
        own = getattr(self.module, "document", None)
        return own(paper) if own else Reproduction(papers=(paper,))

    @property
    def measurements(self) -> Callable:
        """What can be run here."""
        return self.module.measurements


@cache
def _discover() -> dict[str, Source]:
    papers = [Source(module.NAME, module) for module in modules(__package__) if hasattr(module, "NAME")]
    return {paper.name: paper for paper in sorted(papers, key=lambda paper: paper.name)}


def names() -> list[str]:
    """Every paper's name, in alphabetical order."""
    return list(_discover())


def get(name: str) -> Source:
    """The paper called `name`. Raises UnknownNameError."""
    try:
        return _discover()[name]
    except KeyError:
        raise UnknownNameError("paper", name, [*names(), ALL], "stepcast reproduce lists them") from None
