"""Collectives. In: an operation, an algorithm and its devices. Out: rounds of moves, tasks of a plan, and measured times."""
