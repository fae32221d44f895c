"""Orders of a pipeline's work, one module each. In: numbers of stages and micro-batches. Out: the schedule of each rank's actions."""
