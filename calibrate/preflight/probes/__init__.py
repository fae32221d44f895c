"""The quick probes: the PROBES of every module. In: a GPU. Out: figures, and what differs from what Schedcast assumes."""
