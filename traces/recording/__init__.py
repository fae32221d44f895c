"""Recorded runs. In: traces of torch.profiler. Out: device work, host calls, and the order between them."""
