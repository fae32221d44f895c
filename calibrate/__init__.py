"""Measures what plans need on a machine."""
