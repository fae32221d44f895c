"""The commands that every rank executes: load its device's part of a plan, run it, and measure its memory.

The process of a rank other than 0 executes rank 0's commands until rank 0 ends (`serve_rank`). It prints nothing, unless it fails while it
cannot report to rank 0.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from executors.cpu.cores import available_cores, cpu_s
from executors.distributed.control import ControlChannel, Named, join_channel
from executors.distributed.ranks import Ranks
from executors.errors import GRACE_S, PeerLostError
from executors.kernels import communication
from executors.program import Executable, Start
from simulator.engine.collectives.local import LocalPlan, devices_of, groups_of, local_plan
from simulator.machine.machine import Device, Machine, Memory
from simulator.model.user_code import brief
from simulator.plan.json import load
from simulator.plan.plan import Plan
from traces.errors import SchedcastError
from traces.process import ignore_stopping, stopped_status, terminated

if TYPE_CHECKING:
    from executors.cpu.backend import CpuBackend
    from executors.cuda.backend import CudaBackend
    from executors.cuda.driver import Driver


@dataclass
class LoadedPlans:
    """This process's programs, one per plan that rank 0 has loaded. `devices`: the machine's devices, by rank."""

    channel: ControlChannel
    backend: "CpuBackend | CudaBackend"
    devices: tuple[str, ...]
    _programs: dict[int, tuple[LocalPlan, Executable | None]] = field(default_factory=dict)
    _prepared: tuple[Plan, LocalPlan, Named] | None = None

    @staticmethod
    def open(channel: ControlChannel, kind: str, devices: Sequence[str], sms: int, precision: str) -> "LoadedPlans":
        """An empty set of programs on this process's own backend: its cores, or its whole GPU. `kind`: cpu or cuda."""
        backend = _local_backend(kind, channel.ranks, devices[channel.ranks.rank], sms, precision)
        return LoadedPlans(channel, backend, tuple(devices))

    @property
    def gpu(self) -> str:
        """The name of this process's GPU; empty on a CPU. See `gpu_name`."""
        return "" if self.gpu_driver is None else gpu_name(self.gpu_driver)

    @property
    def gpu_driver(self) -> "Driver | None":
        """The driver of this process's GPU; None on a CPU."""
        return getattr(self.backend, "driver", None)

    @property
    def library(self) -> str:
        return communication.LIBRARIES[self.backend.torch_device.type]

    def prepare(self, plan: Plan, tensors: Named) -> None:
        """Cut this device's part out of `plan`, for the `load` or `peak_bytes` that comes next.

        This is a separate command because all ranks must know that all have reached this point before they create process groups together:
        in PyTorch, ranks that create a group wait for those that do not.
        """
        self._prepared = plan, local_plan(plan, self.devices[self.channel.ranks.rank]), tensors

    def _take_prepared(self) -> tuple[LocalPlan, Named]:
        """The prepared part and its tensors, after the process groups of the whole plan have been created."""
        assert self._prepared is not None, "`prepare` comes before"
        (plan, local, tensors), self._prepared = self._prepared, None
        communication.make_groups(groups_of(plan), self.devices, self.library)
        return local, tensors

    def load(self, number: int, seed: int, keep: Sequence[str], iteration: int = 0, before: int | None = None) -> Executable | None:
        """Load this device's part of the prepared plan as program `number`, whose first iteration is `iteration`.

        It continues with the carried tensors of program `before`, if that is not None. Returns None if the plan has no task on this device.
        Raises SchedcastError if the part cannot run.
        """
        local, tensors = self._take_prepared()
        working = devices_of(local.whole)
        largest = self.channel.max_over([rank for rank, device in enumerate(self.devices) if device in working])
        start = Start(iteration, None if before is None else self._programs[before][1])
        kept = tuple(name for name in keep if name in local.values)
        program = None if local.empty else self.backend.load(local, tensors, seed, kept, start)
        if program is not None and hasattr(program, "max_over_ranks"):
            program.max_over_ranks = largest
        self._programs[number] = local, program
        return program

    def drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._programs.pop(number, None)

    def run(self, number: int, steps: int, feeds: Sequence[Named] | None) -> dict[str, Any]:
        """Run `steps` periods, starting together with the other ranks; 0 steps drain the program. Returns the answer for rank 0."""
        local, program = self._programs[number]
        self.channel.barrier()
        begin_s = time.perf_counter()
        if program is None:
            return {"begin_s": begin_s, "ends_s": [], "times": [], "losses": {}}
        chunk = program.run(steps, None if feeds is None else list(feeds)) if steps else program.sync()
        return {
            "begin_s": begin_s,
            "ends_s": chunk.ends_s,
            "times": [[local.numbers[t.index], t.period, t.start_s, t.end_s, t.core] for t in chunk.times],
            "losses": _losses(program, local),
        }

    def trace(self, number: int) -> dict[str, Any]:
        """Run a few more periods to time tasks. Returns the answer for rank 0."""
        local, program = self._programs[number]
        self.channel.barrier()
        times = program.trace() if program is not None else []
        return {"begin_s": 0.0, "times": [[local.numbers[t.index], t.period, t.start_s, t.end_s, t.core] for t in times]}

    def difference(self, number: int, expected: Named, gradients: bool) -> dict[str, Any]:
        """The largest difference between this device's parameters, or gradients, and `expected`. Returns the answer for rank 0."""
        _, program = self._programs[number]
        if program is None:
            return {"difference": 0.0}
        return {"difference": program.gradient_difference(expected) if gradients else program.parameter_difference(expected)}

    def send_current(self, number: int, names: Sequence[str]) -> None:
        """Send the named carried values that are on this device to rank 0, in order."""
        local, program = self._programs[number]
        for name in names:
            if program is not None and name in program.binding.carried and local.values[name].device == local.device:
                self.channel.give(program.binding.carried[name])

    def peak_bytes(self, seed: int) -> dict[str, Any]:
        """Peak bytes of this process's allocator for its part of the prepared plan. Returns the answer for rank 0."""
        local, tensors = self._take_prepared()
        self.channel.barrier()
        return {"peak_bytes": {} if local.empty else self.backend.peak_bytes(local, tensors, seed)}


