"""Hand-overs between host threads: the forward thread waits while autograd's thread launches the backward pass.

The profiler does not record these waits. They are inferred: if one thread makes no calls while another thread makes a burst of calls that
fills most of the pause, the burst waits for the first thread's last call, and the first thread continues after the burst.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from traces.formats.recording import Call

#: The least length of the pause, and the least share of it that the burst fills.
SHORTEST_S, FILLED = 100e-6, 0.5
#: How many threads, those with the most calls, are searched for hand-overs.
MOST_THREADS = 4


def hand_overs(calls: Sequence[Call]) -> dict[int, int]:
    """Maps the index of each waiting call to the index of the call of another thread that it waits for."""
    busiest = [thread for thread, _ in Counter(call.thread for call in calls).most_common(MOST_THREADS)]
    waits: dict[int, int] = {}
    for position, first in enumerate(busiest):
        for second in busiest[position + 1 :]:
            members = [index for index, call in enumerate(calls) if call.thread in (first, second)]
            _between(calls, members, waits)
    return waits


def _between(calls: Sequence[Call], members: list[int], waits: dict[int, int]) -> None:
    """Add the hand-overs of two threads, whose calls `members` are in order of start, to `waits`."""
    bursts = [list(burst) for _, burst in groupby(members, key=lambda index: calls[index].thread)]
    for before, burst, after in zip(bursts, bursts[1:], bursts[2:], strict=False):
        left, right = before[-1], after[0]
        pause = calls[right].start_s - calls[left].end_s
        length = calls[burst[-1]].end_s - calls[burst[0]].start_s
        if pause >= SHORTEST_S and length >= FILLED * pause and calls[burst[-1]].end_s <= calls[right].start_s:
            if calls[left].end_s <= calls[burst[0]].start_s:
                waits.setdefault(burst[0], left)
            waits.setdefault(right, burst[-1])
