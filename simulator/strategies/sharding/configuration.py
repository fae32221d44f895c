"""How a layer's output is divided among workers (DeePa, section 3)."""

from dataclasses import dataclass
from typing import Self

from traces.errors import SchedcastError

#: The dimensions of an output: image, channel, height, width. An output of two dimensions has the first two.
DIMENSIONS = ("n", "c", "h", "w")


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """Degrees of parallelism in image, channel, height and width. Each worker computes an equal and disjoint part of the output."""

    n: int = 1
    c: int = 1
    h: int = 1
    w: int = 1

    @property
    def workers(self) -> int:
        """Number of workers: the product of the degrees."""
        return self.n * self.c * self.h * self.w

    @property
    def replicas(self) -> int:
        """How many workers hold each part of the layer's parameters: all but those that differ in channels."""
        return self.n * self.h * self.w

    @property
    def degrees(self) -> tuple[int, int, int, int]:
        """The degrees in the order of DIMENSIONS."""
        return self.n, self.c, self.h, self.w

    def __str__(self) -> str:
        named = [f"{name}={degree}" for name, degree in zip(DIMENSIONS, self.degrees, strict=True) if degree > 1]
        return ",".join(named) or "n=1"

    @classmethod
    def along(cls, dimension: int, degree: int) -> Self:
        """The configuration that divides one of DIMENSIONS alone, given by number."""
        return cls(**{DIMENSIONS[dimension]: degree})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read degrees such as "n=4,h=2". Raises SchedcastError for anything else."""
        degrees: dict[str, int] = {}
        for part in text.split(","):
            name, _, number = part.strip().partition("=")
            if name not in DIMENSIONS or name in degrees or not number.isdecimal() or not 1 <= int(number[:9]) <= 65536:
                raise SchedcastError(f"{part.strip()[:40]!r} in {text[:80]!r} is no degree of parallelism; give them as in n=4,h=2")
            degrees[name] = int(number)
        return cls(**degrees)
