"""Strategies, one module each, and what several share. In: a job, a machine, costs and options. Out: a plan."""
