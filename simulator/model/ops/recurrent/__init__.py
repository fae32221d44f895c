"""Recurrent layers as two ops, forward and backward, whatever the length of the sequence.

`ops` registers the ops, `steps` computes them, and `layers` expresses the calls of torch.nn.RNN, GRU and LSTM by them.
"""
