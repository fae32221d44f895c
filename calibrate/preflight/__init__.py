"""Probes of a GPU, the quick ones and the long ones. In: a GPU. Out: a folder with their answers, and what to fix first."""
