"""Costs.

In: a network, a machine and a cost model. Out: the cost of each configuration of a layer, and of each pair for an edge's two layers.
"""
