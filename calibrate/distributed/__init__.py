"""Calibration with one process per device. In: a control channel. Out: testbeds in which the first process makes all decisions."""
