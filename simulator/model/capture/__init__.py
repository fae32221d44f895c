"""Capture. In: a module with a batch and a loss. Out: the graph of one training step, recorded on fake tensors."""
