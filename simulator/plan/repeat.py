"""Microbatches that repeat others: a plan that is only predicted has one group of them for many (`Repeat`), and `expand` writes out all.

In such a plan, two equal groups of tasks follow one another, and the omitted groups would follow the second. What differs between the two
are numbers: of microbatches, in names; of the samples that an input is; of the draws of a random op. Each grows by as much from one group
to the next. The tasks behind the groups name what the last group makes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from simulator.plan.bodies.opcall import ListedOp, OpCall, OpList
from simulator.plan.plan import Plan
from simulator.plan.task import INPUT, Operand, Repeat, Storage, Task, Value
from traces.errors import Code, SchedcastError

_NUMBER = re.compile(r"(\d+)")
#: Texts that are remembered.
_MOST_TEXTS = 100_000


def with_omitted(plan: Plan, repeated: Sequence[Task], count: int, shown: int, period: int = 1) -> Plan:
    """A plan of `shown` microbatches that omits `count` more, with their inputs: they are fetched, and stay allocated until they would be
    read.

    `repeated`: the tasks that go on to the next `period` microbatches; equally many before them do the same.
    """
    if not count:
        return plan
    fetched = {o.value: task for task in plan.tasks if fetches_input(plan, task) for o in task.writes}
    middle = {o.value for task in plan.tasks if task.microbatch == shown - 1 - period for o in task.reads if task.name not in fetched}
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
    repeat = Repeat(tuple(task.name for task in repeated), count // period, period, shown, inputs)
    semantics = {**plan.semantics, "shown": repeat.words}
    return replace(plan, tasks=tuple(tasks), values=values, storages=storages, semantics=semantics, repeat=repeat)


def fetches_input(plan: Plan, task: Task) -> bool:
    """Whether a task copies an input to a device."""
    return task.body.ends is not None and any(plan.values[operand.value].kind == INPUT for operand in task.reads)


def _fetched(fetch: Task, number: int, copied: Callable[[str, int], Value]) -> Task:
    """The task that fetches the input of an omitted microbatch."""
    read, write = fetch.reads[0], fetch.writes[0]
    source = copied(read.value, number)
    return replace(
        fetch,
        name=f"{fetch.name}#{number}",
        reads=(replace(read, value=source.name),),
        writes=(replace(write, value=f"{write.value}#{number}"),),
    )


def expand(plan: Plan, times: int | None = None) -> Plan:
    """The plan with the omitted groups of microbatches; with `times`, with so many of them, the others still omitted.

    What counts the targets of a whole batch still counts those of the microbatches in `plan`. Raises SchedcastError if a group is not like
    the one before it.
    """
    repeat = plan.repeat
    if repeat is None:
        return plan
    times = repeat.times if times is None else min(times, repeat.times)
    made, bare = times * repeat.period, _without_inputs(plan, repeat)
    tasks, own = bare.tasks, set(repeat.tasks)
    first = next((index for index, task in enumerate(tasks) if task.name in own), 0)
    end = first + sum(task.name in own for task in tasks)
    start = 2 * first - end
    if start < 0 or first == end or any(task.name not in own for task in tasks[first:end]):
        raise _differing("what comes before", "what repeats")
    course = _Course(times, (f"@{repeat.shown - 1}", f"@{repeat.shown - 1 + made}"))
    grown = [course.learn(a, b) for a, b in zip(tasks[start:first], tasks[first:end], strict=True)]
    copies = [each(number) for number in range(1, times + 1) for each in grown]
    before = course.fetches(tasks[:start], lambda task: fetches_input(bare, task))
    longer = replace(
        bare,
        tasks=(*before, *tasks[start:end], *copies, *map(course.behind, tasks[end:])),
        values=course.values(bare.values),
        storages=course.storages(bare.storages),
        losses=course.names(bare.losses),
        gradients={course.later(name): course.operand(operand) for name, operand in bare.gradients.items()},
        semantics={name: note for name, note in bare.semantics.items() if name != "shown"},
        repeat=None,
    )
    return with_omitted(longer, copies[first - end :], repeat.count - made, repeat.shown + made, repeat.period)


def _without_inputs(plan: Plan, repeat: Repeat) -> Plan:
    """The plan without the inputs of omitted microbatches."""
    more = {name for names in repeat.inputs.values() for name in names}
    gone = {name for name, value in plan.values.items() if value.storage in more}
    fetches = {task.name for task in plan.tasks if any(operand.value in gone for operand in task.writes)}
    gone |= {o.value for task in plan.tasks if task.name in fetches for o in task.reads}
    more |= {plan.values[name].storage for name in gone}
    return replace(
        plan,
        tasks=tuple(task for task in plan.tasks if task.name not in fetches),
        values={name: value for name, value in plan.values.items() if name not in gone},
        storages={name: storage for name, storage in plan.storages.items() if name not in more},
    )


def _differing(a: object, b: object) -> SchedcastError:
    return SchedcastError(f"the microbatches of the plan do not repeat themselves: {a}, then {b}; use fold=off", Code.PLAN)


class _Place(NamedTuple):
    """Where a text is among those that differ in some numbers, which grow by `step`: what they share, and how many steps it is along."""

    words: tuple[str, ...]
    step: tuple[int, ...]
    rest: tuple[int, ...]
    along: int

    @classmethod
    def of(cls, words: tuple[str, ...], numbers: tuple[int, ...], step: tuple[int, ...]) -> "_Place":
        """The place of a text with these words and numbers, which grow by `step`."""
        along = next(number // each for number, each in zip(numbers, step, strict=True) if each)
        return cls(words, step, tuple(number - along * each for number, each in zip(numbers, step, strict=True)), along)

    @property
    def course(self) -> "_Place":
        """What the texts share that are some steps before or behind this one."""
        return self._replace(along=0)

    def text(self, steps: int = 0) -> str:
        """The text that is so many steps behind this one."""
        along = self.along + steps
        numbers = [str(number + along * each) for number, each in zip(self.rest, self.step, strict=True)]
        return "".join(text for pair in zip(self.words, [*numbers, ""], strict=True) for text in pair)


@lru_cache(_MOST_TEXTS)
def _split(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The words of a text, and the numbers between them."""
    parts = _NUMBER.split(text)
    return tuple(parts[::2]), tuple(map(int, parts[1::2]))


