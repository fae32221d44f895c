"""Figures of this project, run by `make bench`. They are reported, never asserted."""
