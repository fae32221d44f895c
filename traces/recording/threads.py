"""Hand-overs between host threads: the forward thread waits while autograd's thread launches the backward pass.

The profiler records no such waits. A thread that makes no call while another makes a burst of calls, which fills most of that pause, has
handed over: the burst waits for the call before it, and the thread goes on after the burst.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from traces.recording.recording import Call

#: A hand-over lasts at least this long, and the burst fills at least this share of the pause.
SHORTEST_S, FILLED = 100e-6, 0.5
#: Threads that hand over to one another: those with the most calls.
MOST_THREADS = 4


def hand_overs(calls: Sequence[Call]) -> dict[int, int]:
    """By index of the call that waits, the index of the call of another thread that it waits for."""
    busiest = [thread for thread, _ in Counter(call.thread for call in calls).most_common(MOST_THREADS)]
    found: dict[int, int] = {}
    for position, first in enumerate(busiest):
        for second in busiest[position + 1 :]:
            members = [index for index, call in enumerate(calls) if call.thread in (first, second)]
            _between(calls, members, found)
    return found


def _between(calls: Sequence[Call], members: list[int], found: dict[int, int]) -> None:
    """Hand-overs of two threads, whose calls `members` are in order of start."""
    bursts = [list(burst) for _, burst in groupby(members, key=lambda index: calls[index].thread)]
    for before, burst, after in zip(bursts, bursts[1:], bursts[2:], strict=False):
        left, right = before[-1], after[0]
        pause = calls[right].start_s - calls[left].end_s
        length = calls[burst[-1]].end_s - calls[burst[0]].start_s
        if pause >= SHORTEST_S and length >= FILLED * pause and calls[burst[-1]].end_s <= calls[right].start_s:
            if calls[left].end_s <= calls[burst[0]].start_s:
                found.setdefault(burst[0], left)
            found.setdefault(right, burst[-1])