@lru_cache(_MOST_TEXTS)
def _place_after(a: str, b: str) -> _Place:
    """The place of `b`, if the text one step before it is `a`. Raises SchedcastError if they differ in more than numbers."""
    (words, numbers), (same, later) = _split(a), _split(b)
    if words != same:
        raise _differing(a, b)
    return _Place.of(words, later, tuple(y - x for x, y in zip(numbers, later, strict=True)))


def _roles(item: Task | ListedOp) -> tuple[tuple[Operand, ...], ...]:
    return item.reads, item.writes, item.mutates


@dataclass
class _Course:
    """How names go on from one group to the next, learned from two groups, which `times` more follow.

    `last`: the end of names of the last microbatch, in the plan and if no group is omitted.
    """

    times: int
    last: tuple[str, str]
    #: By course: how many steps along the texts of the second group are, at least and at most. And the steps of courses, by their words.
    _ends: dict[_Place, tuple[int, int]] = field(default_factory=dict)
    _steps: dict[tuple[str, ...], set[tuple[int, ...]]] = field(default_factory=dict)
    #: The least number of a microbatch in the second group; by how much such numbers grow; and draws.
    _least: int = 0
    _microbatches: int = 0
    _draws: int = 0

    def learn(self, a: Task, b: Task) -> Callable[[int], Task]:
        """From a task of the first group and that of the second, what makes the task of the group that is so many groups behind."""
        changed = {name: getattr(b, name) for name in ("name", "body", "reads", "writes", "mutates", "after", "microbatch", "action")}
        if replace(a, **changed) != b or len(a.after) != len(b.after):
            raise _differing(a.name, b.name)
        name, action = self._text(a.name, b.name), self._text(a.action, b.action)
        after = [self._text(*pair) for pair in zip(a.after, b.after, strict=True)]
        reads, writes, mutates = (self._operands(*pair) for pair in zip(_roles(a), _roles(b), strict=True))
        body, more = self._body(a.body, b.body), b.microbatch - a.microbatch
        if more:
            self._least, self._microbatches = min(b.microbatch, self._least or b.microbatch), more
        return lambda steps: replace(
            b,
            name=name(steps),
            body=body(steps),
            reads=reads(steps),
            writes=writes(steps),
            mutates=mutates(steps),
            after=tuple(each(steps) for each in after),
            microbatch=b.microbatch + steps * more,
            action=action(steps),
        )

    def _text(self, a: str, b: str) -> Callable[[int], str]:
        if a == b:
            return lambda steps: b
        place = _place_after(a, b)
        self._steps.setdefault(place.words, set()).add(place.step)
        least, most = self._ends.get(place.course, (place.along, place.along))
        self._ends[place.course] = min(least, place.along), max(most, place.along)
        return place.text

    def _operands(self, a: Sequence[Operand], b: Sequence[Operand]) -> Callable[[int], tuple[Operand, ...]]:
        if a == b:
            return lambda steps: tuple(b)
        if len(a) != len(b) or any(replace(x, value=y.value) != y for x, y in zip(a, b, strict=True)):
            raise _differing(a, b)
        names = [self._text(x.value, y.value) for x, y in zip(a, b, strict=True)]
        return lambda steps: tuple(replace(y, value=name(steps)) for y, name in zip(b, names, strict=True))

    def _body(self, a: Any, b: Any) -> Callable[[int], Any]:
        if a == b:
            return lambda steps: b
        if isinstance(a, OpCall) and isinstance(b, OpCall) and replace(a, draw=b.draw) == b:
            draws = self._draws = b.draw - a.draw
            return lambda steps: replace(b, draw=b.draw + steps * draws)
        if not (isinstance(a, OpList) and isinstance(b, OpList) and len(a.steps) == len(b.steps)):
            raise _differing(a, b)
        listed = [
            (self._body(x.body, y.body), [self._operands(*pair) for pair in zip(_roles(x), _roles(y), strict=True)])
            for x, y in zip(a.steps, b.steps, strict=True)
        ]
        return lambda steps: replace(b, steps=tuple(ListedOp(body(steps), *(own(steps) for own in roles)) for body, roles in listed))

    def place(self, text: str) -> _Place | None:
        """Where a text is that is on a course."""
        words, numbers = _split(text)
        places = (_Place.of(words, numbers, step) for step in self._steps.get(words, ()))
        return next((place for place in places if place.course in self._ends), None)

    def _behind_most(self, place: _Place) -> int:
        return place.along - self._ends[place.course][1]

    def later(self, text: str, used: bool = False) -> str:
        """The text as it is if no group is omitted: further on if it is behind those of the two groups; or, if it is `used` behind them, if
        the group after the second would use it.
        """
        place = self.place(text)
        if place is None:
            return text.removesuffix(self.last[0]) + self.last[1] if text.endswith(self.last[0]) else text
        return place.text(self.times) if place.along > self._ends[place.course][0 if used else 1] else text

    def operand(self, operand: Operand, used: bool = False) -> Operand:
        """The operand with the name that its value has if no group is omitted."""
        name = self.later(operand.value, used)
        return operand if name == operand.value else replace(operand, value=name)

    def behind(self, task: Task) -> Task:
        """A task behind the two groups, as it is if no group is omitted."""

        def later(item: Task | ListedOp) -> list[tuple[Operand, ...]]:
            return [tuple(self.operand(operand, True) for operand in operands) for operands in _roles(item)]

        body, moves = task.body, bool(self._microbatches) and task.microbatch > self._least
        if isinstance(body, OpCall) and body.random and moves:
            body = replace(body, draw=body.draw + self.times * self._draws)
        if isinstance(body, OpList):
            body = replace(body, steps=tuple(ListedOp(step.body, *later(step)) for step in body.steps))
        reads, writes, mutates = later(task)
        return replace(
            task,
            name=self.later(task.name, True),
            body=body,
            reads=reads,
            writes=writes,
            mutates=mutates,
            after=tuple(self.later(name, True) for name in task.after),
            microbatch=task.microbatch + moves * self.times * self._microbatches,
            action=self.later(task.action, True),
        )

    def fetches(self, tasks: Sequence[Task], fetches: Callable[[Task], bool]) -> list[Task]:
        """The tasks before the two groups, with those that fetch the inputs of all groups."""
        fetched = [(task, self.place(task.writes[0].value)) for task in tasks if fetches(task)]
        behind = {task.name: self._behind_most(place) for task, place in fetched if place is not None}
        first, second = ([task for task, _ in fetched if behind.get(task.name) == at] for at in (-1, 0))
        if len(first) != len(second):
            raise _differing("what fetches inputs", "what fetches the next ones")
        grown = [self.learn(a, b) for a, b in zip(first, second, strict=True)]
        every: list[Task] = []
        for task in tasks:
            every.append(self.behind(task) if behind.get(task.name, 0) > 0 else task)
            if second and task is second[-1]:
                every += [each(steps) for steps in range(1, self.times + 1) for each in grown]
        return every

    def names(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names with those of all groups."""
        places = {name: place for name in names if (place := self.place(name)) is not None}
        second = [name for name, place in places.items() if not self._behind_most(place)]
        every: list[str] = []
        for name in names:
            every.append(self.later(name))
            if name in second[-1:]:
                every += [places[own].text(steps) for steps in range(1, self.times + 1) for own in second]
        return tuple(every)

    def values(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """The values with those of all groups."""
        every: dict[str, Value] = {}
        for name, value in values.items():
            place = self.place(name)
            before = values.get(place.text(-1)) if place is not None else None
            if place is None or before is None or self._behind_most(place) < 0:
                every[self.later(name)] = replace(value, name=self.later(name), storage=self.later(value.storage))
                continue
            behind = self._behind_most(place) > 0
            for steps in (self.times,) if behind else range(self.times + 1):
                later = _value_after(before, value, steps)
                every[later.name] = later
        return every

    def storages(self, storages: Mapping[str, Storage]) -> dict[str, Storage]:
        """The storages with those of all groups."""
        every: dict[str, Storage] = {}
        for name, storage in storages.items():
            place = self.place(name)
            second = place is not None and not self._behind_most(place)
            for later in [place.text(steps) for steps in range(self.times + 1)] if place and second else [self.later(name)]:
                every[later] = replace(storage, name=later)
        return every


def _value_after(a: Value, b: Value, steps: int) -> Value:
    """The value that is so many steps behind `b`, if the one before it is `a`."""

    def text(x: str, y: str) -> str:
        return y if x == y else _place_after(x, y).text(steps)

    source = b.source
    if a.source is not None and source is not None:
        if len(a.source.views) != len(source.views):
            raise _differing(a.name, b.name)
        views = (replace(y, args=text(x.args, y.args)) for x, y in zip(a.source.views, source.views, strict=True))
        source = replace(source, views=tuple(views))
    return replace(b, name=text(a.name, b.name), storage=text(a.storage, b.storage), source=source)
