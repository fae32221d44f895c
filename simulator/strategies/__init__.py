"""Strategies, one module each. In: a job, a machine, costs and options. Out: a plan."""
