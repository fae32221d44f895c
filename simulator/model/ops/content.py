"""The content of a tensor as text, for what a model keeps outside its parameters and buffers, and back."""

import base64

import torch


def text_of(tensor: torch.Tensor) -> str:
    """Return the elements of a tensor, in their order, as base64 text."""
    elements = tensor.detach().contiguous().view(-1)
    return base64.b64encode(elements.view(torch.uint8).numpy().tobytes() if elements.numel() else b"").decode()


def tensor_of(text: str, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Return the tensor whose elements `text_of` wrote."""
    data = bytearray(base64.b64decode(text))
    return (
        (torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)).view(getattr(torch, dtype)).view(shape)
    )
