"""Calibration and validation.

In: jobs, plans and a machine. Out: profiles of costs, and comparisons of predicted with measured step times.
"""
