"""Results that a forward op saves for its backward ops beyond the plan's values, in a slot of the instance that belongs to no value."""

import json
from collections.abc import Iterable

import torch

from executors.binding import Binding, Instance
from simulator.plan.task import Task

#: The position of the forward op's second result (save_mean, logsumexp) in the arguments of the backward ops of batch-norm and attention.
#: The slot is named after that value.
_POSITION = 5


def second_result(backward: Task) -> str | None:
    """The value that a backward op reads as its forward op's second result; None if it has no such argument."""
    argument = json.loads(backward.body.args)[_POSITION]
    return backward.inputs[argument["$"]].value if argument is not None else None


class SavedResults:
    """The slot of one forward op. The last of its backward ops frees the slot; without any, nothing is saved.

    `has_forward`: whether the plan contains the forward op. It does not if a backward op is timed alone; then there is nothing to take.
    """

    def __init__(self, binding: Binding, value: str, forward: str, backward: str):
        """`value`: the forward op's second result. `forward`, `backward`: the targets of the two ops."""
        self.users = sum(op.body.target == backward and second_result(op) == value for op in binding.ops)
        self.has_forward = any(op.body.target == forward and write.value == value for op in binding.ops for write in op.writes)
        self._slot = binding.local_slot(f"{value}::saved")

    def save(self, instance: Instance, items: Iterable) -> None:
        """Save the items for the backward ops."""
        if self.users:
            instance.slots[self._slot] = (tuple(items), [self.users])  # type: ignore[call-overload]  # no tensor, as no value

    def take(self, instance: Instance) -> tuple:
        """The items that the forward op saved. The last backward op's call frees them."""
        items, users_left = instance.slots[self._slot]
        users_left[0] -= 1
        if not users_left[0]:
            instance.slots[self._slot] = None
        for item in items:
            if isinstance(item, torch.Tensor) and item.is_cuda:  # the backward op may run on another stream than the forward op
                item.record_stream(torch.cuda.current_stream(item.device))
        return items
