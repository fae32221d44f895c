"""Benchmarks, run by `make bench`. They report figures and assert none."""
