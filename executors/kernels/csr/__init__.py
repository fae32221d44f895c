"""Arithmetic on sparse Jacobians with precomputed patterns, in torch ops that wait for no device.

Values are [nnz, V], gradients [n, B], full matrices [rows, cols] or [B, rows, cols]; see `simulator.bodies.csr`.
"""
