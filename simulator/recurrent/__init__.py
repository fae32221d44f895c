"""Recurrent layers as two ops, forward and backward, however long the sequence is.

`ops` are the ops, `steps` their arithmetic, `layers` the calls of torch.nn.RNN and torch.nn.GRU in terms of them.
"""
