"""How a layer's output is divided among workers (DeePa, section 3)."""

from dataclasses import dataclass
from typing import Literal, Self

from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.strategies.options import Fetch, Overlap, Update, Updating, Urgent
from traces.errors import Code, SchedcastError
from traces.units import read_integer

#: The dimensions of an output: image, channel, height, width. An output of two dimensions has the first two.
DIMENSIONS = ("n", "c", "h", "w")


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """Degrees of parallelism in image, channel, height and width. Each worker computes an equal and disjoint part of the output.

    >>> configuration = Configuration.parse("n=2,c=2")  # half of the images and half of the channels for each of four workers
    >>> configuration.workers, configuration.replicas
    (4, 2)
    """

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
        """How many workers store each part of the layer's parameters: all but those that differ in channels."""
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
            degree = read_integer(number, 1, 65536)
            if name not in DIMENSIONS or name in degrees or degree is None:
                raise SchedcastError(f"{part.strip()[:40]!r} in {text[:80]!r} is no degree of parallelism; give them as in n=4,h=2")
            degrees[name] = degree
        return cls(**degrees)


# What strategies of shards have in common: their options, and which jobs they refuse.


#: Options that a search tries with every division of layers.
STEP_CANDIDATES = (
    "update=asynchronous", "server=distributed", "server=distributed,update=asynchronous", "batch_norm=synchronized",
    *(f"update={update}{first}" for update in ("forward-fusion", "backward-fusion") for first in ("", ",priorities=on")),
)  # fmt: skip


@dataclass(frozen=True)
class StepOptions(Updating):
    """What strategies of shards have in common."""

    overlap: Overlap = True
    server: Literal["all-reduce", "distributed", "host"] = "all-reduce"
    """Who sums: all devices together; each device as the parameter server of its chunk; or the host (not for partitions of one GPU)."""
    update: Update = "baseline"
    priorities: Urgent = False
    batch_norm: Literal["separate", "synchronized"] = "separate"
    """Batch-norm normalizes each part by its own statistics; synchronized: by those of the whole batch, which takes sums over devices."""
    fetch: Fetch = True


def check_job(strategy: str, job: Job, machine: Machine, options: StepOptions) -> None:
    """Raise SchedcastError if shards of the job cannot run on the machine."""
    devices = machine.devices
    if len(devices) < 2:
        do = "split the GPU with --partition 2, or use a machine with several" if devices[0].kind == "gpu" else "use --devices 2"
        raise SchedcastError(f"{strategy} needs at least 2 devices, there is {len(devices)}; {do}", Code.DEVICES)
    if job.accumulate > 1:
        raise SchedcastError(f"{strategy} divides the whole batch: it has no microbatches; use --accumulate 1")
    if job.needs_all_gradients:
        raise SchedcastError(f"{strategy} cannot {job.needs_all_gradients}: no device has all gradients", Code.MODEL)
    if options.server == "host" and not machine.library and any(device.kind == "gpu" for device in devices):
        raise SchedcastError(
            f"{strategy}:server=host needs a collective library between GPUs, and partitions of one GPU have none: no GPU kernel can add in"
            " host memory; use server=distributed, which sums on the devices",
            Code.DEVICES,
        )
