"""What a memory holds, and that it is too small, in words: the same in predictions and in refusals."""

from collections.abc import Sequence
from types import MappingProxyType

from simulator.plan.task import ACTIVATION, BUFFER, GRADIENT, INPUT, OPTIMIZER_STATE, PARAMETER, SCRATCH
from traces import units
from traces.documents.comparison import MemoryNeed
from traces.documents.timeline import AtPeak

#: The kinds of values, in words.
KIND_NAMES = MappingProxyType({
    PARAMETER: "parameters", OPTIMIZER_STATE: "optimizer state", BUFFER: "buffers", INPUT: "inputs", ACTIVATION: "activations",
    GRADIENT: "gradients", SCRATCH: "scratch",
})  # fmt: skip
#: A storage is named if it holds at least this share of the peak.
NAMED_SHARE = 0.02


def peak_words(peak: AtPeak) -> str:
    """Return a phrase that says what a device holds at its peak, and when the peak is."""
    when = f" at {units.duration(peak.time_s)}" if peak.time_s >= 0 else " before the steady state"
    where = f" in {peak.layer} {peak.phase}" if peak.layer else f" in {peak.task}" if peak.task else ""
    phrases = []
    for kind, size in peak.by_kind.items():
        own = [storage for storage in peak.largest if storage.kind == kind and storage.bytes >= NAMED_SHARE * peak.bytes]
        named = ", ".join(f"{storage.layer or storage.storage} {units.memory(storage.bytes)}" for storage in own[:2])
        if size >= NAMED_SHARE * peak.bytes:
            phrases.append(f"{KIND_NAMES[kind]} {units.memory(size)}{f' (largest: {named})' if named else ''}")
    return f"peak of {units.memory(peak.bytes)} on {peak.device}{when}{where}: {', '.join(phrases)}"


def shortfall_words(needs: Sequence[MemoryNeed]) -> str:
    """Return a phrase that says by how much a plan does not fit: "needs 21.3 GiB, 16 GiB there, 5.3 GiB too much".

    It is about the memory that is exceeded most. If the machine has several, the phrase names it and counts the others that are too small.
    """
    overfull = sorted((need for need in needs if need.needed_bytes > need.size_bytes), key=lambda n: n.size_bytes - n.needed_bytes)
    worst, others = overfull[0], len(overfull) - 1
    name = f" in {worst.name}" if len(needs) > 1 else ""
    too = f"; {others} other {'memory is' if others == 1 else 'memories are'} too small as well" if others else ""
    return (
        f"needs {units.memory(worst.needed_bytes)}{name}, {units.capacity(worst.size_bytes)} there,"
        f" {units.memory(worst.needed_bytes - worst.size_bytes)} too much{too}"
    )


def holders_words(peaks: Sequence[AtPeak]) -> str:
    """Return a phrase that says what the device with the highest peak holds, and the peaks of the other devices."""
    highest = max(peaks, key=lambda peak: peak.bytes)
    others = ", ".join(f"{peak.device} {units.memory(peak.bytes)}" for peak in peaks if peak is not highest)
    return peak_words(highest) + (f"; at their own peaks {others}" if others else "")


def batch_words(largest_batch: int | None) -> str:
    """Return a phrase that names the largest batch that fits; None if none is known."""
    return "no batch is predicted to fit" if largest_batch is None else f"the largest batch that fits is {largest_batch}"
