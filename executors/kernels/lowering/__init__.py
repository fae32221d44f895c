"""Canonical ops whose CPU and CUDA forms differ. In: a task of such an op. Out: a function that runs it in the backend's form."""
