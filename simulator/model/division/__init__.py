"""Division of layers. In: a captured graph. Out: the graph of one of the devices that divide its layers, with collectives among its ops."""
