"""Sharding. In: a captured graph, and degrees of parallelism for each layer. Out: shards of every layer and what they exchange."""
