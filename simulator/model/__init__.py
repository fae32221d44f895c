"""Models. In: a name, a factory or a live module. Out: a job, and the graph of one training step."""
