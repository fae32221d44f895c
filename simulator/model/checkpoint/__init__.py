"""Activation checkpointing. In: a captured graph and a choice. Out: the graph whose backward repeats forward ops."""
