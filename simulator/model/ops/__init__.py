"""Ops that a plan can name besides ATen's, and their arguments. In: Python arguments. Out: JSON text, and back."""
