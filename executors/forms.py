"""How a backend runs the canonical ops, whose CPU and CUDA forms differ."""

from collections.abc import Callable
from dataclasses import dataclass

#: Dropout masks by (seed, step, index), in any order of execution; or from the device's generator, in the order of issue.
DRAWS = ("keyed", "stream")


@dataclass(frozen=True)
class Forms:
    """`cuda`: in the forms that PyTorch chooses on CUDA (they run on the CPU too, so that they can be tested there).

    `draws` counts with `cuda` only, and `seed` seeds the device's generator for "keyed". A CUDA graph needs "stream": in it the host cannot
    seed between two ops. `capturable`: updates in the form that a CUDA graph can replay.
    """

    cuda: bool = False
    draws: str = "keyed"
    seed: Callable[[int], None] | None = None
    capturable: bool = False

    def __post_init__(self) -> None:
        """Refuse what would draw other masks than those asked for."""
        if self.draws not in DRAWS:
            raise ValueError(f"draws {self.draws!r}; expected {' or '.join(DRAWS)}")


#: What the CPU backend takes.
PLAIN = Forms()
