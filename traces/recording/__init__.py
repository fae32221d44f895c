"""Recorded runs. In: traces of torch.profiler. Out: device work, host calls, and what waited for what."""
