"""What a check is: a question about the GPU, a time bound, and a function that answers it in a process of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from calibrate.cuda.bench import Effort
from calibrate.cuda.co_runs import Sizes
from executors.cuda.driver import Driver
from simulator.job import Job
from simulator.models.user_code import brief
from traces.files import write_json
from traces.gpu_first import Mend, Verdict

#: The worth of what to mend: see `traces.gpu_first.Mend`.
BLOCKS, WRONG, UNCERTAIN, SUBSTITUTE = 1, 2, 3, 4


@dataclass(frozen=True)
class Finding:
    """The answer of a check: "ok" or "differs", what it means in words, and what to mend."""

    verdict: Verdict
    means: str
    mend: tuple[Mend, ...] = ()

    @staticmethod
    def of(faults: "list[tuple[int, str]]", well: str) -> "Finding":
        """ "differs" with the faults, each a worth and what to mend, or "ok" with the words of `well` if there are none."""
        if not faults:
            return Finding("ok", well)
        return Finding("differs", "; ".join(text for _, text in faults), tuple(Mend(worth=worth, text=text) for worth, text in faults))


@dataclass(frozen=True)
class Scale:
    """Sizes of the work; tests use smaller ones.

    `jobs` are trained in several precisions, and `image_jobs` channels-last. `image` is (batch, channels, edge) of a batch-norm, and
    `sequence` is (batch, heads, length, width) of an attention.
    """

    effort: Effort = field(default_factory=Effort)
    kernels: Sizes = field(default_factory=Sizes)
    jobs: tuple[Job, ...] = (
        Job("resnet18", 8, 64), Job("transformer_base", 2, optimizer="adam"), Job("rnn_bitstream", 4, 64, optimizer="adam"),
    )  # fmt: skip
    image_jobs: tuple[Job, ...] = (Job("resnet18", 8, 64), Job("mobilenet_v2", 8, 64, optimizer="adam", form="fused"))
    image: tuple[int, int, int] = (64, 64, 28)
    sequence: tuple[int, int, int, int] = (4, 8, 128, 64)


@dataclass
class CheckContext:
    """A GPU, and the figures of a check, which are on disk as soon as they are known: a check that crashes leaves those that it had."""

    driver: Driver
    scale: Scale = field(default_factory=Scale)
    path: Path | None = None
    figures: dict[str, JsonValue] = field(default_factory=dict)

    def figure(self, name: str, value: Any) -> None:
        """Add a figure."""
        self.figures[name] = value
        if self.path is not None:
            write_json(self.path, {"figures": self.figures})

    def attempt(self, name: str, case: Callable[[], Any], faults: list[tuple[int, str]], must: str) -> Any:
        """Run one of several cases and return its figures, which are kept; None if it fails, and then `must` and why join the faults."""
        try:
            figures = case()
        except Exception as error:
            self.figure(name, brief(error))
            faults.append((WRONG, f"{must}: {brief(error)}"))
            self.driver.synchronize()  # raises where the GPU cannot be used any more
            return None
        self.figure(name, figures)
        return figures


@dataclass(frozen=True)
class Check:
    """A question about a GPU.

    `asks` is the question. It is given up after `seconds`. `environment` are variables that its process is started with.
    """

    name: str
    asks: str
    seconds: float
    run: Callable[[CheckContext], Finding]
    environment: Mapping[str, str] = field(default_factory=dict)
