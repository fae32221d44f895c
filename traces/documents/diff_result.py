"""The document of `schedcast diff`: why one run's step is longer than another's."""

from math import fsum
from typing import Literal, Self

from pydantic import Field, model_validator

from traces.documents.base import Data, Document, Duration, Seconds

#: Terms add up to the difference within this share of the longer step: rounding.
ROUNDING = 1e-9


class Contribution(Data):
    """What contributes to a term: by how many seconds per step, and what all of its kind takes per step in A and in B."""

    label: str
    seconds: Seconds
    a_s: Seconds
    b_s: Seconds


class DiffTerm(Data):
    """One term of the difference: by how many seconds it makes B's step longer. `contributions`: the largest first, without small ones."""

    part: str
    seconds: Seconds
    contributions: tuple[Contribution, ...] = ()


class Diff(Document):
    """B's step time less A's, in terms that add up to it. Document `schedcast.diff/1`.

    `compared`: two recorded traces, two timelines, or the predicted and the measured step of a validation. The last term may be a
    remainder, `remainder_s`: what the comparison does not explain. `aligned_share`: the share of the device seconds of both that is spent
    in work with a partner of the same name in the other; null for a validation, which compares a plan with itself. `steps`: how many of the
    first steps were compared.
    """

    schema_name = "schedcast.diff/1"
    kind = "diff"

    compared: Literal["traces", "timelines", "validation"]
    a: str
    b: str
    a_step_s: Duration
    b_step_s: Duration
    difference_s: Seconds
    terms: tuple[DiffTerm, ...]
    remainder_s: Seconds
    steps: int = Field(ge=1)
    aligned_share: float | None
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        least_s = ROUNDING * max(self.a_step_s, self.b_step_s)
        if abs(self.b_step_s - self.a_step_s - self.difference_s) > least_s:
            raise ValueError("the difference is not that of the two steps")
        if abs(fsum(term.seconds for term in self.terms) - self.difference_s) > least_s:
            raise ValueError("the terms do not add up to the difference")
        return self
