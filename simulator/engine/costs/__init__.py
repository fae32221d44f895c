"""Costs. In: a plan, a machine and a profile. Out: the time of each task when it runs alone, and how much tasks slow each other down."""