def cpu_seconds() -> dict[str, Any]:
    """CPU seconds that this process and its children have used so far. Returns the answer for rank 0."""
    return {"cpu_s": cpu_s()}


def _losses(program: Executable, local: LocalPlan) -> dict[int, list[float]]:
    """The new losses by iteration, in the order of `local.losses`. Removes them from the program, so that each is reported once."""
    if not local.losses:
        program.losses.clear()
        return {}
    return {iteration: [float(loss) for loss in program.losses.pop(iteration)] for iteration in list(program.losses)}


def _local_backend(kind: str, ranks: Ranks, device: str, sms: int, precision: str) -> "CpuBackend | CudaBackend":
    if kind == "cpu":
        from executors.cpu.backend import CpuBackend

        return CpuBackend(_alone(Device(device, "cpu", sms, {}, "memory")), cores=cores_of(ranks.local_rank, sms))
    from executors.cuda.backend import CudaBackend

    return CudaBackend(_alone(Device(device, "gpu", sms, {}, "memory")), own_gpu(ranks), precision=precision)


def own_gpu(ranks: Ranks) -> "Driver":
    """The driver of this process's GPU. Raises SchedcastError if there is none."""
    from executors.cuda import torch_driver

    return torch_driver.gpu(ranks.device_index(torch_driver.visible_gpus()))


def gpu_name(driver: "Driver") -> str:
    """A name of the GPU that no other GPU of the job has: its node and UUID. Empty if the driver knows no UUID."""
    uuid = getattr(driver, "uuid", "")
    return f"{socket.gethostname()} {uuid}" if uuid else ""


def check_distinct(names: Sequence[str]) -> None:
    """Raise SchedcastError if two ranks have the same GPU. NCCL would refuse them later, with a message that names neither."""
    owner: dict[str, int] = {}
    for rank, name in enumerate(names):
        if name and owner.setdefault(name, rank) != rank:
            raise SchedcastError(
                f"processes {owner[name]} and {rank} have the same GPU ({name.split()[-1]}): start one process per GPU, or split one GPU in"
                " one process with --partition"
            )


