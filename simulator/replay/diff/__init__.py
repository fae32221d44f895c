"""Differences of runs. In: two replays, or two timelines. Out: why one step is longer than the other, in terms that add up to it."""
