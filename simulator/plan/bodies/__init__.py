"""Task bodies, one module per kind of task. In: attributes as plain data. Out: a cost key, FLOPs, bytes and the resource needed."""
