"""Transposed Jacobians in CSR form. In: an op's geometry and a pruning mask. Out: the entries that may differ from zero."""
