"""Numeric kernels, one module for each kind of task body. In: a task and its tensors. Out: a function that runs it."""
