"""Finds this process's GPU, and checks that no two processes of a job have the same one."""

import socket
from collections.abc import Sequence

from executors.cuda import torch_driver
from executors.cuda.driver import Driver
from executors.distributed.ranks import Ranks
from traces.errors import SchedcastError


def own_gpu(ranks: Ranks) -> Driver:
    """The driver of this process's GPU. Raises SchedcastError if there is none."""
    return torch_driver.gpu(ranks.device_index(torch_driver.visible_gpus()))


def name_of(driver: Driver) -> str:
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
