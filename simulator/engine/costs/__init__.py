"""Costs. In: a plan, a machine and a profile. Out: what each task takes when it runs alone, and how tasks slow each other down."""
