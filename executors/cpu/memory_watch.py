"""Bytes by device as the allocator counts them, while a plan's tasks run one at a time.

All groups of cores share one memory and one allocator, which knows nothing of devices. What its count changes by during a task is put to
the device of what the task writes; what it changes by when an instance's tensors are dropped, to the device that their storage lies on.
Every iteration has inputs of its own, as in training on data. Counts are taken at the ends of tasks: what an op takes and gives back
meanwhile is not in them.
"""

from executors.binding import Binding, Instance, storage_users
from executors.cpu import allocator
from simulator.memory.over_time import owners
from simulator.plan.plan import Plan
from simulator.plan.task import Task

#: What belongs to no device: the program's own lists and numbers.
OTHER = ""
#: The first period that counts. Before it ops take what they keep for their next calls, which is no tensor's.
WATCHED_FROM = 1


class MemoryWatch:
    """Keeps count of one program's bytes by place: a device, the host or `OTHER`.

    `held` is what a place holds now. From the beginning of period WATCHED_FROM, when `begun` was held, all changes of the allocator's
    count are in it.
    """

    def __init__(self, plan: Plan, binding: Binding):
        self._plan, self._binding = plan, binding
        owner = owners(plan)
        self._place = {name: plan.storages[owner.get(name, name)].device for name in plan.storages}
        self._of_task = [self._written(task) for task in plan.tasks]
        self._of_storage = [self._place[name] for name in storage_users(plan, plan.tasks)[0]]
        self._fed: dict[int, Instance] = {}
        self._watching = False
        self._begin()

    def peaks(self) -> dict[str, int]:
        """The most bytes that each device of the plan held."""
        return {device: self._most[device] for device in self._plan.devices}

    def before(self, instance: Instance, period: int) -> None:
        """A task of `instance` is about to run. What has changed since the last one belongs to no device."""
        if period >= WATCHED_FROM and not self._watching:
            self._begin()
            self._watching = True
        self._charge(OTHER)
        if instance.iteration not in self._fed:
            self._fed[instance.iteration] = instance
            for name in self._binding.fed:
                slot = self._binding.slot[name]
                instance.slots[slot] = instance.slots[slot].clone()
                self._charge(self._of_value(name))

    def ran(self, index: int) -> None:
        """The task has run."""
        self._charge(self._of_task[index])

    def dropped(self, storage: int) -> None:
        """The tensors on a storage, by its number in `storage_users`, have been dropped."""
        self._charge(self._of_storage[storage])

    def _begin(self) -> None:
        """There are the tensors that can be reached, and nothing else."""
        self.held: dict[str, int] = dict.fromkeys((*self._plan.devices, *self._place.values(), OTHER), 0)
        tensors = [*self._binding.carried.items()]
        for instance in self._fed.values():
            tensors += [(name, instance.slots[slot]) for name, slot in self._binding.slot.items() if instance.slots[slot] is not None]
        seen: set[int] = set()
        for name, tensor in tensors:
            memory = tensor.untyped_storage()
            if memory.data_ptr() not in seen:
                seen.add(memory.data_ptr())
                self.held[self._of_value(name)] += memory.nbytes()
        self.begun = self.held.copy()
        self._most = self.held.copy()
        self._last = allocator.allocated_bytes()

    def _charge(self, place: str) -> None:
        now = allocator.allocated_bytes()
        self.held[place] += now - self._last
        self._most[place] = max(self._most[place], self.held[place])
        self._last = now

    def _of_value(self, name: str) -> str:
        return self._place[self._plan.values[name].storage]

    def _written(self, task: Task) -> str:
        """Where a task's results lie; those of a plan's task are all on one device."""
        return next((self._of_value(operand.value) for operand in task.writes), task.device)
