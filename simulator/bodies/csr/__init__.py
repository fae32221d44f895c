"""Transposed Jacobians in CSR form: which entries may differ from zero, which is fixed by the architecture and a pruning mask.

`rules` name the ops' Jacobians as plain data, `product` the product of two; the other modules compute patterns with numpy and are loaded
on use. Values lie apart from patterns, samples last: [nnz, V], V = 1 where all samples share them, else V = B.
"""
