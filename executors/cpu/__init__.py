"""The CPU executor. In: a plan and its tensors. Out: a run on pinned cores, one worker thread per core."""
