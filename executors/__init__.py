"""Execution of plans. In: a plan and its tensors by name. Out: a run with its measured timeline, losses and final tensors."""
