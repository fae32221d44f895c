"""Replay. In: profiler traces. Out: a plan whose costs are the recorded durations, simulated and compared with the recording."""
