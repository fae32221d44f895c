"""One process per device: a plan's tasks of one device run in each, and its collectives join them through torch.distributed.

The first process leads: it plans, measures and decides, and tells the others what to run (`channel`, `follow`).
"""
