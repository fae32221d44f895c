"""What the kernels of a recording reach of their GPU, in sentences and a table."""

from collections.abc import Sequence

from traces import units
from traces.documents.replay_result import KernelUse, MemoryPeak, Roofline

TITLE = "What the kernels reach of the GPU, in a step"
MODULES_TITLE = "The same by module, forward and backward"
#: The heads of the first columns.
KERNELS, MODULES = "kernels", "modules"
#: Rows of the table at most.
SHOWN = 12


def words(roofline: Roofline) -> list[str]:
    """The use of the GPU's FLOP/s over the step, or what is missing to know it, one sentence per item."""
    if not roofline.shapes:
        return ["Shapes were not recorded, so that nothing is known of FLOPs and bandwidth: record with record_shapes=True."]
    if not roofline.known_gpu:
        gpu = f"there is no data sheet of {roofline.gpu}" if roofline.gpu else "the trace does not say which GPU it is of"
        return [f"Shares of the GPU's peak and bandwidth are not known: {gpu}."]
    if roofline.mfu is None:
        return []
    least = any((row.flops and row.known_share < 1) or (row.name == "attention" and not row.flops) for row in roofline.kernels)
    share = units.percent(roofline.mfu, signed=False)
    return [f"Matrix products and convolutions use {'at least ' if least else ''}{share} of the FLOP/s of the {roofline.gpu} (MFU)."]


def memory_words(peaks: Sequence[MemoryPeak]) -> list[str]:
    """The peak of each GPU's memory, one sentence per item."""
    sentences = []
    for peak in peaks:
        place = f" of rank {peak.rank}" if len({each.rank for each in peaks}) > 1 else f" of GPU {peak.device}" if len(peaks) > 1 else ""
        if peak.reserved_bytes is None:
            sentences.append(f"Peak memory{place}: {units.memory(peak.allocated_bytes)} above what was allocated when the recording began.")
        else:
            of = f", of {units.memory(peak.memory_bytes)}" if peak.memory_bytes else ""
            held = f"{units.memory(peak.allocated_bytes)} allocated, {units.memory(peak.reserved_bytes)} reserved{of}"
            sentences.append(f"Peak memory{place}: {held}.")
    return sentences


def cells(rows: Sequence[KernelUse], first: str = KERNELS) -> list[dict[str, str]]:
    """One row per class of kernels or modules, the longest first, column name to text. `first`: the head of the first column."""
    return [
        {
            first: row.name,
            "ms": units.ms(row.seconds),
            "of the kernels": units.percent(row.share, signed=False),
            "TFLOP": f"{row.flops / 1e12:.3g}" if row.flops else units.NONE,
            "of peak": _share(row, row.peak_share if row.flops else None),
            "of bandwidth": _share(row, row.bandwidth_share),
            "of the roofline": _share(row, row.roofline_share),
        }
        for row in rows[:SHOWN]
    ]


def _share(row: KernelUse, share: float | None) -> str:
    return units.percent(share, signed=False) if row.bytes else units.NONE
