"""Several processes of one job, as torchrun starts them, without torchrun: it would end all of them when the first one ends."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_process import Ended, environment

#: Longest wait for what takes seconds: reaching it means that the processes hang.
HANGS_S = 120


def require_gloo() -> None:
    """Skip the test where PyTorch has no gloo."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("PyTorch is built without torch.distributed or gloo")


def free_port() -> int:
    """A TCP port of this machine that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def rank_variables(rank: int, count: int, port: int) -> dict[str, str]:
    """What torchrun sets for one of `count` processes of this machine."""
    numbers = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"} | {name: str(number) for name, number in numbers.items()}


def begin(count: int, arguments: list[str], folder: Path) -> list[subprocess.Popen]:
    """Start `python ARGUMENTS` so often, in rank order."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
            env=environment(folder, **rank_variables(rank, count, port), STEPCAST_CACHE=os.environ["STEPCAST_CACHE"]),
        )
        for rank in range(count)
    ]  # fmt: skip


def end(processes: list[subprocess.Popen]) -> list[Ended]:
    """Wait for all; none is left behind."""
    try:
        said = [process.communicate(timeout=HANGS_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Ended(process.returncode, out, err) for process, (out, err) in zip(processes, said, strict=True)]


def run_team(count: int, folder: Path) -> list[Ended]:
    """`team_process.py` in so many processes."""
    require_gloo()
    return end(begin(count, ["-m", "tests.support.team_process"], folder))


def stepcast(count: int, *arguments: object, folder: Path) -> list[Ended]:
    """The command line in so many processes."""
    require_gloo()
    return end(begin(count, ["-m", "ui.cli", *map(str, arguments)], folder))
