"""Calibration and validation. In: jobs, plans and a machine. Out: profiles of costs, and predicted beside measured step times."""
