"""Numeric kernels, one module per kind of task body. In: a task and its binding. Out: a function that runs the task on an instance."""
