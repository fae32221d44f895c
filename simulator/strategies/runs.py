"""Joins plans of one job into the plan of a run that goes from one to the next.

>>> from simulator.machine.presets import load_machine
>>> from simulator.model.job import Job
>>> from simulator.strategies.registry import parse
>>> strategy, options = parse("forward-fusion:then=baseline@60/100")
>>> plan = strategy.plan(Job("lenet5", batch=64), load_machine("h100"), None, options)
>>> [(own.iterations, own.largest_lag) for own in plan.sequence]
[(60, 1), (40, 0)]
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from simulator.plan.bodies.opcall import ListedOp, OpList
from simulator.plan.plan import Plan
from simulator.plan.task import CARRIED_KINDS, Operand, Storage, Task, Value
from traces.errors import Code, SchedcastError


def run_of(strategy: str, plans: Sequence[tuple[Plan, int]], options: Mapping[str, object], semantics: Mapping[str, object]) -> Plan:
    """Return the plan of a run that follows each of `plans` of one job for its number of iterations (`Plan.earlier`).

    Parameters, buffers and optimizer state of one name are the same values in all plans, so a plan continues with those of the previous
    one. Every other name of a later plan gets a prime for each plan before it: `relu'` is the op `relu` of the second one. Raises
    SchedcastError if the plans hold these values differently.
    """
    values: dict[str, Value] = {}
    storages: dict[str, Storage] = {}
    losses: list[str] = []
    parts: list[tuple[tuple[Task, ...], int]] = []
    gradients: dict[str, Operand] = {}
    for number, (plan, iterations) in enumerate(plans):
        own = _primed(plan, "'" * number)
        if number:
            _check_same_held(plans[0][0], own)
        values |= own.values
        storages |= own.storages
        losses += own.losses
        gradients = dict(own.gradients)
        parts.append((own.tasks, iterations))
    return Plan.of_run(
        parts,
        strategy=strategy,
        values=values,
        storages=storages,
        losses=tuple(losses),
        gradients=gradients,
        options=dict(options),
        semantics=dict(semantics),
    )


def _check_same_held(first: Plan, then: Plan) -> None:
    """Raise SchedcastError unless both plans hold the same parameters, buffers and optimizer state in the same places."""
    held, other = (
        {name: (value, plan.storages[value.storage]) for name, value in plan.values.items() if value.kind in CARRIED_KINDS}
        for plan in (first, then)
    )
    for name in {**held, **other}:
        if held.get(name) == other.get(name):
            continue
        places = [known[name][0].device if name in known else "nowhere" for known in (held, other)]
        how = f"{name} is on {places[0]} and on {places[1]}" if places[0] != places[1] else f"{name} is in different pieces"
        raise SchedcastError(
            f"a run cannot go from {first.strategy} to {then.strategy}: {how}; choose strategies that hold the same parameters on the same"
            " devices, such as pipelines with one placement",
            Code.PLAN,
        )


def _primed(plan: Plan, primes: str) -> Plan:
    """The plan with primes after the names of its tasks, and of the values and storages that live for one iteration."""
    if not primes:
        return plan
    carried = {name for name, value in plan.values.items() if value.kind in CARRIED_KINDS}
    on_carried = {plan.values[name].storage for name in carried}

    def named(operand: Operand) -> Operand:
        return operand if operand.value in carried else replace(operand, value=operand.value + primes)

    def storage(name: str) -> str:
        return name if name in on_carried else name + primes

    def operands(op: Task | ListedOp) -> Iterator[tuple[Operand, ...]]:
        return (tuple(map(named, own)) for own in (op.reads, op.writes, op.mutates))

    def primed(task: Task) -> Task:
        body, after = task.body, tuple(name + primes for name in task.after)
        if isinstance(body, OpList):
            body = replace(body, steps=tuple(ListedOp(step.body, *operands(step)) for step in body.steps))
        reads, writes, mutates = operands(task)
        return replace(task, name=task.name + primes, body=body, after=after, reads=reads, writes=writes, mutates=mutates)

    values = [value if name in carried else replace(value, name=name + primes) for name, value in plan.values.items()]
    return replace(
        plan,
        tasks=tuple(map(primed, plan.tasks)),
        values={value.name: replace(value, storage=storage(value.storage)) for value in values},
        storages={storage(name): replace(each, name=storage(name)) for name, each in plan.storages.items()},
        losses=tuple(name + primes for name in plan.losses),
        gradients={name: named(operand) for name, operand in plan.gradients.items()},
    )
