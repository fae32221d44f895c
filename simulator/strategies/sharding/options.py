"""What strategies of shards have in common: their options, and which jobs they refuse."""

from dataclasses import dataclass
from typing import Literal

from simulator.machine.machine import Machine
from simulator.model.job import Job
from traces.errors import Code, SchedcastError

#: Options that a search tries with every division of layers.
STEP_CANDIDATES = (
    "update=asynchronous", "server=distributed", "server=distributed,update=asynchronous", "batch_norm=synchronized",
    *(f"update={update}{first}" for update in ("forward-fusion", "backward-fusion") for first in ("", ",priorities=on")),
)  # fmt: skip


@dataclass(frozen=True)
class StepOptions:
    """What strategies of shards have in common."""

    overlap: bool = True
    """Sum the gradients of replicas while backward runs; off: after backward."""
    server: Literal["all-reduce", "distributed", "host"] = "all-reduce"
    """Who sums: all devices together; each device as the parameter server of its chunk; or the host (not for partitions of one GPU)."""
    update: Literal["baseline", "forward-fusion", "backward-fusion", "asynchronous"] = "baseline"
    """When to update parameters: after backward, each layer just before the next forward needs it, or as soon as its gradient is summed.

    asynchronous: a step late, so that gradients are summed beside the next step.
    """
    priorities: bool = False
    """Sum first the gradients of the parameters that the next forward uses first."""
    batch_norm: Literal["separate", "synchronized"] = "separate"
    """Batch-norm normalizes each part by its own statistics; synchronized: by those of the whole batch, which takes sums over devices."""
    fetch: bool = True
    """Copy each device's part of the batch from the host; off: the part is on the device already."""

    @property
    def lag(self) -> int:
        """How many steps late a gradient is applied: one rule for all parameters, so that numbers do not depend on the division."""
        return int(self.update == "asynchronous")

    @property
    def notes(self) -> dict[str, str]:
        """What the semantics of a plan say of its updates."""
        return {"updates": "delayed to the next forward; sync() flushes them"} if self.update == "forward-fusion" else {}


def check_job(strategy: str, job: Job, machine: Machine, options: StepOptions) -> None:
    """Raise SchedcastError if shards of the job cannot run on the machine."""
    devices = machine.devices
    if len(devices) < 2:
        do = "split the GPU with --partition 2, or use a machine with several" if devices[0].kind == "gpu" else "use --devices 2"
        raise SchedcastError(f"{strategy} needs at least 2 devices, there is {len(devices)}; {do}", Code.DEVICES)
    if job.accumulate > 1:
        raise SchedcastError(f"{strategy} divides the whole batch: it has no micro-batches; use --accumulate 1")
    if job.needs_all_gradients:
        raise SchedcastError(f"{strategy} cannot {job.needs_all_gradients}: no device has all gradients", Code.MODEL)
    if options.server == "host" and not machine.library and any(device.kind == "gpu" for device in devices):
        raise SchedcastError(
            f"{strategy}:server=host needs a collective library between GPUs, and partitions of one GPU have none: no GPU kernel can add in"
            " host memory; use server=distributed, which sums on the devices",
            Code.DEVICES,
        )
