"""Starts several processes of one job with torchrun's variables, but without torchrun, which ends all of them when the first one ends."""

import socket
from pathlib import Path

import pytest

from tests.support.cli_process import COMMAND_LINE, Ended, environment
from tests.support.warm_processes import WarmProcess

#: Longest wait, in seconds, for processes that end within a few seconds. If it runs out, they hang.
HANGS_S = 120


def require_gloo() -> None:
    """Skip the test if PyTorch has no gloo."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("PyTorch is built without torch.distributed or gloo")


def free_port() -> int:
    """A TCP port of this machine that is free now."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def rank_variables(rank: int, count: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets for one of `count` processes on this machine."""
    numbers = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"} | {name: str(number) for name, number in numbers.items()}


def begin(count: int, arguments: list[str], folder: Path) -> list[WarmProcess]:
    """Start `python ARGUMENTS` in `count` processes. Returns them in rank order."""
    port = free_port()
    return [WarmProcess(arguments, folder, environment(folder, **rank_variables(rank, count, port))) for rank in range(count)]


def end(processes: list[WarmProcess]) -> list[Ended]:
    """Wait for all processes to end, and kill those that hang."""
    try:
        outputs = [process.communicate(timeout=HANGS_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Ended(process.returncode, out, err) for process, (out, err) in zip(processes, outputs, strict=True)]


def run_ranks(count: int, folder: Path) -> list[Ended]:
    """Run `rank_process.py` in `count` processes."""
    require_gloo()
    return end(begin(count, ["-m", "tests.support.rank_process"], folder))


def schedcast(count: int, *arguments: object, folder: Path) -> list[Ended]:
    """Run the command line in `count` processes."""
    require_gloo()
    return end(begin(count, ["-c", COMMAND_LINE, *map(str, arguments)], folder))
