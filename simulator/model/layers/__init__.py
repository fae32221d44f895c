"""Layers. In: a training graph. Out: the ops of each layer, the paths between layers, and grouped convolutions split by group."""
