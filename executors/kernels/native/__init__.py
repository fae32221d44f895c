"""Hand-written CUDA kernels for scans. In: a task on a GPU. Out: a kernel compiled by NVRTC, or None if it cannot be compiled."""
