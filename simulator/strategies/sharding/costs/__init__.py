"""A network, a machine and a cost model become the cost of each configuration of a layer, and of each pair of an edge's two layers."""
