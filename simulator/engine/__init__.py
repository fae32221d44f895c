"""The engine. In: a plan, a machine and a profile. Out: the cost of each task, and a timeline from a discrete-event simulation."""
