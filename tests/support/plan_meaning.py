"""What a plan computes, as symbols: an oracle that knows nothing of hazards."""

from collections import defaultdict

from simulator.plan.plan import Plan, program


def computed(plan: Plan, iterations: int) -> dict[tuple[str, int], int]:
    """By task and iteration, a number that stands for all that the execution read. Equal numbers mean that equal things were read.

    The plan has one segment and no views: a storage is read and written as a whole.
    """
    contents: dict[tuple[str, int], int] = defaultdict(int)  # of each instance of a storage
    read: dict[tuple[str, int], int] = {}
    for period, _, task in program(plan.tasks, iterations):
        iteration = period - task.lag

        def instance(operand, iteration=iteration):
            storage = plan.storage_of(operand)
            return storage, -1 if storage in plan.carried else iteration

        inputs = tuple(contents[instance(operand)] for operand in task.inputs)
        read[task.name, iteration] = hash(inputs)
        for operand in (*task.mutates, *task.writes):
            contents[instance(operand)] = hash((task.name, iteration, inputs))
    return read
