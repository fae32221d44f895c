"""Recurrent layers as two ops, forward and backward, however long the sequence is.

`ops` are the ops, `steps` their arithmetic, `layers` the calls of torch.nn.RNN, torch.nn.GRU and torch.nn.LSTM in terms of them.
"""
