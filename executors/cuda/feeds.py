"""Places the inputs that a plan is fed with: in the GPU's memory, or in pinned host memory if tasks fetch them from the host."""

from collections.abc import Callable, Mapping, Sequence

import torch

from executors.binding import Binding, Instance, fits, input_piece, with_strides
from executors.cuda.driver import Driver
from simulator.machine.machine import HOST

#: Tensors by value name.
Placed = Mapping[str, torch.Tensor]

#: Copies many tensors with few launches. A private function, like all foreach functions.
copy_all = torch._foreach_copy_


class Feeds:
    """The fed values of one program."""

    def __init__(self, binding: Binding, driver: Driver):
        values = self._values = binding.plan.values
        self._driver, self._slot = driver, binding.slot
        self._fed = [(name, source, values[name].device == HOST) for name, source in binding.fed.items()]
        self.at_host = frozenset(name for name, _, at_host in self._fed if at_host)

    def place(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The fed values that come from the inputs in `tensors`, by value name. Values in host memory are copies."""
        whole: dict[tuple[str, bool], torch.Tensor] = {}
        placed = {}
        for name, source, at_host in self._fed:
            if source.value not in tensors:
                continue
            key = (source.value, at_host)
            if key not in whole:
                tensor = tensors[source.value].detach()
                whole[key] = self._pinned(tensor) if at_host else tensor.to(self._driver.device)
            value = self._values[name]
            tensor = input_piece(whole[key], value)
            if not fits(tensor, value):  # a piece cut along another dimension than the first
                tensor = self._pinned(tensor) if at_host else with_strides(tensor, value.strides)
            placed[name] = tensor
        return placed

    def put(self, instance: Instance, placed: Placed) -> None:
        """Put one iteration's values into its instance."""
        for name, tensor in placed.items():
            instance.slots[self._slot[name]] = tensor

    def copies(self, placed: Placed) -> dict[str, torch.Tensor]:
        """Copies of the values, which `refill` can overwrite."""
        return {name: self._pinned(tensor) if name in self.at_host else tensor.clone() for name, tensor in placed.items()}

    def refill(self, targets: Sequence[Placed], sources: Sequence[Placed], wait: Callable[[], None]) -> None:
        """Copy the values of `sources` into those of `targets`, pair by pair.

        Values in the GPU's memory are copied on the current stream. Values in host memory are copied by the host, after `wait`, which
        returns when no task reads the targets any more.
        """
        pairs = [(name, tensor, source[name]) for target, source in zip(targets, sources, strict=True) for name, tensor in target.items()]
        on_gpu = [(target, source) for name, target, source in pairs if name not in self.at_host]
        on_host = [(target, source) for name, target, source in pairs if name in self.at_host]
        if on_gpu:
            copy_all([target for target, _ in on_gpu], [source for _, source in on_gpu])
        if on_host:
            wait()
        for target, source in on_host:
            target.copy_(source)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory. It has the same strides if the tensor is dense."""
        if tensor.device.type != "cpu":
            self._driver.synchronize()  # any stream may have written the tensor
        flat = self._driver.host_tensor(tensor.numel() * tensor.element_size(), pinned=True).view(tensor.dtype)
        return flat.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride()).copy_(tensor)
