"""Machines of several simulated GPUs in one process, and the backend that runs plans on them."""

from collections.abc import Sequence

from executors.cuda.backend import CudaBackend
from simulator.machine.machine import Machine
from simulator.machine.presets import gpu_machine, together
from tests.fake_gpu import FakeGpu
from traces.documents.profile import Identity, Profile, Transfer


def several_gpus(count: int, transfer: Transfer | None = None) -> Machine:
    """H200s of one process. `transfer`: how long copies from any of them to any other take."""
    transfer = transfer or Transfer(latency_s=5e-6, bytes_per_s=1e11)
    names = [f"cuda:{number}" for number in range(count)]
    one = gpu_machine(Profile(identity=Identity(kind="gpu", gpu="NVIDIA H200", sms=132)))
    return together(one, count, {f"{a}>{b}": transfer for a in names for b in names if a != b})


def backend_on(gpus: Sequence[FakeGpu], machine: Machine, mode: str = "eager") -> CudaBackend:
    return CudaBackend(machine, gpus[0], mode, others=gpus[1:])
