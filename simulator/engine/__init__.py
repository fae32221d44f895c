"""The engine. In: a plan, a machine and the cost of each task. Out: a timeline, from a discrete-event simulation."""
