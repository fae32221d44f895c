"""Plans with representative microbatches of a step that has many: those in the middle do the same work, so one group of them represents
all.

Such a plan is only for predictions (`Job.few`). It has the first microbatches, some from the middle and the last ones, each as large as in
the whole step, and with its share of the loss. `predict.repeated` finds the group of microbatches that repeats, and counts it once for each
omitted group. The inputs of omitted microbatches are in the plan: they are fetched, and stay allocated until the microbatch would run.
"""

from dataclasses import replace

from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import INPUT, LeftOut, Storage, Task, Value

#: Microbatches, and tasks of a step, up to which plans have all of them.
MOST_MICROBATCHES, MOST_TASKS = 6, 20_000
#: By `Job.few`: the microbatches of a plan that runs them one after another (the first one, two that are compared and the last one; or more
#: at the start, until a step is periodic), and the rounds (of one microbatch per rank) that each rank of a pipeline repeats.
SHOWN, ROUNDS = {1: 4, 2: 6}, {1: 2, 2: 6}


def leaves_out(job: Job, microbatches: int, tasks: int, fold: str = "auto") -> bool:
    """Whether a plan of this many microbatches and tasks may omit microbatches. `fold`: the option of strategies that have one."""
    return job.few > 0 and fold != "off" and microbatches > MOST_MICROBATCHES and (fold == "on" or tasks > MOST_TASKS)


def in_turn(job: Job, tasks: int, fold: str = "auto") -> int:
    """How many microbatches are omitted from a plan that runs them one after another. `tasks`: those of a microbatch."""
    return job.accumulate - SHOWN[job.few] if leaves_out(job, job.accumulate, job.accumulate * tasks, fold) else 0


def with_left_out(plan: Plan, count: int, shown: int, period: int = 1) -> Plan:
    """A plan that omits `count` microbatches of each copy, with their inputs.

    `period`: the number of microbatches after which a group repeats.
    """
    if not count:
        return plan
    fetched = {o.value: task for task in plan.tasks if fetches_input(plan, task) for o in task.writes}
    middle = {
        o.value for task in plan.tasks if task.microbatch % shown == shown - 1 - period for o in task.reads if task.name not in fetched
    }
    values, storages = dict(plan.values), dict(plan.storages)
    inputs: dict[str, tuple[str, ...]] = {}
    copies: dict[str, list[Task]] = {}

    def copied(name: str, number: int) -> Value:
        value = plan.values[name]
        other = replace(value, name=f"{name}#{number}", storage=f"{value.storage}#{number}")
        values[other.name] = other
        storages[other.storage] = Storage(other.storage, plan.storages[value.storage].bytes, value.device)
        return other

    for name in sorted(middle):
        fetch = fetched.get(name)
        if fetch is None and plan.values[name].kind != INPUT:
            continue
        inputs[plan.values[name].storage] = tuple(copied(name, number).storage for number in range(count))
        if fetch is not None:
            copies[fetch.name] = [_fetched(fetch, number, copied) for number in range(count)]
    tasks = [each for task in plan.tasks for each in (task, *copies.get(task.name, ()))]
    left = LeftOut(count, shown, period, inputs)
    return replace(
        plan, tasks=tuple(tasks), values=values, storages=storages, semantics={**plan.semantics, "shown": left.words}, left_out=left
    )


def fetches_input(plan: Plan, task: Task) -> bool:
    """Whether a task copies an input to a device."""
    return task.body.ends is not None and any(plan.values[operand.value].kind == INPUT for operand in task.reads)


def _fetched(fetch: Task, number: int, copied) -> Task:
    """The task that fetches the input of an omitted microbatch."""
    read, write = fetch.reads[0], fetch.writes[0]
    source = copied(read.value, number)
    return replace(
        fetch,
        name=f"{fetch.name}#{number}",
        reads=(replace(read, value=source.name),),
        writes=(replace(write, value=f"{write.value}#{number}"),),
    )
