"""Arithmetic on sparse Jacobians. In: values and precomputed patterns. Out: products and values, by torch ops that wait for no device."""
