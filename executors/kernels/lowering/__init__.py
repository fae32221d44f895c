"""Ops whose CPU and CUDA forms differ. In: a canonical op. Out: the calls that a backend makes for it."""
