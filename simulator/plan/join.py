"""Joins plans of one job, of which a run follows one after the other, into a plan of several segments."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.plan.plan import Plan
from simulator.plan.task import CARRIED_KINDS, Operand, Segment, Storage, Task, Value


def in_turn(strategy: str, plans: Sequence[tuple[Plan, int]], options: Mapping[str, object], semantics: Mapping[str, object]) -> Plan:
    """Return the plan that follows each of `plans` for its number of iterations.

    Parameters, buffers and optimizer state of one name are the same values in all segments, so a segment goes on with those that the one
    before has left. Every other name of a later plan gets a prime for each plan before it: `relu'` is the op `relu` of the second one.
    Raises ValueError if two plans carry different values under one name.
    """
    values: dict[str, Value] = {}
    storages: dict[str, Storage] = {}
    losses: list[str] = []
    segments: list[Segment] = []
    gradients: dict[str, Operand] = {}
    for number, (plan, repeat) in enumerate(plans):
        own = _primed(plan, "'" * number)
        for name in values.keys() & own.values.keys():
            if values[name] != own.values[name] or storages[values[name].storage] != own.storages[own.values[name].storage]:
                raise ValueError(f"two segments of {strategy} carry different values called {name!r}")
        values |= own.values
        storages |= own.storages
        losses += own.losses
        gradients = dict(own.gradients)
        segments.append(Segment(own.tasks, repeat))
    return Plan(strategy, tuple(segments), values, storages, tuple(losses), gradients, dict(options), dict(semantics))


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

    def primed(task: Task) -> Task:
        reads, writes, mutates = (tuple(map(named, operands)) for operands in (task.reads, task.writes, task.mutates))
        after = tuple(name + primes for name in task.after)
        return replace(task, name=task.name + primes, after=after, reads=reads, writes=writes, mutates=mutates)

    values = [value if name in carried else replace(value, name=name + primes) for name, value in plan.values.items()]
    return replace(
        plan,
        segments=(Segment(tuple(map(primed, plan.tasks))),),
        values={value.name: replace(value, storage=storage(value.storage)) for value in values},
        storages={storage(name): replace(each, name=storage(name)) for name, each in plan.storages.items()},
        losses=tuple(name + primes for name in plan.losses),
        gradients={name: named(operand) for name, operand in plan.gradients.items()},
    )
