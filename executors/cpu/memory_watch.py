"""Counts the allocator's bytes by device while a plan's tasks run one at a time.

All groups of cores share one memory and one allocator, which knows nothing of devices. A change of the allocator's count during a task is
attributed to the device that the task writes to. A change when an instance's tensors are dropped is attributed to the device of their
storage. Every iteration gets a copy of the inputs, as in training on data. Counts are read at the end of each task, so they do not include
memory that an op allocates and frees within its run.
"""

from executors.binding import Binding, Instance, task_storages
from executors.cpu import allocator
from simulator.engine.memory.release import owners
from simulator.plan.plan import Plan

#: The place of bytes that belong to no device: the program's own lists and numbers.
OTHER = ""
#: The first period that counts. In earlier periods ops allocate memory that they reuse in later calls and that belongs to no tensor.
WATCHED_FROM = 1


class MemoryWatch:
    """Counts one program's bytes by place: a device, the host or `OTHER`.

    `held_bytes`: the bytes allocated in each place now. It starts as the sum of the reachable tensors at the beginning of period
    WATCHED_FROM, and includes all changes of the allocator's count since then.
    """

    def __init__(self, plan: Plan, binding: Binding):
        self._plan, self._binding = plan, binding
        owner = owners(plan)
        self._place = {name: plan.storages[owner.get(name, name)].device for name in plan.storages}
        # A task's results are all on one device.
        self._task_place = [next((self._value_place(o.value) for o in task.writes), task.device) for task in plan.tasks]
        self._storage_place = [self._place[name] for name in task_storages(plan, plan.tasks)[0]]
        self._fed: dict[int, Instance] = {}
        self._watching = False
        self._begin()

    def peaks(self) -> dict[str, int]:
        """The peak bytes of each device of the plan."""
        return {device: self._peak_bytes[device] for device in self._plan.devices}

    def before_task(self, instance: Instance, period: int) -> None:
        """Record that a task of `instance` is about to run. Changes since the last task belong to no device."""
        if period >= WATCHED_FROM and not self._watching:
            self._begin()
            self._watching = True
        self._charge(OTHER)
        if instance.iteration not in self._fed:
            self._fed[instance.iteration] = instance
            for name in self._binding.fed:
                slot = self._binding.slot[name]
                instance.slots[slot] = instance.slots[slot].clone()
                self._charge(self._value_place(name))

    def after_task(self, index: int) -> None:
        """Record that the task at `index` has run."""
        self._charge(self._task_place[index])

    def after_drop(self, storage: int) -> None:
        """Record that the tensors on a storage have been dropped. `storage`: its number in `task_storages`."""
        self._charge(self._storage_place[storage])

    def _begin(self) -> None:
        """Start counting from the bytes of the tensors that can be reached now."""
        self.held_bytes: dict[str, int] = dict.fromkeys((*self._plan.devices, *self._place.values(), OTHER), 0)
        tensors = [*self._binding.carried.items()]
        for instance in self._fed.values():
            tensors += [(name, instance.slots[slot]) for name, slot in self._binding.slot.items() if instance.slots[slot] is not None]
        seen: set[int] = set()
        for name, tensor in tensors:
            memory = tensor.untyped_storage()
            if memory.data_ptr() not in seen:
                seen.add(memory.data_ptr())
                self.held_bytes[self._value_place(name)] += memory.nbytes()
        self._peak_bytes = self.held_bytes.copy()
        self._last_bytes = _allocated_bytes()

    def _charge(self, place: str) -> None:
        """Add the change of the allocator's count since the last call to a place."""
        now_bytes = _allocated_bytes()
        self.held_bytes[place] += now_bytes - self._last_bytes
        self._peak_bytes[place] = max(self._peak_bytes[place], self.held_bytes[place])
        self._last_bytes = now_bytes

    def _value_place(self, name: str) -> str:
        return self._place[self._plan.values[name].storage]


def _allocated_bytes() -> int:
    count = allocator.allocated_bytes()
    assert count is not None, "nothing is watched where the allocator does not count"
    return count