def _alone(device: Device) -> Machine:
    """A machine of one device. It has no bandwidths, since a backend only reads which devices exist."""
    return Machine("this process", (device,), (Memory("memory", 0, 0.0, 0),))


def cores_of(local_rank: int, count: int) -> list[int]:
    """The cores for a process that needs `count` of them. Processes share cores if the node has too few."""
    cores = available_cores()
    return [cores[(local_rank * count + i) % len(cores)] for i in range(count)]


def as_parameters(tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> dict[str, torch.Tensor]:
    """`tensors`, with those of `names` turned back into nn.Parameter: programs read every other tensor as a default input."""
    return {name: torch.nn.Parameter(t, requires_grad=False) if name in names else t for name, t in tensors.items()}


#: Answers a request about one of PyTorch's own loops, given this process's `LoadedPlans` and the request's parts.
Loops = Callable[..., dict[str, Any]]

#: Commands that every process executes in step with the others. A failure here ends the process, since the others are waiting for it.
COLLECTIVE_COMMANDS = ("run", "trace", "peak_bytes", "current")


def serve_rank(ranks: Ranks, loops: Loops) -> int:
    """Execute rank 0's commands. Returns the status to exit with."""
    ignore_stopping()  # Ctrl-C and SIGTERM reach every process; rank 0 handles them, and when it ends its connections close
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        channel = join_channel(ranks)
        return channel if isinstance(channel, int) else RankServer(channel, loops).serve()
    except PeerLostError:
        return stopped_status() if terminated() else 1
    except SchedcastError as error:
        return _report(ranks, str(error), error.exit_status)
    except Exception as error:
        return _report(ranks, f"failed: {brief(error)}", 1)


def _report(ranks: Ranks, message: str, status: int) -> int:
    """Print an error that cannot be reported to rank 0. Returns `status`."""
    time.sleep(GRACE_S)
    print(f"schedcast: process {ranks.rank} of {ranks.world}: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return status


class RankServer:
    """Executes the commands that arrive on a control channel, on this process's device."""

    def __init__(self, channel: ControlChannel, loops: Loops | None = None):
        """`loops` answers the requests about PyTorch's own loops."""
        self.channel, self._loops = channel, loops
        self.loaded: LoadedPlans | None = None

    def serve(self) -> int:
        """Execute commands until rank 0 ends. Returns rank 0's exit status."""
        while True:
            message, tensors = self.channel.receive()
            if message["command"] == "end":
                self.channel.close()
                return message["status"]
            try:
                answer = self._execute(message, tensors)
            except PeerLostError:
                raise
            except Exception as error:
                if message["command"] in COLLECTIVE_COMMANDS:
                    raise
                answer = {"error": str(error) if isinstance(error, SchedcastError) else brief(error)}
            self.channel.gather(answer)

    def _execute(self, message: dict[str, Any], tensors: Named) -> dict[str, Any]:
        """Execute a command. Returns the answer for rank 0."""
        loaded = self.loaded
        if loaded is not None:
            loaded.drop(message.get("dropped", ()))
        match message["command"]:
            case "open":
                self.loaded = LoadedPlans.open(self.channel, message["kind"], message["devices"], message["sms"], message["precision"])
                return {"gpu": self.loaded.gpu}
            case "cpu_seconds":
                return cpu_seconds()
        assert loaded is not None, "`open` comes before"
        match message["command"]:
            case "prepare":
                loaded.prepare(load(message["plan"]), as_parameters(tensors, message["parameters"]))
            case "load":
                loaded.load(message["program"], message["seed"], message["keep"], message["iteration"], message["before"])
            case "run":
                torch.backends.cudnn.deterministic = message["deterministic"]
                names = message["feeds"]
                feeds = None if names is None else [{name: tensors[f"{i} {name}"] for name in names} for i in range(message["steps"])]
                return loaded.run(message["program"], message["steps"], feeds)
            case "loop":
                assert self._loops is not None, "whoever asks for a loop has given `loops`"
                return self._loops(loaded, *message["request"])
            case "trace":
                return loaded.trace(message["program"])
            case "difference":
                return loaded.difference(message["program"], tensors, message["gradients"])
            case "current":
                loaded.send_current(message["program"], message["names"])
            case "peak_bytes":
                return loaded.peak_bytes(message["seed"])
        return {}
