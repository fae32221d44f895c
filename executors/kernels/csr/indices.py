"""A cache of index arrays as tensors on a device."""

from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

_cache: WeakValueDictionary[tuple[int, torch.device], Tensor] = WeakValueDictionary()


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """`array` as a tensor on `device`. All callers share one tensor, which is freed when no caller holds it any more."""
    key = (id(array), device)
    tensor: Any = _cache.get(key)
    if tensor is None:
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(device)
        tensor.source_array = array  # keeps the array alive, so that no other array gets its id while the tensor is in use
        _cache[key] = tensor
    return tensor
