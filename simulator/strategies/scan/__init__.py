"""Back-propagation as a scan. In: a chain of layers or steps. Out: tasks of a parallel scan over their transposed Jacobians."""
