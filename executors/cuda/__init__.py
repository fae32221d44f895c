"""The CUDA executor. In: a plan, its tensors and a `driver.Driver`, the one interface to CUDA. Out: a run on an NVIDIA GPU."""
