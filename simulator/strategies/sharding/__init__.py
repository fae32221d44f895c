"""A captured graph, and degrees of parallelism for each of its layers, become shards of every layer and what they exchange."""
