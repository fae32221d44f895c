"""Calibration of a GPU. In: plans and a machine. Out: samples of cost keys, host costs, rates, transfers, interference, in a profile."""
