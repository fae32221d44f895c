"""A simulated GPU whose backward kernels take opaque results only as their own forward kernels returned them."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from simulator.plan.ops import row
from tests.fake_gpu import FakeGpu
from tests.fake_gpu.errors import FakeGpuError

#: By backward op, the positions of its arguments that are opaque results of its forward op.
READ = {
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": (5,),
    "aten.native_batch_norm_backward": (5, 6),
    "aten.native_layer_norm_backward": (3, 4),
    "aten.native_group_norm_backward": (2, 3),
    "aten._fused_rms_norm_backward": (3,),
    "aten._weight_norm_interface_backward": (3,),
    "aten.native_dropout_backward": (1,),
    "aten.log_sigmoid_backward": (2,),
    "aten._embedding_bag_backward": (3, 4, 5),
    "aten._ctc_loss_backward": (6,),
}


class StrictGpu(FakeGpu):
    """Keeps opaque results as no plan says: in every second element, the first dimension innermost.

    `taken`: how often each backward op took them, replays included. The ops refuse any other strides, shape, place or copy.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self.taken: Counter[str] = Counter()
        self._returned: dict[int, tuple] = {}  # by storage, the geometry of the last opaque result on it

    def _run(self, func: Callable, args: tuple, kwargs: dict) -> object:
        name = str(func.overloadpacket)
        if name in READ:
            args = tuple(self._take(name, a) if i in READ[name] and isinstance(a, Tensor) else a for i, a in enumerate(args))
        results = super()._run(func, args, kwargs)
        opaque = row(str(func)).opaque
        if not opaque:
            return results
        return tuple(self._keep(result) if position in opaque else result for position, result in enumerate(results))

    def _keep(self, result: Tensor) -> Tensor:
        reversed_dims = tuple(reversed(range(result.dim())))
        spread = torch.zeros(*result.shape[::-1], 2, dtype=result.dtype)[..., 0].permute(reversed_dims).copy_(result)
        self._returned[spread.untyped_storage()._cdata] = _geometry(spread)
        return spread

    def _take(self, name: str, given: Tensor) -> Tensor:
        expected = self._returned.get(given.untyped_storage()._cdata)
        if expected != _geometry(given):
            raise FakeGpuError(f"{name} reads {expected} by address and got {_geometry(given)}")
        self.taken[name] += 1
        return given.contiguous()


def _geometry(tensor: Tensor) -> tuple:
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
