"""Collectives. In: an operation, an algorithm and its devices. Out: communication rounds, tasks of a plan, and measured times."""
