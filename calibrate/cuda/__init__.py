"""Calibration of a GPU. In: plans and a machine. Out: samples of each cost key, host costs, rates, transfers and co-runs, in a profile."""
