"""Index arrays as tensors on a device, moved there once."""

from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

_moved: WeakValueDictionary[tuple[int, torch.device], Tensor] = WeakValueDictionary()


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """`array` as a tensor on `device`: one tensor for all who ask, as long as somebody holds it."""
    key = (id(array), device)
    found = _moved.get(key)
    if found is None:
        found = torch.from_numpy(np.ascontiguousarray(array)).to(device)
        found.moved_from = array  # so that its id stands for no other array while the tensor is in use
        _moved[key] = found
    return found
