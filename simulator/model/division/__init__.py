"""In comes a captured graph; out goes the graph of one of the devices that divide its layers, with collectives among its ops."""
