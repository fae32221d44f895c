"""Attention kernels that keep logsumexp in memory as CUDA's do, and whose backward finds it by address, as flash attention does."""

import torch

from executors.kernels.lowering import attention

#: Their name among `attention.KERNELS`.
NAME = "raw"


def install(monkeypatch, padded: int = 1) -> None:
    """Let the executors choose these kernels where they would choose the CPU's. Rows of logsumexp are padded to a multiple of `padded`."""
    own = attention.choice
    monkeypatch.setitem(attention.KERNELS, NAME, _kernels(padded))
    monkeypatch.setattr(attention, "choice", lambda call: NAME if (name := own(call)) == "cpu" else name)


def _kernels(padded: int) -> attention.Kernel:
    def forward(call):
        out, logsumexp, saved = attention.KERNELS["cpu"].forward(call)
        return out, torch.nn.functional.pad(logsumexp, (0, -logsumexp.size(2) % padded)).contiguous(), saved

    def backward(grad, call, out, logsumexp, saved):
        batch, heads, queries, _ = call.query.shape
        row = -(-queries // padded) * padded
        rows = torch.as_strided(logsumexp, (batch, heads, queries), (heads * row, row, 1), 0)
        return attention.KERNELS["cpu"].backward(grad, call, out, rows, saved)

    return attention.Kernel(forward, backward, padded)
