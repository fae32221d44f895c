"""Layers. In: a training graph. Out: which ops form a layer, the paths between layers, and grouped convolutions split by group."""
