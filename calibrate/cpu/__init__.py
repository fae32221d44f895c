"""Calibration of a CPU. In: plans and a machine. Out: samples of each cost key, host costs and interference, in a profile."""
