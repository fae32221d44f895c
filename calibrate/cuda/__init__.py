"""Measures what plans need on a GPU, through a `Driver`."""
