"""What each memory of a machine must hold at its highest moment, against its size."""

from collections.abc import Iterable, Mapping

from simulator.engine.memory.over_time import Steps, summed_over_devices
from simulator.machine.machine import Machine
from traces.documents.comparison import MemoryNeed
from traces.errors import Code, SchedcastError


class TooLargeError(SchedcastError):
    """A strategy does not even plan a job, because what it must hold exceeds a memory by `excess_bytes`."""

    code = Code.MEMORY

    def __init__(self, message: str, excess_bytes: int):
        super().__init__(message)
        self.excess_bytes = excess_bytes


def bytes_by_memory(memory: Mapping[str, Steps], machine: Machine) -> dict[str, int]:
    """The most bytes in each of the machine's memories at one moment. On a CPU this includes the host's bytes.

    `memory`: bytes over time by device (`over_time.memory_over_time`).
    """
    places: dict[str, dict[str, Steps]] = {}
    for place, steps in memory.items():
        places.setdefault(machine.memory_name(place), {})[place] = steps
    names = {own.name for own in machine.memories}
    return {name: max(count for _, count in summed_over_devices(steps)) for name, steps in places.items() if name in names}


def memory_needs(needed_bytes: Mapping[str, int], machine: Machine) -> tuple[MemoryNeed, ...]:
    """The needs by memory, in the machine's order; a memory that nothing uses is left out."""
    return tuple(
        MemoryNeed(name=memory.name, needed_bytes=needed_bytes[memory.name], size_bytes=memory.size_bytes)
        for memory in machine.memories
        if memory.name in needed_bytes
    )


def excess_bytes(needs: Iterable[MemoryNeed]) -> int:
    """By how many bytes the memory that is exceeded most is too small; negative if all are large enough."""
    return max((need.needed_bytes - need.size_bytes for need in needs), default=0)
