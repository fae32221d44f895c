"""Recorded runs. In: profiler traces. Out: a plan with the recorded durations, simulated, diagnosed, changed and compared."""
