"""Plans with few microbatches of a step that has many: those in the middle do the same, so that one group of them tells about all.

Such a plan is for predictions alone (`Job.few`). It has the first microbatches, some of the middle and the last ones, each as large as in
the whole step, and with its share of the loss. `predict.repeated` looks for the group of microbatches after which everything happens again,
and counts it as often as microbatches are left out. Their inputs are in the plan: they are fetched, and held until their turn would come.
"""

from dataclasses import replace

from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import INPUT, LeftOut, Storage, Task, Value

#: Microbatches, and tasks of a step, up to which plans have all of them.
MOST_MICROBATCHES, MOST_TASKS = 6, 20_000
#: By `Job.few`: microbatches of a plan that runs them one after another (the first one, two that are compared and the last one; or more
#: at first, in which a step gets into its pace), and rounds, of as many as there are ranks, of what each rank of a pipeline repeats.
SHOWN, ROUNDS = {1: 4, 2: 6}, {1: 2, 2: 6}


def leaves_out(job: Job, microbatches: int, tasks: int, fold: str = "auto") -> bool:
    """Whether a plan of so many microbatches, and tasks in all, may leave some out. `fold`: the option of strategies that have one."""
    return job.few > 0 and fold != "off" and microbatches > MOST_MICROBATCHES and (fold == "on" or tasks > MOST_TASKS)


def in_turn(job: Job, tasks: int, fold: str = "auto") -> int:
    """How many microbatches are left out of a plan that runs them one after another. `tasks`: those of a microbatch."""
    return job.accumulate - SHOWN[job.few] if leaves_out(job, job.accumulate, job.accumulate * tasks, fold) else 0


def with_left_out(plan: Plan, count: int, shown: int, period: int = 1) -> Plan:
    """A plan that leaves out `count` microbatches of each copy and shows others, with the inputs of those that it leaves out.

    `period`: of so many microbatches each group does the same.
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
    segments = (replace(plan.segments[0], tasks=tuple(tasks)),)
    return replace(
        plan, segments=segments, values=values, storages=storages, semantics={**plan.semantics, "shown": left.words}, left_out=left
    )


def fetches_input(plan: Plan, task: Task) -> bool:
    """Whether a task copies an input to a device."""
    return task.body.ends is not None and any(plan.values[operand.value].kind == INPUT for operand in task.reads)


def _fetched(fetch: Task, number: int, copied) -> Task:
    """The task that fetches the input of a microbatch that is left out."""
    read, write = fetch.reads[0], fetch.writes[0]
    source = copied(read.value, number)
    return replace(
        fetch,
        name=f"{fetch.name}#{number}",
        reads=(replace(read, value=source.name),),
        writes=(replace(write, value=f"{write.value}#{number}"),),
    )
