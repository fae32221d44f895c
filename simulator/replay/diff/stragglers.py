"""How much each rank, and each kind of work, delays a job of several ranks: the job is replayed with the median rank's times instead.

The median rank of a kind is the one whose total time of that kind is the median (of two ranks: the shorter). A rank's work takes the time
of the same work on the median rank, aligned as two runs are; work that the median rank does not have takes none. The time before a thread's
first call is a separate kind, `START`: it says how much later the rank began. What ran before the first step keeps its times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import median_low

from simulator.predict.waterfall import COMMUNICATION, LAUNCHES
from simulator.replay.diff.pairs import pair
from simulator.replay.diff.run import COPIES, KERNELS, PYTHON, SYNCHRONIZATION, Run, comparable_steps, run_of_replay
from simulator.replay.nodes import GAP, LOST_LAUNCH, is_host, rank_of
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import with_durations
from simulator.replay.whatif.ranking import changed_step_s
from traces.documents.replay_result import StragglerCost

#: The kind of the time before a thread's first call.
START = "a later start"
#: Kinds of work, by the terms of a difference.
KINDS = (KERNELS, PYTHON, LAUNCHES, SYNCHRONIZATION, COPIES, COMMUNICATION, START)


def stragglers(replay: Replay) -> tuple[StragglerCost, ...]:
    """Return the costs of every rank by kind and in all, then those of all ranks together by kind. Empty for a single rank."""
    members = _members(replay)
    if len(members) < 2:
        return ()
    median_s = _median_times(replay, members)
    before_s = changed_step_s(replay)

    def cost(rank: int | None, kind: str | None) -> StragglerCost:
        seconds: dict[str, float] = {}
        for (other, its_kind), times in median_s.items():
            if rank in (None, other) and kind in (None, its_kind):
                seconds |= times
        saved_s = before_s - changed_step_s(with_durations(replay, seconds)) if seconds else 0.0
        return StragglerCost(rank=rank, kind=kind, seconds=saved_s)

    kinds = [kind for kind in KINDS if any(its_kind == kind for _, its_kind in median_s)]
    return tuple(cost(rank, kind) for rank in (*sorted(members), None) for kind in (*kinds, None))


def _members(replay: Replay) -> dict[int, list[int]]:
    """Return the positions of each rank's tasks; empty for a single rank."""
    members: dict[int, list[int]] = {}
    for index, task in enumerate(replay.tasks):
        rank = rank_of(task.name)
        if rank is not None:
            members.setdefault(rank, []).append(index)
    return members


def _median_times(replay: Replay, members: Mapping[int, Sequence[int]]) -> dict[tuple[int, str], dict[str, float]]:
    """Return by rank and kind the durations of the median rank by task; without unchanged ones."""
    tasks = replay.tasks
    whole = run_of_replay(replay, "", comparable_steps(replay))
    members = {rank: [index for index in own if index < len(whole.nodes)] for rank, own in members.items()}
    runs = {rank: _part(whole, own) for rank, own in members.items()}
    starts = {rank: _starts(replay, own) for rank, own in members.items()}
    own_start = {index for threads in starts.values() for thread in threads for index in thread}
    kind_of = [
        START if index in own_start else None if LOST_LAUNCH in tasks[index].name else node.term for index, node in enumerate(whole.nodes)
    ]
    pairs: dict[tuple[int, int], dict[int, int]] = {}
    times: dict[tuple[int, str], dict[str, float]] = {}
    for kind in KINDS:
        own_of = {rank: [index for index in own if kind_of[index] == kind] for rank, own in members.items()}
        totals = {rank: sum(whole.nodes[index].seconds for index in own) for rank, own in own_of.items()}
        middle = next(rank for rank in sorted(totals) if totals[rank] == median_low(totals.values()))
        for rank in totals:
            if rank == middle:
                continue
            if (rank, middle) not in pairs:
                of_b = pair(runs[rank], runs[middle]).of_b
                pairs[rank, middle] = {members[rank][own]: members[middle][other] for other, own in of_b.items()}
            partner = pairs[rank, middle]
            new_s = {index: whole.nodes[partner[index]].seconds if index in partner else 0.0 for index in own_of[rank]}
            if kind == START:
                new_s = dict.fromkeys(new_s, 0.0)
                for own, other in zip(starts[rank], starts[middle], strict=False):
                    new_s[own[0]] = sum(whole.nodes[index].seconds for index in other)
            changed = {tasks[index].name: seconds for index, seconds in new_s.items() if seconds != whole.nodes[index].seconds}
            if changed:
                times[rank, kind] = changed
    return times


def _starts(replay: Replay, members: Sequence[int]) -> list[list[int]]:
    """Return the times before the first call of each thread that launches, by thread in order."""
    tasks = replay.tasks
    lanes: dict[tuple[str, int], list[int]] = {}
    for index in members:
        if is_host(tasks[index]) and LOST_LAUNCH not in tasks[index].name:
            lanes.setdefault(tasks[index].lane, []).append(index)
    begins = [list(takewhile(lambda index: tasks[index].body.label == GAP, own)) for _, own in sorted(lanes.items())]
    return [begin for begin in begins if begin]


def _part(run: Run, members: Sequence[int]) -> Run:
    """Return the nodes of one rank as a run, without their waits for other ranks."""
    number = {index: at for at, index in enumerate(members)}
    nodes = []
    for index in members:
        node = run.nodes[index]
        after = tuple(number[other] for other in node.after if other in number)
        nodes.append(replace(node, after=after, launch=number.get(node.launch, -1)))
    return replace(run, nodes=tuple(nodes))
