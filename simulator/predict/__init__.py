"""Predictions. In: a plan, a machine and a cost model. Out: a forecast with its interval, its memory and its explanation."""
