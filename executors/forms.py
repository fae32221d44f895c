"""Which form of the canonical ops a backend runs: dropout, batch-norm, attention, recurrent layers and updates differ on CPU and CUDA."""

from collections.abc import Callable
from dataclasses import dataclass

#: How dropout masks are drawn. "keyed": from (seed, step, index), the same in any order of execution. "stream": from the device's
#: generator, in issue order, by the ops that PyTorch itself draws them with.
DRAWS = ("keyed", "stream")


@dataclass(frozen=True)
class Forms:
    """The forms of one backend.

    `cuda`: run ops in the forms that PyTorch chooses on CUDA. These forms also run on the CPU, so that they can be tested there.
    `draws`: one of DRAWS. A CUDA graph needs "stream", because the host cannot seed between two ops of a graph. On the CPU it serves to
    time the ops of PyTorch's own loop.
    `seed`: seeds the device's generator for "keyed" draws.
    `capturable`: run updates in the form that a CUDA graph can replay.
    """

    cuda: bool = False
    draws: str = "keyed"
    seed: Callable[[int], None] | None = None
    capturable: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if `draws` is not one of DRAWS."""
        if self.draws not in DRAWS:
            raise ValueError(f"draws {self.draws!r}; expected {' or '.join(DRAWS)}")


#: The forms of the CPU backend.
PLAIN = Forms()
