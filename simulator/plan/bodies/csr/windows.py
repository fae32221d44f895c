"""Patterns of ops that slide windows: the Kronecker product of the channels' pattern and of both axes' patterns."""

from typing import TYPE_CHECKING

import numpy as np

from simulator.plan.bodies.csr import pattern as patterns
from simulator.plan.bodies.csr.pattern import Pattern

if TYPE_CHECKING:
    from simulator.plan.bodies.csr.mask import Mask


def axis(extent: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Pattern:
    """[extent, out]: which places of an axis each window covers. Source: the place within the window. Padding has no entries."""
    window, place = np.divmod(np.arange(out * kernel), kernel)
    covered = window * stride - padding + place * dilation
    inside = (covered >= 0) & (covered < extent)
    return patterns.from_entries(extent, out, covered[inside], window[inside], place[inside])


def adaptive_axis(extent: int, out: int) -> Pattern:
    """[extent, out]: which places each of `out` bins averages, by PyTorch's definition of the bins. Source: 0."""
    bins = [np.arange(o * extent // out, -(-(o + 1) * extent // out)) for o in range(out)]
    window = np.repeat(np.arange(out), [len(b) for b in bins])
    covered = np.concatenate(bins)
    return patterns.from_entries(extent, out, covered, window, np.zeros_like(covered))


def convolution(channels: int, out_channels: int, groups: int, height: Pattern, width: Pattern, kernel: tuple[int, int]) -> Pattern:
    """Rows (channel, y, x) of the input, columns of the output. Source: the flat position in the weight."""
    across = patterns.blocks(groups, channels // groups, out_channels // groups)
    return patterns.kron(across, patterns.kron(height, width, kernel[1]), kernel[0] * kernel[1])


def masked_convolution(
    channels: int, out_channels: int, groups: int, height: Pattern, width: Pattern, kernel: tuple[int, int], mask: "Mask"
) -> Pattern:
    """The entries of `convolution` whose weight is kept. Built from the kept weights alone, because they are few."""
    plane = patterns.kron(height, width, kernel[1])
    order = np.argsort(plane.source, kind="stable")  # entries of the plane by the weight that they multiply
    begin = np.searchsorted(plane.source[order], np.arange(kernel[0] * kernel[1] + 1))
    kept = mask.kept((out_channels, channels // groups, *kernel))
    pair, place = np.divmod(kept, kernel[0] * kernel[1])
    out_channel, channel = np.divmod(pair, channels // groups)
    channel += out_channel // (out_channels // groups) * (channels // groups)
    lengths = begin[place + 1] - begin[place]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entry = order[np.repeat(begin[place], lengths) + within]
    row = np.repeat(channel * plane.rows, lengths) + plane.entry_rows[entry]
    col = np.repeat(out_channel * plane.cols, lengths) + plane.indices[entry]
    return patterns.from_entries(channels * plane.rows, out_channels * plane.cols, row, col, np.repeat(kept, lengths))


def pooling(channels: int, height: Pattern, width: Pattern, kernel: tuple[int, int]) -> Pattern:
    """Rows (channel, y, x) of the input, columns of the output. Source: the place within the window."""
    return patterns.kron(patterns.identity(channels), patterns.kron(height, width, kernel[1]), 0)


def linear(rows: int, cols: int, mask: "Mask") -> Pattern:
    """The transpose of a pruned weight [cols, rows]. Source: the flat position in the weight."""
    kept = mask.kept((cols, rows))
    col, row = np.divmod(kept, rows)
    return patterns.from_entries(rows, cols, row, col, kept)
