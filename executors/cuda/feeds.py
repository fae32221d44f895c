"""What a plan is fed with, where it reads it: in the GPU's memory, or in pinned memory of the host, from which tasks fetch it."""

from collections.abc import Callable, Mapping, Sequence

import torch

from executors.binding import Binding, Instance, apply_views
from executors.cuda.driver import Driver
from simulator.machine.machine import HOST

#: Tensors by the name of the value that they are.
Placed = Mapping[str, torch.Tensor]

#: Copies many tensors with few launches (private, like the other foreach functions).
copy_all = torch._foreach_copy_


class Feeds:
    """The fed values of one program."""

    def __init__(self, binding: Binding, driver: Driver):
        values = binding.plan.values
        self._driver, self._slot = driver, binding.slot
        self._fed = [(name, source, values[name].device == HOST) for name, source in binding.fed.items()]
        self.at_host = frozenset(name for name, _, at_host in self._fed if at_host)

    def place(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The values that come from those of the job's inputs that are given, by name; the host's are copies."""
        whole: dict[tuple[str, bool], torch.Tensor] = {}
        found = {}
        for name, source, at_host in self._fed:
            if source.value not in tensors:
                continue
            key = (source.value, at_host)
            if key not in whole:
                given = tensors[source.value].detach()
                whole[key] = self._pinned(given) if at_host else given.to(self._driver.device)
            found[name] = apply_views(whole[key], source)
        return found

    def give(self, instance: Instance, placed: Placed) -> None:
        """Put one iteration's values in place."""
        for name, tensor in placed.items():
            instance.slots[self._slot[name]] = tensor

    def own(self, placed: Placed) -> dict[str, torch.Tensor]:
        """Tensors of the same content that nobody else has, for `refill`."""
        return {name: self._pinned(tensor) if name in self.at_host else tensor.clone() for name, tensor in placed.items()}

    def refill(self, owned: Sequence[Placed], given: Sequence[Placed], wait: Callable[[], None]) -> None:
        """Copy the values of each of `given` into those of `owned`: the GPU's on the current stream.

        The host copies its own itself, after `wait`, which returns when nothing reads them any more.
        """
        pairs = [(name, tensor, values[name]) for own, values in zip(owned, given, strict=True) for name, tensor in own.items()]
        there = [(target, source) for name, target, source in pairs if name not in self.at_host]
        here = [(target, source) for name, target, source in pairs if name in self.at_host]
        if there:
            copy_all(*map(list, zip(*there, strict=True)))
        if here:
            wait()
        for target, source in here:
            target.copy_(source)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory, with the same strides where they leave no holes."""
        if tensor.device.type != "cpu":
            self._driver.synchronize()  # whichever stream made it
        flat = self._driver.host_tensor(tensor.numel() * tensor.element_size(), pinned=True).view(tensor.dtype)
        return flat.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride()).copy_(tensor)
