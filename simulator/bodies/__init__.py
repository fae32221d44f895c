"""Task bodies, one module for each kind of task. In: attributes as plain data. Out: a cost key, FLOPs and bytes."""
