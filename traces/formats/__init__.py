"""Other programs' formats. In: traces of torch.profiler. Out: device work, host calls and their order; timelines for Perfetto."""
