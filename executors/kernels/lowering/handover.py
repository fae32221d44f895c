"""What a forward op leaves for its backward op beyond the plan's values waits in a slot of the instance that no value has."""

import json
from collections.abc import Iterable

import torch

from executors.binding import Binding, Instance
from simulator.plan.task import Task

#: Where the backward ops of batch-norm and attention take the forward op's second result (save_mean, logsumexp), after which the slot is
#: named.
_POSITION = 5


def second_result(backward: Task) -> str | None:
    """The value that a backward op reads as its forward op's second result."""
    given = json.loads(backward.body.args)[_POSITION]
    return backward.inputs[given["$"]].value if given is not None else None


class Handover:
    """One forward op's slot. The last of its backward ops frees it; without any, nothing is left there.

    `follows`: whether the plan holds the forward op. Where it does not (a backward op timed alone), there is nothing to take.
    """

    def __init__(self, binding: Binding, value: str, forward: str, backward: str):
        self.users = sum(op.body.target == backward and second_result(op) == value for op in binding.ops)
        self.follows = any(op.body.target == forward and write.value == value for op in binding.ops for write in op.writes)
        self._slot = binding.local_slot(f"{value}::handover")

    def leave(self, instance: Instance, items: Iterable) -> None:
        """Put the items there."""
        if self.users:
            instance.slots[self._slot] = (tuple(items), [self.users])

    def take(self, instance: Instance) -> tuple:
        """The items."""
        items, waiting = instance.slots[self._slot]
        waiting[0] -= 1
        if not waiting[0]:
            instance.slots[self._slot] = None
        for item in items:
            if isinstance(item, torch.Tensor) and item.is_cuda:  # the backward may run on another stream than the forward that made it
                item.record_stream(torch.cuda.current_stream(item.device))
        return items
